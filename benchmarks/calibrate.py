"""Calibrate `algorithm="auto"`: time every algorithm for many shapes and fit the cost model to the times.

    cd results/bench
    python -m benchmarks.calibrate measure cuda calibrate_cuda.jsonl                       (100 seconds; --seconds)
    python -m benchmarks.calibrate measure cuda calibrate_depthwise_cuda.jsonl --shapes depthwise --seconds 300
    python -m benchmarks.calibrate measure cuda held_out_cuda.jsonl --shapes held-out
    python -m benchmarks.calibrate fit calibrate_cuda.jsonl calibrate_depthwise_cuda.jsonl --check held_out_cuda.jsonl

With `--out src/flexconv/ops/_calibration_cuda.py` (from the root of the repository), the last one writes the module.
Use `cpu` in place of `cuda` to calibrate for CPUs (10 minutes on an idle machine). `measure` writes one line of JSON
per shape, precision and mode, and starts with the shapes of `flexconv bench` and of the networks. On a GPU it times
replayed CUDA graphs, which exclude the overhead of the host. `fit` also reports how good the selections are, for the
shapes of the fit and for those of `--check`, which it does not use. `--smoke` measures tiny shapes on any machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import torch

from benchmarks.fit_cost_model import Sample, fit_calibration, module_text, summary
from flexconv import ops
from flexconv.bench import measure
from flexconv.bench.ceilings import DTYPES
from flexconv.bench.layers import SHAPES as LAYERS
from flexconv.bench.ops import GPU_CASES
from flexconv.bench.timing import all_in_training
from flexconv.ops import _calibration_cuda
from flexconv.ops._cost_model import Calibration, Problem, estimate_times
from flexconv.ops._geometry import Geometry, resolve_padding

MAX_MULTIPLICATIONS = 1e10  # of a direct convolution on a CPU (about a second on two cores)
MAX_MILLISECONDS = 50.0  # estimated time on a GPU beyond which an algorithm is not measured
PRECISIONS = {"fp32": "full", "bf16": "half"}

Timer = Callable[[dict[str, Callable[[], object]], torch.device], dict[str, float]]


class Shape(NamedTuple):
    """A convolution. `out` is the number of output channels if it differs from that of input channels."""

    dims: int
    batch: int
    channels: int
    size: int
    taps: int
    groups: int = 1
    out: int | None = None

    def problem(self, device: str, precision: str) -> Problem:
        """Return the problem: causal for sequences, centered for images and volumes."""
        ones = (1,) * self.dims
        weight = (self.out or self.channels, self.channels // self.groups, *(self.taps,) * self.dims)
        pads = resolve_padding("causal" if self.dims == 1 else "same", weight[2:], ones)
        x = self.batch, self.channels, *(self.size,) * self.dims
        return Problem(device, precision, x, weight, Geometry(ones, pads, ones, self.groups))


def sweep(device: str) -> list[Shape]:
    """Return shapes from tiny to large, dense and depthwise, around the sizes where the fastest algorithm changes."""
    if device == "cpu":
        return [*cpu_shapes()]
    others = [*gpu_shapes()]
    random.Random(0).shuffle(others)  # if time runs out, all kinds of shapes have been measured
    return [*dict.fromkeys([*benchmark_shapes(), *others])]


def cpu_shapes() -> Iterator[Shape]:
    """Yield all combinations that do not take too long."""
    one = itertools.product((1, 8), (16, 48), (128, 784, 4096, 16000), (5, 17, 65, 196, 784, 4000))
    two = itertools.product((1, 16), (8, 24, 48), (16, 32, 96), (3, 5, 9, 17, 33, 65))
    three = itertools.product((2,), (8,), (16, 32), (3, 7, 15))
    for dims, cases in ((1, one), (2, two), (3, three)):
        for batch, channels, size, taps in cases:
            for groups in (1, channels):
                macs = batch * channels**2 / groups * (size * taps) ** dims
                if taps <= size + 1 and macs < MAX_MULTIPLICATIONS:
                    yield Shape(dims, batch, channels, size, taps, groups)


def benchmark_shapes() -> Iterator[Shape]:
    """Yield the shapes of `flexconv bench`: convolutions, layers, networks with small and with full masks."""
    for case in itertools.chain(*GPU_CASES):
        yield Shape(len(case.size), case.batch, case.channels, case.size[0], case.taps)
    taps_of = {
        32: (5, 33),
        1024: (83, 1024),
        16000: (1288, 16000),
    }  # taps by size: for a mask of σ = 0.075, and for a full one
    for batch, channels, size in LAYERS["cuda"]:
        for taps in taps_of[size[0]]:
            yield Shape(len(size), batch, channels, size[0], taps)
    pairs = (3, 24), (24, 24), (24, 36), (36, 36), (36, 48), (48, 48)
    for batch, taps, (channels, out) in itertools.product((64, 512), taps_of[32], pairs):
        yield Shape(2, batch, channels, 32, taps, out=out if out != channels else None)
    for batch, size, inputs in ((64, 1024, 3), (32, 16000, 1)):
        for taps in taps_of[size]:
            yield Shape(1, batch, inputs, size, taps, out=30)
            yield Shape(1, batch, 30, size, taps)


def gpu_shapes() -> Iterator[Shape]:
    """Yield shapes around those of the benchmark, depthwise convolutions and volumes."""
    grids = [  # dims, batch, channels, size, taps
        (2, (16, 128, 256), (24, 48, 96), (32,), (3, 7, 13, 21, 33)),
        (2, (512,), (24, 36), (32,), (9, 17, 25)),
        (2, (64,), (3, 24, 96), (32,), (3, 7, 13, 29)),
        (2, (16, 64), (24, 48), (64,), (3, 5, 9, 17, 33, 65)),
        (2, (16,), (16, 36), (128,), (3, 7, 17, 33, 65, 129)),
        (1, (16, 64), (30,), (182,), (9, 45, 182)),
        (1, (64,), (1, 30, 64), (784, 1024), (9, 17, 33, 128, 512)),
        (1, (16, 32), (16, 64), (4096,), (9, 64, 256, 1024, 4096)),
        (1, (16, 32), (16, 30), (16000,), (9, 33, 500, 4000)),
        (3, (2, 8), (8, 24), (16,), (3, 7, 15)),
        (2, (1,), (24,), (32, 96), (3, 9, 17, 33)),
        (1, (1, 8), (16,), (1024, 16000), (9, 65, 784)),
    ]
    for dims, *axes in grids:
        for batch, channels, size, taps in itertools.product(*axes):
            yield Shape(dims, batch, channels, size, taps)
    depthwise = [
        (2, 64, 48, 32, (3, 5, 9, 17, 33)),
        (2, 16, 24, 32, (3, 7, 13, 21, 33)),
        (2, 64, 96, 64, (3, 7, 15, 31)),
        (2, 16, 48, 96, (5, 13, 49)),
        (1, 64, 64, 1024, (3, 9, 64, 256, 1024)),
        (1, 16, 64, 4096, (5, 9, 64, 1024)),
        (1, 16, 32, 16000, (5, 9, 125, 2000, 16000)),
        (3, 8, 16, 32, (3, 7, 15)),
    ]
    for dims, batch, channels, size, each in depthwise:
        for taps in each:
            yield Shape(dims, batch, channels, size, taps, groups=channels)


def depthwise_shapes() -> Iterator[Shape]:
    """Yield depthwise convolutions, from those of networks for images to long sequences, and those of `gpu_shapes`."""
    grids = [  # dims, batch, channels, size, taps
        (1, (64,), (140, 768), (1024,), (5, 33, 129, 513, 1024)),
        (1, (16,), (140,), (784, 1024), (9, 65, 784)),
        (1, (64,), (256,), (4096,), (9, 129, 1025, 4096)),
        (1, (16,), (256,), (16384,), (33, 257, 2049, 16384)),
        (1, (1, 4), (140,), (1024, 16000), (65, 1024)),
        (1, (64,), (768,), (2048, 4096), (129, 513, 1024, 4096)),
        (1, (16,), (768,), (8192, 16384), (257, 1025, 4097, 16384)),
        (1, (4, 16), (96,), (3000, 10000, 32768), (33, 500, 3000)),
        (2, (64,), (96,), (32,), (3, 5, 9, 17, 33)),
        (2, (64,), (384,), (14,), (3, 7, 13)),
        (2, (64,), (384,), (28, 56), (3, 7, 13, 31)),
        (2, (16,), (48,), (64, 96), (3, 7, 15, 31, 63)),
        (2, (1, 4), (96,), (32, 96), (5, 17, 33)),
        (2, (16,), (64,), (7, 20, 33), (3, 7)),
        (3, (2, 8), (16, 48), (16, 32), (3, 7, 15)),
    ]
    for dims, *axes in grids:
        for batch, channels, size, taps in itertools.product(*axes):
            if taps <= size + 1:
                yield Shape(dims, batch, channels, size, taps, groups=channels)
    yield from (shape for shape in gpu_shapes() if shape.groups > 1)


def held_out_shapes(number: int = 120) -> list[Shape]:
    """Return random shapes, half of them depthwise, which no fit uses."""
    rng = random.Random(1)
    shapes: list[Shape] = []
    while len(shapes) < number:
        dims, depthwise = rng.choice((1, 1, 2, 2, 2, 3)), len(shapes) % 2 == 0
        batch = rng.choice((1, 4, 8, 16, 32, 64, 128))
        channels = rng.choice((32, 48, 64, 96, 192, 384) if depthwise else (16, 24, 30, 32, 48, 64))
        size = round(2 ** rng.uniform(*{1: (6, 14), 2: (3, 6.6), 3: (3, 5)}[dims]))
        taps = min(size, round(2 ** rng.uniform(1, math.log2(size)))) | 1
        elements = batch * channels * size**dims
        work = elements * taps**dims * (1 if depthwise else channels)
        if 2**14 <= elements <= 2**27 and work <= 2**41:
            shapes.append(Shape(dims, batch, channels, size, taps, groups=channels if depthwise else 1))
    return shapes


SMOKE = [Shape(1, 2, 3, 24, 5), Shape(1, 2, 4, 24, 24, 4), Shape(2, 2, 3, 8, 3, out=4), Shape(2, 2, 8, 8, 7)]


def time_graphs(calls: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Return milliseconds of each call, on a GPU as a replayed CUDA graph. Calls that fail are left out."""
    seconds = 0.01 if device.type == "cuda" else 0.1
    return {
        name: timing.ms for name, timing in measure(all_in_training(calls, device), device, seconds=seconds).items()
    }


