"""The measurements in results/bench as tables in Markdown, with what they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flexconv.bench import Ceilings, Report

from ._item import NOTHING, Grid
from ._page import markdown

# per cent at 16 → 32 samples, measured with the authors' code in 2D: W at init, W × 0.2, W × 0.2 without cropping
AUTHORS = {0.075: (14, 6.4, 2.2), 0.15: (4.8, 1.7, 1.1), 0.3: (2.4, 1.2, 0.6), 0.6: (1.8, 1.5, None)}

CPU_NOTES = """\
- A dash: not measured, because the next smaller kernel already took more than 0.7 seconds.
- auto / fastest: `auto` runs the algorithm with the lowest estimate. If that is the fastest one, a ratio other than 1
  is the difference between two timings of the same algorithm. Apart from that, the worst choice between direct and FFT
  costs a factor of 1.11. Matrix products are not chosen on a CPU, although they would be 1.4 times as fast on the two
  largest kernels at 96×96 with gradients.
- Share of peak rate: the time that the same operations would take at the rates of a large product and a large copy,
  divided by the measured time. It can exceed 100 %, because small tensors stay in caches.
- The time of the authors' code, 947 ms, was measured on one core.
"""
OPS = """\
Milliseconds of forward and backward in a CUDA graph. {machine}; `flexconv bench ops`. There are as many output channels
as input channels. FFTs are always float32. Over all {count} rows of the file, `auto` takes at most {worst:.2f} times as
long as the fastest algorithm. The file also has forward passes, memory, shares of the peak rate and times without a
graph.
"""
OPS_NOTES = """\
The cost model is fitted to 236 other shapes (`bench/calibrate_cuda.jsonl` and `bench/calibrate_depthwise_cuda.jsonl`).
`python -m benchmarks.calibrate fit` prints how far its choice is from the fastest algorithm.
"""
STEP_NOTES = """\
At 16,000 samples and with masks that cover the grid, a step has to move about 1.9 GB for each of eleven convolutions:
signals, spectra, gains and their gradients, each read or written once per pass. That takes 5 ms at the speed of copies,
and the kernels take 1 ms. The rest is in the two products of each transform, which reach 70 to 75 % of the speed of
copies (`python -m benchmarks.profile_step`, `bench/tune_h200.txt`).
"""
BOUNDS = """\
The bound divided by the bandwidth that holds 99 % of the energy, the mean of six random MAGNets with a mask of
σ = 0.25. W is as initialized or scaled. In brackets: the largest share of the energy beyond the bound.
"""
BOUNDS_NOTES = """\
The last kernel is one Gabor filter with W = (−57.7, 14.1) and γ = (5.88, 5.70). The energy beyond its bound of h = 2 is
erfc(2)/2 = 0.2 %, up to one bin of the transform. This row shows that the paper's formula is not a bound. The other
rows show how loose a bound over all paths through a network is: hardly any energy is in the highest path.
"""
COST = """\
Forward and backward for 14 FlexConv2d with 24 to 48 channels on 32×32 images, batch 8, one CPU thread. With larger
batches the milliseconds are the same and the share is smaller.
"""
RESOLUTION = """\
The difference between the outputs of 17 taps and of 33 taps on twice as many samples, in per cent, the mean of six
untrained layers on a smooth random input. Columns: hard cropping, the same with a lower threshold or none at the new
resolution, a taper, and layers that are never cropped. The smallest value of a cropped layer is bold. The last column
was measured with the authors' code on another smooth image.
"""
RESOLUTION_NOTES = """\
If W is as initialized and masks are small, the kernel itself is aliased at 17 taps and no cropping helps: that is what
the penalty is for. For band-limited kernels (W × 0.2), the taper is best in every row. On a causal axis, the kernel
ends where the mask is largest, and the weight of that tap is most of the error.
"""


# --- speed ------------------------------------------------------------------------------------------------------------


def _report(content: Mapping[str, Any]) -> str:
    """The tables of `flexconv bench`."""
    return Report(**{**content, "ceilings": Ceilings(**content["ceilings"])}).markdown()


def _cpu(content: dict[str, Any]) -> list[str]:
    for row in content["tables"]["layers"]:
        row.setdefault("eager_ms", row["ms"]["flexconv"])  # not in this older file; a CPU has no CUDA graphs
    return [
        "## Speed on a CPU",
        "",
        _report(content),
        CPU_NOTES,
    ]


def _ops(content: dict[str, Any]) -> list[str]:
    """Forward and backward of all shapes, fp32 and bf16 side by side."""
    rows: dict[tuple[str, str], dict[tuple[str, bool], dict[str, float]]] = {}
    for row in content["tables"]["ops"]:
        case = row["case"]
        shape = f"{case['batch']} × {case['channels']} × {'×'.join(map(str, case['size']))}"
        taps = "×".join([str(case["taps"])] * len(case["size"]))
        rows.setdefault((shape, taps), {})[row["precision"], row["training"]] = row["ms"]
    columns = {
        "fp32: cuDNN": ("fp32", True, "torch"),
        "fp32: fft": ("fp32", True, "fft"),
        "fp32: dft": ("fp32", True, "dft"),
        "fp32: auto": ("fp32", True, "auto"),
        "bf16: cuDNN": ("bf16", True, "torch"),
        "bf16: dft": ("bf16", True, "dft"),
        "bf16: auto": ("bf16", True, "auto"),
        "bf16, forward: cuDNN": ("bf16", False, "torch"),
        "bf16, forward: auto": ("bf16", False, "auto"),
    }
    table = [
        (*key, *(_ms(found.get((precision, training), {}).get(name)) for precision, training, name in columns.values()))
        for key, found in rows.items()
    ]
    worst = max(row["auto_over_best"] for row in content["tables"]["ops"])
    return [
        "## Convolutions on a GPU",
        "",
        OPS.format(machine=content["machine"], count=len(content["tables"]["ops"]), worst=worst),
        *markdown(Grid(("batch × channels × size", "taps", *columns), tuple(table), right=(*columns,))),
        OPS_NOTES,
    ]


def _layers(content: dict[str, Any]) -> list[str]:
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in content["tables"]["layers"]:
        case = row["case"]
        shape = f"{case['batch']} × {case['channels']} × {'×'.join(map(str, case['size']))}"
        rows.setdefault((shape, "×".join(map(str, row["extent"]))), {})[row["precision"]] = row
    titles = ("fp32: FlexConv", "fp32: torch.nn.Conv", "bf16: FlexConv", "bf16: torch.nn.Conv", "MiB, bf16")
    table = [
        (
            *key,
            *(_ms(found[p]["ms"].get(name)) for p in ("fp32", "bf16") for name in ("flexconv", "torch")),
            f"{found['bf16']['peak_mib']:.0f}",
            f"{found['bf16']['share_of_ceilings']:.0%}",
        )
        for key, found in rows.items()
    ]
    titles = ("batch × channels × size", "kernel", *titles, "share of peak rate, bf16")
    return [
        "## Layers on a GPU",
        "",
        "Milliseconds of forward and backward including the kernel generator, in a CUDA graph.",
        f"{content['machine']}; `{content['command']}`.",
        "",
        *markdown(Grid(titles, tuple(table), right=titles[2:])),
    ]


def _steps(content: dict[str, Any]) -> list[str]:
    table = [
        (
            row["case"],
            "whole grid" if row["full"] else "initial",
            _ms(row["ms"]),
            f"{row['peak_mib']:,.0f}",
            NOTHING if row["authors"] is None else f"{row['authors']:,.1f}",
        )
        for row in content["tables"]["steps"]
    ]
    titles = ("case", "masks", "ms per step", "MiB", "authors' code in fp32, ms")
    return [
        "## Training steps on a GPU",
        "",
        f"`engine: graph` in bf16. {content['machine']}; `{content['command']}`. Initial masks have σ = 0.075.",
        "",
        *markdown(Grid(titles, tuple(table), right=titles[2:])),
        STEP_NOTES,
    ]


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


# --- frequencies ------------------------------------------------------------------------------------------------------


def _alias_free(content: dict[str, Any]) -> list[str]:
    return [
        "## Frequency bounds and resolution",
        "",
        f"{content['machine']}; `python -m benchmarks.alias_free`.",
        "",
        *_bounds(content["bounds"]),
        *_cost(content["cost"]),
        *_resolution(content["resolution"]),
    ]


def _bounds(rows: list[dict[str, Any]]) -> list[str]:
    formulas = ("exact", "authors", "paper")
    table = [
        (
            row["setup"],
            f"× {row['w_scale']:g}",
            f"{row['measured']:.1f}",
            *(f"{row[f'{formula}_tightness']:.2f} ({row[f'{formula}_beyond']:.0e})" for formula in formulas),
        )
        for row in rows
    ]
    return [
        "### How tight are the bounds?",
        "",
        BOUNDS,
        *markdown(Grid(("kernel", "W", "99 %", *formulas), tuple(table))),
        BOUNDS_NOTES,
    ]


def _cost(rows: list[dict[str, Any]]) -> list[str]:
    table = [
        (
            row["penalty"],
            f"{row['ms']:.1f}",
            "(the step itself)" if row["share"] is None else f"{100 * row['share']:.1f} %",
        )
        for row in rows
    ]
    return [
        "### What does the penalty cost?",
        "",
        COST,
        *markdown(Grid(("penalty", "ms", "share of a training step"), tuple(table), right=("ms",))),
    ]


def _resolution(rows: list[dict[str, Any]]) -> list[str]:
    procedures = ("hard", "0.05", "0.02", "None", "taper", "uncropped")
    table = []
    for row in rows:
        least = min(row[name] for name in procedures if name != "uncropped")
        cells = [_percent(row[name], bold=row[name] == least and name != "uncropped") for name in procedures]
        table.append((row["setup"], f"{row['sigma']}", f"× {row['w_scale']:g}", *cells, _authors(row)))
    titles = ("", "σ", "W", "hard", "0.05", "0.02", "no crop at 33", "taper", "never cropped", "authors' code")
    return [
        "### How much does an output change at twice the resolution?",
        "",
        RESOLUTION,
        *markdown(Grid(titles, tuple(table))),
        RESOLUTION_NOTES,
    ]


def _percent(value: float, *, bold: bool) -> str:
    text = f"{value:.1f}" if value >= 1 else f"{value:.2g}"
    return f"**{text}**" if bold else text


def _authors(row: Mapping[str, Any]) -> str:
    if row["setup"] != "2D":
        return NOTHING
    initial, scaled, uncropped = AUTHORS[row["sigma"]]
    if row["w_scale"] == 1.0:
        return f"{initial}"
    return f"{scaled}" if uncropped is None else f"{scaled}, uncropped {uncropped}"


SECTIONS: dict[str, Callable[[dict[str, Any]], list[str]]] = {  # file in results/bench → section
    "cpu.json": _cpu,
    "ops_h200.json": _ops,
    "layers_h200.json": _layers,
    "step_h200.json": _steps,
    "alias_free.json": _alias_free,
}
