"""Fit the constants of `algorithm="auto"`: time both algorithms over a sweep of shapes, fit, print.

python -m benchmarks.calibrate measure cpu > results/bench/calibrate_cpu.jsonl      (10 minutes, idle machine)
python -m benchmarks.calibrate fit results/bench/calibrate_*.jsonl                  (paste into ops/_select.py)
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import least_squares, nnls

from flexconv import ops
from flexconv.bench import measure
from flexconv.bench._ceilings import DTYPES
from flexconv.bench._timing import as_in_training
from flexconv.ops._geometry import Geometry, resolve_padding
from flexconv.ops._select import Rates, Work, kind, predict, work

LONGEST = 1e10  # multiplications of a direct convolution worth waiting for (a second or so on two cores)


class Shape(NamedTuple):
    """One convolution: dims, batch, channels, size, taps, groups."""

    dims: int
    batch: int
    channels: int
    size: int
    taps: int
    groups: int


def sweep(device: str) -> Iterator[Shape]:
    """Shapes from tiny to large, dense and depthwise, around where the algorithms cross."""
    scale = 8 if device == "cuda" else 1
    one = itertools.product((1, 8 * scale), (16, 48), (128, 784, 4096, 16000), (5, 17, 65, 196, 784, 4000))
    two = itertools.product((1, 16 * scale), (8, 24, 48), (16, 32, 96), (3, 5, 9, 17, 33, 65))
    three = itertools.product((2,), (8,), (16, 32), (3, 7, 15))
    for dims, cases in ((1, one), (2, two), (3, three)):
        for batch, channels, size, taps in cases:
            for groups in (1, channels):
                macs = batch * channels**2 / groups * (size * taps) ** dims
                if taps <= size + 1 and macs < LONGEST * (150 if device == "cuda" else 1):
                    yield Shape(dims, batch, channels, size, taps, groups)


def tensors(shape: Shape, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    """Random input and kernel of a shape, and its geometry."""
    x = torch.randn(shape.batch, shape.channels, *[shape.size] * shape.dims, device=device)
    weight = torch.randn(shape.channels, shape.channels // shape.groups, *[shape.taps] * shape.dims, device=device)
    ones = (1,) * shape.dims
    pads = resolve_padding("causal" if shape.dims == 1 else "same", weight.shape[2:], ones)
    return x, weight, Geometry(ones, pads, ones, shape.groups)


def measure_all(device: torch.device) -> None:
    """One line of JSON per shape, precision and mode: milliseconds of each algorithm, on a GPU as replayed graphs."""
    names, precisions, seconds = ("direct", "fft"), ("fp32",), 0.1
    if device.type == "cuda":
        names, precisions, seconds = ("direct", "fft", "dft"), ("fp32", "bf16"), 0.02
    for precision, training, shape in itertools.product(precisions, (False, True), sweep(device.type)):
        x, weight, geometry = tensors(shape, device)
        x, weight = (each.to(DTYPES[precision]).requires_grad_(training) for each in (x, weight))
        conv = partial(getattr(ops, f"conv{shape.dims}d"), x, weight, padding=geometry.pads, groups=shape.groups)
        calls = {name: as_in_training(partial(_run, partial(conv, algorithm=name)), device) for name in names}
        times = {name: each.ms for name, each in measure(calls, device, seconds=seconds).items()}
        row = {**shape._asdict(), "device": device.type, "precision": precision, "training": training, **times}
        print(json.dumps(row), flush=True)


def _run(conv: partial[torch.Tensor]) -> object:
    y = conv()
    return torch.autograd.grad(y, conv.args, y.detach()) if y.requires_grad else y


def fit_all(lines: Iterable[str]) -> None:
    """Print the table of constants, and the worst choices it leads to."""
    groups: dict[tuple[str, bool, str], list[tuple[Shape, Work, dict[str, float]]]] = defaultdict(list)
    for row in map(json.loads, lines):
        shape = Shape(*(row[field] for field in Shape._fields))
        x, weight, geometry = tensors(shape, "meta")
        amount = work(x.shape, weight.shape, geometry)
        times = {name: 1e6 * row[name] for name in ("direct", "fft")}
        groups[row["device"], row["training"], kind(weight.shape)].append((shape, amount, times))
    for key, rows in groups.items():
        rates = Rates(
            fit([(1.0, *amount.direct) for _, amount, _ in rows], [times["direct"] for _, _, times in rows]),
            fit([(1.0, *amount.fft) for _, amount, _ in rows], [times["fft"] for _, _, times in rows]),
        )
        guesses = [predict(rates, amount) for _, amount, _ in rows]
        regret = sorted(
            (times[min(guess, key=lambda name: guess[name])] / min(times.values()), tuple(shape))
            for guess, (shape, _, times) in zip(guesses, rows, strict=True)
        )
        good = sum(ratio <= 1.3 for ratio, _ in regret) / len(regret)
        print(f"    {key}: {rates},")
        print(f"    # {len(rows)} shapes, {good:.0%} within 1.3 of the best; worst {regret[-1][0]:.1f} {regret[-1][1]}")


def fit(units: list[tuple[float, ...]], nanoseconds: list[float]) -> tuple[float, ...]:
    """Rates ≥ 0 with the smallest squared error of log time, outliers counting less."""
    a, t = np.array(units), np.array(nanoseconds)
    start = np.maximum(nnls(a / t[:, None], np.ones(len(t)))[0], 1e-9 * t.mean() / a.mean(0))

    def error(log_rates: np.ndarray) -> np.ndarray:
        return np.log(a @ np.exp(log_rates)) - np.log(t)

    solution = np.exp(least_squares(error, np.log(start), loss="soft_l1", f_scale=0.2).x)
    share = solution * a.mean(0) / (a @ solution).mean()
    return tuple(float(f"{rate:.3g}") if part > 1e-4 else 0.0 for rate, part in zip(solution, share, strict=True))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", name]:
            measure_all(torch.device(name))
        case ["fit", *files] if files:
            fit_all(line for file in files for line in Path(file).read_text().splitlines())
        case _:
            sys.exit(__doc__)