def measure_all(
    device: torch.device, shapes: Iterable[Shape], sink: IO[str], *, seconds: float, timer: Timer = time_graphs
) -> None:
    """Write one line of JSON per shape, precision and mode, with milliseconds of each algorithm, until time is up."""
    end = time.perf_counter() + seconds
    for count, shape in enumerate(shapes):
        if time.perf_counter() > end:
            print(f"time is up after {count} shapes")
            return
        for precision, training in itertools.product(PRECISIONS if device.type == "cuda" else ["fp32"], (False, True)):
            times = timer(_calls(shape, device, precision, training=training), device)
            mode = {"device": device.type, "precision": precision, "training": training}
            sink.write(json.dumps({**shape._asdict(), **mode, **times}) + "\n")
            sink.flush()
            found = ", ".join(f"{name} {ms:.4g}" for name, ms in times.items())
            print(*shape, precision, "training" if training else "inference", found, flush=True)


def _calls(shape: Shape, device: torch.device, precision: str, *, training: bool) -> dict[str, Callable[[], object]]:
    """Return what to time. Long calls are left out, and FFTs are timed once because they always run in float32."""
    problem, cpu = shape.problem(device.type, PRECISIONS[precision]), device.type == "cpu"
    names = ["direct", "fft"] if cpu else ["direct", "fft", "dft"] if precision == "fp32" else ["direct", "dft"]
    if not cpu and shape.groups == shape.channels > 1:
        names += ["toeplitz", "monarch"] if shape.dims < 3 else ["toeplitz"]
    if not cpu:
        calibration = Calibration(_calibration_cuda.COEFFICIENTS[problem.precision, training], {})
        times = estimate_times(calibration, problem)
        names = [name for name in names if times.get(name, 0.0) < 1e6 * MAX_MILLISECONDS]
    x, weight = (
        random_tensor(each, device, DTYPES[precision]).requires_grad_(training) for each in (problem.x, problem.weight)
    )
    conv = partial(getattr(ops, f"conv{shape.dims}d"), x, weight, padding=problem.geometry.pads, groups=shape.groups)
    return {name: partial(_run, partial(conv, algorithm=name)) for name in names}


