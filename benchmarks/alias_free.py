"""Compare frequency bounds with spectra, measure errors at twice the resolution, and time the alias penalty.

    python -m benchmarks.alias_free [--json FILE]

Prints the tables of docs/alias-free.md and results/README.md as Markdown. Takes about two minutes on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, alias_penalty, at_resolution
from flexconv.bench import machine, measure
from flexconv.nn import MAGNet
from flexconv.sampling import dense_kernel, oversampled
from flexconv.spectrum import FORMULAS, energy_spectrum, max_frequency, measured_bandwidth
from flexconv.testing import resolution_error, smooth_signal

Layer = FlexConv1d | FlexConv2d
Row = dict[str, object]

SETUPS = {"2D": (FlexConv2d, "same"), "1D": (FlexConv1d, "same"), "1D causal": (FlexConv1d, "causal")}
SIGMAS = (0.075, 0.15, 0.3, 0.6)
W_SCALES = (1.0, 0.2)
THRESHOLDS = (0.05, 0.02, None)
PROCEDURES = ("hard", "0.05", "0.02", "None", "taper", "uncropped")
SEEDS = range(6)
OVERSAMPLE = 16  # 17 taps oversampled by 16 represent 64 cycles per unit, more than any bound here
WIDTHS = [3, *[24] * 5, *[36] * 5, *[48] * 4]  # 14 layers, as in a FlexNet-7
# errors in % from 16 to 32 samples, measured with the authors' code in 2D: W at init, W × 0.2, W × 0.2 without cropping
AUTHORS = {0.075: (14, 6.4, 2.2), 0.15: (4.8, 1.7, 1.1), 0.3: (2.4, 1.2, 0.6), 0.6: (1.8, 1.5, None)}
PENALTIES = {
    "none": {},
    "the default: the authors' formula": {"method": "per_filter", "mask": False, "formula": "authors"},
    "per filter, without mask": {"method": "per_filter", "mask": False, "formula": "exact"},
    "per kernel, without mask": {"method": "per_kernel", "mask": False, "formula": "exact"},
    "per kernel, with mask": {"method": "per_kernel", "mask": True, "formula": "exact"},
}


def make_layer(setup: str, sigma: float, w_scale: float, seed: int, threshold: float | None = 0.1) -> Layer:
    """A random FlexConv with 4 → 4 channels and 17 taps, whose frequencies W are multiplied by `w_scale`."""
    torch.manual_seed(seed)
    kind, padding = SETUPS[setup]
    mask = GaussianMask(kind.dims, sigma=sigma, threshold=threshold, form="guarded", dtype=torch.float64)
    layer = kind(4, 4, 17, padding=padding, mask=mask, parametrization="paper", dtype=torch.float64)
    assert isinstance(layer.generator, MAGNet)
    with torch.no_grad():
        layer.generator.frequency.mul_(w_scale)
    return layer


# --- (a) bounds -------------------------------------------------------------------------------------------------------


def bench_bounds() -> list[Row]:
    """Each bound, the frequency below which 99 % of the energy lies, and the share of the energy above the bound."""
    rows: list[Row] = []
    for setup in ("1D", "2D"):
        for w_scale in W_SCALES:
            measured, bounds, beyond = [], {f: [] for f in FORMULAS}, {f: [] for f in FORMULAS}
            for seed in SEEDS:
                layer = make_layer(setup, 0.25, w_scale, seed)
                measured.append(max(measured_bandwidth(layer, oversample=OVERSAMPLE)))
                for formula in FORMULAS:
                    bound = max_frequency(layer, formula=formula).tolist()
                    bounds[formula].append(max(bound))
                    beyond[formula].append(max(energy_beyond(layer, bound)))
            row: Row = {"setup": setup, "w_scale": w_scale, "measured": statistics.mean(measured)}
            for formula in FORMULAS:
                row[formula] = statistics.mean(bounds[formula])
                row[f"{formula}_tightness"] = statistics.mean(
                    b / m for b, m in zip(bounds[formula], measured, strict=True)
                )
                row[f"{formula}_beyond"] = max(beyond[formula])
            rows.append(row)
    rows.append(_one_gabor_row())
    return rows


def _one_gabor_row() -> Row:
    """A kernel of one Gabor filter with a negative W, for which the printed formula is not a bound."""
    generator = MAGNet(2, 1, hidden=1, layers=1, dtype=torch.float64)
    with torch.no_grad():
        generator.frequency.copy_(torch.tensor([[[-57.7, 14.1]], [[0.0, 0.0]]]))
        generator.gamma.copy_(torch.tensor([[[5.88, 5.70]], [[1e-9, 1e-9]]]))
        generator.phase.copy_(torch.tensor([[0.3], [torch.pi / 2]]))
        for zero in (generator.mu, generator.mix_bias, generator.output.bias):
            zero.zero_()
        for one in (generator.mix_weight, generator.output.weight):
            one.fill_(1.0)
    layer = FlexConv2d(1, 1, 33, dtype=torch.float64, generator=generator, mask=None, parametrization="paper")
    measured = max(measured_bandwidth(layer, oversample=OVERSAMPLE))
    row: Row = {"setup": "one Gabor", "w_scale": 1.0, "measured": measured}
    for formula in FORMULAS:
        bound = max_frequency(layer, formula=formula).tolist()
        row[formula] = max(bound)
        row[f"{formula}_tightness"] = max(bound) / measured
        row[f"{formula}_beyond"] = max(energy_beyond(layer, bound))
    return row


@torch.no_grad()
def energy_beyond(layer: Layer, limits: Sequence[float]) -> list[float]:
    """The share of the energy of the uncropped, oversampled kernel above the limit of each axis."""
    axes = [oversampled(axis, OVERSAMPLE) for axis in layer.axes]
    values = dense_kernel(layer, axes, mask=True)
    shares = []
    for d, (axis, limit) in enumerate(zip(axes, limits, strict=True)):
        energy = energy_spectrum(values, d + 1)
        frequency = torch.arange(len(energy)) / (2 * (len(energy) - 1) * axis.spacing)
        shares.append((energy[frequency > limit].sum() / energy.sum()).item())
    return shares


def show_bounds(rows: Sequence[Row]) -> None:
    """Print one line per kind of kernel."""
    print("\n### Bound / bandwidth of 99 % of the energy; in brackets the largest share of energy above the bound\n")
    print("| kernel | W | 99 % | exact | authors | paper |\n|---|---|---|---|---|---|")
    for row in rows:
        cells = [f"{row[f'{f}_tightness']:.2f} ({row[f'{f}_beyond']:.0e})" for f in FORMULAS]
        scale = f"× {row['w_scale']:g}"
        print(f"| {row['setup']} | {scale} | {row['measured']:.1f} | {' | '.join(cells)} |")


# --- (b) another resolution -------------------------------------------------------------------------------------------


def bench_resolution() -> list[Row]:
    """The difference in % between outputs at 17 taps and at 33 taps on twice the samples, averaged over seeds."""
    rows: list[Row] = []
    for setup in SETUPS:
        for sigma in SIGMAS:
            for w_scale in W_SCALES:
                errors: dict[str, list[float]] = {name: [] for name in PROCEDURES}
                for seed in SEEDS:
                    layer = make_layer(setup, sigma, w_scale, seed)
                    errors["hard"].append(resolution_error(layer, 2, crop="hard", seed=seed))
                    errors["taper"].append(resolution_error(layer, 2, seed=seed))
                    for threshold in THRESHOLDS:
                        errors[str(threshold)].append(error_with_threshold(layer, threshold, seed))
                    uncropped = make_layer(setup, sigma, w_scale, seed, threshold=None)
                    errors["uncropped"].append(resolution_error(uncropped, 2, crop="hard", seed=seed))
                row: Row = {"setup": setup, "sigma": sigma, "w_scale": w_scale}
                rows.append(row | {name: 100 * statistics.mean(values) for name, values in errors.items()})
    return rows


@torch.no_grad()
def error_with_threshold(layer: Layer, threshold: float | None, seed: int) -> float:
    """`resolution_error(layer, 2, crop="hard")` with another threshold at the new resolution."""
    other = at_resolution(layer, 2, crop="hard", copy=False)
    assert other.mask is not None
    other.mask.threshold = threshold
    here, there = (smooth_signal(4, [n] * layer.dims, 3.0, seed) for n in (16, 32))
    every_other = (..., *[slice(None, None, 2)] * layer.dims)
    y, z = layer(here), other(there)[every_other]
    return ((z - y).norm() / y.norm()).item()


def show_resolution(rows: Sequence[Row]) -> None:
    """Print one line per mask and scale of W; the smallest error among the cropped procedures is bold."""
    print("\n### Difference of outputs at twice the resolution, in %\n")
    print("| | σ | W | hard | 0.05 | 0.02 | no crop at 33 | taper | no crop at either | the authors' code |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        values = {name: float(str(row[name])) for name in PROCEDURES}
        least = min(values[name] for name in PROCEDURES if name != "uncropped")
        cells = [_bold(_short(v)) if v == least and name != "uncropped" else _short(v) for name, v in values.items()]
        theirs = AUTHORS[float(str(row["sigma"]))] if row["setup"] == "2D" else ()
        published = "–" if not theirs else f"{theirs[0]}" if row["w_scale"] == 1.0 else _cropped_and_not(theirs)
        print(f"| {row['setup']} | {row['sigma']} | × {row['w_scale']:g} | {' | '.join(cells)} | {published} |")


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _bold(text: str) -> str:
    return f"**{text}**"


def _cropped_and_not(theirs: Sequence[float | None]) -> str:
    return f"{theirs[1]}" if theirs[2] is None else f"{theirs[1]}, uncropped {theirs[2]}"


# --- (c) cost ---------------------------------------------------------------------------------------------------------


def bench_cost(batch: int = 8) -> list[Row]:
    """Milliseconds of a training step of 14 FlexConv2d, and of the penalty relative to it."""
    torch.manual_seed(0)
    stack = nn.Sequential()
    for fan_in, fan_out in itertools.pairwise(WIDTHS):
        layer = FlexConv2d(fan_in, fan_out, 33, parametrization="paper")
        stack.extend([layer, nn.BatchNorm2d(fan_out), nn.ReLU()])
    optimiser = torch.optim.Adam(stack.parameters(), lr=1e-4)
    x = torch.randn(batch, 3, 32, 32)

    def step() -> None:
        optimiser.zero_grad()
        stack(x).square().mean().backward()
        optimiser.step()

    def penalty(options: dict[str, object]) -> None:
        alias_penalty(stack, **options).backward()  # type: ignore[arg-type]

    functions: dict[str, Callable[[], object]] = {"none": step}
    functions |= {name: partial(penalty, options) for name, options in PENALTIES.items() if options}
    times = {name: each.ms for name, each in measure(functions, torch.device("cpu"), seconds=4.0).items()}
    return [
        {"penalty": name, "ms": ms, "share": None if name == "none" else ms / times["none"]}
        for name, ms in times.items()
    ]


def show_cost(rows: Sequence[Row]) -> None:
    """Print the time of the step, and the time that each penalty adds."""
    print("\n### Forward and backward of the penalty, 14 FlexConv2d, batch 8, 32×32\n")
    print("| penalty | ms | of a training step |\n|---|---|---|")
    for row in rows:
        share = "(the step itself)" if row["share"] is None else f"{100 * float(str(row['share'])):.1f} %"
        print(f"| {row['penalty']} | {row['ms']:.1f} | {share} |")


# --- (d) training -----------------------------------------------------------------------------------------------------


def toy_net() -> nn.Sequential:
    """Three FlexConv2d of 17×17 taps. W starts at up to 40 rad, which a few hundred steps can reduce."""
    torch.manual_seed(0)
    generator = partial(MAGNet, hidden=8, input_scale=8.0)

    def layer(fan_in: int, fan_out: int) -> FlexConv2d:
        mask = GaussianMask(2, sigma=0.15, form="guarded")
        return FlexConv2d(fan_in, fan_out, 17, generator=generator, mask=mask, parametrization="paper")

    return nn.Sequential(
        layer(1, 4), nn.BatchNorm2d(4), nn.GELU(), layer(4, 4), nn.BatchNorm2d(4), nn.GELU(), layer(4, 1)
    )


def train_toy(steps: int = 200, batch: int = 4, **penalty: object) -> tuple[nn.Sequential, float]:
    """Train a toy net to blur noise, with `alias_penalty(net, **penalty)` → the net, and its loss / variance."""
    model = toy_net()
    x = torch.randn(batch, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    target = torch.tanh(3 * F.avg_pool2d(x, 5, 1, 2))
    # frequencies are tens of radians: at the learning rate of the other parameters they would need thousands of steps
    fast = [p for layer in flexconvs(model) for p in (layer.generator.frequency, layer.generator.gamma)]
    rest = [p for p in model.parameters() if not any(p is each for each in fast)]
    optimiser = torch.optim.Adam([{"params": fast, "lr": 0.5}, {"params": rest}], lr=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        (loss + alias_penalty(model, **penalty) if penalty else loss).backward()  # type: ignore[arg-type]
        optimiser.step()
    return model, (loss / target.var()).item()


def flexconvs(model: nn.Module) -> list[FlexConv2d]:
    """The FlexConv2d layers of a model."""
    return [module for module in model.modules() if isinstance(module, FlexConv2d)]


def bench_training() -> list[Row]:
    """Bounds, energy above the limit and errors at twice the resolution, before and after training."""
    rows = [_worst("before training", toy_net(), None)]
    for name, options in PENALTIES.items():
        model, loss = train_toy(**options)
        rows.append(_worst(name, model, loss))
    return rows


def _worst(name: str, model: nn.Module, loss: float | None) -> Row:
    layers = flexconvs(model)
    return {
        "penalty": name,
        "loss": loss,
        "bound": max(max_frequency(layer).max().item() for layer in layers),
        "bound_without_mask": max(max_frequency(layer, mask=False).max().item() for layer in layers),
        "measured": max(max(measured_bandwidth(layer, oversample=OVERSAMPLE)) for layer in layers),
        "beyond": max(max(energy_beyond(layer, [4.0, 4.0])) for layer in layers),
        "error": 100 * max(resolution_error(layer, 2) for layer in layers),
        "error_hard": 100 * max(resolution_error(layer, 2, crop="hard") for layer in layers),
        "sigma": min(layer.mask.sigma.abs().min().item() for layer in layers if layer.mask is not None),
    }


def show_training(rows: Sequence[Row]) -> None:
    """Print one line per penalty; every column shows the worst of the three layers."""
    print("\n### Three layers of 17×17 taps (Nyquist 4 cycles per unit) after 200 steps; the worst layer per column\n")
    print("| penalty | loss / variance | bound | without mask | 99 % | energy above 4 | least σ | error ×2, % | hard |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        loss = "–" if row["loss"] is None else f"{row['loss']:.2f}"
        print(
            f"| {row['penalty']} | {loss} | {row['bound']:.1f} | {row['bound_without_mask']:.1f} | "
            f"{row['measured']:.1f} | {row['beyond']:.1e} | {row['sigma']:.2f} | {row['error']:.2g} | "
            f"{row['error_hard']:.2g} |"
        )


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # many small operations, which threads slow down
    content: dict[str, object] = {"machine": machine(torch.device("cpu"))}
    print(content["machine"])
    parts: dict[str, tuple[Callable[[], list[Row]], Callable[[Sequence[Row]], None]]] = {
        "bounds": (bench_bounds, show_bounds),
        "resolution": (bench_resolution, show_resolution),
        "cost": (bench_cost, show_cost),
        "training": (bench_training, show_training),
    }
    for name, (bench, show) in parts.items():
        rows = bench()
        show(rows)
        sys.stdout.flush()
        content[name] = rows
    if arguments.json:
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