def random_tensor(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return normally distributed values of unit variance."""
    return torch.randn(shape, device=device, dtype=dtype)


def _run(conv: partial[torch.Tensor]) -> object:
    y = conv()
    return torch.autograd.grad(y, conv.args, y.detach()) if y.requires_grad else y


def read_samples(lines: Iterable[str]) -> dict[tuple[str, bool], list[Sample]]:
    """Return measurements by precision and mode. Those of FFTs in float32 are used for half precision, too.

    If a shape was measured several times, the last measurement counts. Depthwise convolutions on a GPU without a
    measurement of "toeplitz" are left out. "monarch" was measured for some of them only.
    """
    last = {}
    for line in lines:
        row = json.loads(line)
        last[*(row.get(field) for field in Shape._fields), row.get("precision"), row["training"]] = row
    rows = [row for row in last.values() if row["device"] == "cpu" or row["groups"] == 1 or "toeplitz" in row]
    known = [(row, Shape(**{field: row[field] for field in Shape._fields if field in row})) for row in rows]
    ffts = {(shape, row["training"]): row["fft"] for row, shape in known if "fft" in row}
    samples = defaultdict(list)
    for row, shape in known:
        times = {name: 1e6 * row[name] for name in ("direct", "fft", "dft", "toeplitz", "monarch") if name in row}
        if (shape, row["training"]) in ffts:
            times.setdefault("fft", 1e6 * ffts[shape, row["training"]])
        precision = PRECISIONS[row.get("precision", "fp32")]
        if times:
            samples[precision, row["training"]].append(Sample(shape.problem(row["device"], precision), times))
    return dict(samples)


def main() -> None:
    """Measure or fit."""
    parser = argparse.ArgumentParser(description="Calibrate the cost model of algorithm='auto'.")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("device", choices=("cpu", "cuda"))
    measuring.add_argument("file", type=Path)
    measuring.add_argument(
        "--seconds",
        type=float,
        help="start no new shape after this time (GPU: 100)",
    )
    measuring.add_argument("--shapes", choices=("all", "depthwise", "held-out"), default="all")
    measuring.add_argument("--smoke", action="store_true", help="measure tiny shapes, to test that everything runs")
    fitting = commands.add_parser("fit")
    fitting.add_argument("files", type=Path, nargs="+")
    fitting.add_argument("--check", type=Path, nargs="*", default=[], help="measurements that are not used for the fit")
    fitting.add_argument("--out", type=Path, help="file for the module (default: standard output)")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        device, limit = torch.device(arguments.device), 100.0 if arguments.device == "cuda" else float("inf")
        with arguments.file.open("w") as sink:
            named = {
                "all": partial(sweep, device.type),
                "depthwise": depthwise_shapes,
                "held-out": held_out_shapes,
            }
            shapes = SMOKE if arguments.smoke else [*named[arguments.shapes]()]
            measure_all(device, shapes, sink, seconds=arguments.seconds or limit)
        return
    samples, check = (
        read_samples(line for file in files for line in file.read_text().splitlines())
        for files in (arguments.files, arguments.check)
    )
    calibrations = {mode: fit_calibration(each) for mode, each in sorted(samples.items())}
    text = module_text(calibrations, [file.as_posix() for file in arguments.files])
    if arguments.out is None:
        print(text, end="")
    else:
        arguments.out.write_text(text)
    for mode, each in sorted(samples.items()):
        print(f"{mode[0]} precision, {'training' if mode[1] else 'inference'}", file=sys.stderr)
        print(summary(calibrations[mode], each), file=sys.stderr)
        if mode in check:
            print("  not used for the fit:", file=sys.stderr)
            print(summary(calibrations[mode], check[mode]), file=sys.stderr)


if __name__ == "__main__":
    main()
