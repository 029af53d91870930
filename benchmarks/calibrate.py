"""Calibrate `algorithm="auto"`: time every algorithm for many shapes and fit the cost model to the times.

    cd results/bench
    python -m benchmarks.calibrate measure cuda calibrate_cuda.jsonl                       (100 seconds; --seconds)
    python -m benchmarks.calibrate measure cuda calibrate_depthwise_cuda.jsonl --shapes random depthwise grouped
    python -m benchmarks.calibrate measure cuda held_out_cuda.jsonl --shapes held-out
    python -m benchmarks.calibrate fit calibrate_cuda.jsonl calibrate_depthwise_cuda.jsonl held_out_cuda.jsonl

With `--out src/flexconv/ops/_calibration_cuda.py` (from the root of the repository), the last one writes the module.
Use `cpu` in place of `cuda` to calibrate for CPUs (10 minutes on an idle machine). `measure` adds one line of JSON per
shape, precision and mode to the file, without what is there already, so that it can be interrupted and continued. It
starts with the shapes of `flexconv bench` and of the networks. On a GPU it times replayed CUDA graphs, which exclude
the overhead of the host. `fit` does not use the shapes of `held_out_shapes`. It also reports how good the selections
are, for the shapes of the fit and for those that are held out. `python -m benchmarks.evaluate_auto` reports on the
selections of the package as it is. `--smoke` measures tiny shapes on any machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import IO

import torch

from benchmarks.calibration_shapes import (
    SMOKE,
    Shape,
    depthwise_shapes,
    grouped_shapes,
    held_out_shapes,
    more_shapes,
    sweep,
)
from benchmarks.fit_cost_model import Sample, fit_calibration, module_text, summary
from flexconv import ops
from flexconv.bench import measure
from flexconv.bench.ceilings import DTYPES
from flexconv.bench.timing import _time_calls as time_calls
from flexconv.bench.timing import all_in_training
from flexconv.ops import _calibration_cuda
from flexconv.ops._cost_model import OPERATION_COUNTS, Calibration, estimate_times

MAX_MILLISECONDS = 50.0  # estimated time on a GPU beyond which an algorithm is not measured
CLEARLY_SLOWER = 3.0
BLOCKS, BLOCK_MS, MAX_REPLAYS = 3, 3.0, 30  # replays are timed in blocks, of which the median counts
PRECISIONS = {"fp32": "full", "bf16": "half"}

Mode = tuple[Shape, str, bool]  # a convolution, its precision, and whether gradients are computed
Timer = Callable[[dict[str, Callable[[], object]], torch.device], dict[str, float]]


def time_graphs(calls: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Return milliseconds of each call, on a GPU as a replayed CUDA graph. Calls that fail are left out.

    On a GPU, calls that take `CLEARLY_SLOWER` times as long as the fastest one are timed only twice.
    """
    ready = all_in_training(calls, device)
    if device.type == "cpu":
        return {name: timing.ms for name, timing in measure(ready, device, seconds=0.1).items()}
    times = {name: min(time_calls(call, device, 1) for _ in range(2)) for name, call in ready.items()}
    limit = CLEARLY_SLOWER * min(times.values(), default=0.0)
    for name, call in ready.items():
        if times[name] <= limit:
            number = max(1, min(MAX_REPLAYS, int(BLOCK_MS / times[name])))
            times[name] = statistics.median(time_calls(call, device, number) for _ in range(BLOCKS))
    return times


def measure_all(
    device: torch.device,
    shapes: Iterable[Shape],
    sink: IO[str],
    *,
    seconds: float,
    known: Mapping[Mode, Set[str]] | None = None,
    timer: Timer = time_graphs,
) -> None:
    """Write one line of JSON per shape, precision and mode, with milliseconds of each algorithm, until time is up.

    Algorithms in `known` are not measured again.
    """
    end = time.perf_counter() + seconds
    for count, shape in enumerate(shapes):
        for precision, training in modes(device.type):
            done = (known or {}).get((shape, precision, training), set())
            names = [name for name in algorithms(shape, device.type, precision, training=training) if name not in done]
            if not names:
                continue
            if time.perf_counter() > end:
                print(f"time is up after {count} shapes")
                return
            times = timer(_calls(shape, device, precision, names, training=training), device)
            mode = {"device": device.type, "precision": precision, "training": training}
            sink.write(json.dumps({**shape._asdict(), **mode, **times}) + "\n")
            sink.flush()
            found = ", ".join(f"{name} {ms:.4g}" for name, ms in times.items())
            print(*shape, precision, "training" if training else "inference", found, flush=True)


def modes(device: str) -> Iterable[tuple[str, bool]]:
    """Return all pairs of a precision and whether gradients are computed."""
    return itertools.product(PRECISIONS if device == "cuda" else ["fp32"], (False, True))


def algorithms(shape: Shape, device: str, precision: str, *, training: bool) -> list[str]:
    """Return what to time. Long calls are left out, and FFTs are timed once because they always run in float32."""
    problem, cpu = shape.problem(device, PRECISIONS[precision]), device == "cpu"
    names = ["direct", "fft"] if cpu else ["direct", "fft", "dft"] if precision == "fp32" else ["direct", "dft"]
    if cpu:
        return names
    if shape.groups == shape.channels > 1:
        names += [name for name in ("toeplitz", "monarch") if OPERATION_COUNTS[name](problem) is not None]
    calibration = Calibration(_calibration_cuda.COEFFICIENTS[problem.precision, training], {})
    times = estimate_times(calibration, problem)
    return [name for name in names if times.get(name, 0.0) < 1e6 * MAX_MILLISECONDS]


def compile_all(device: torch.device, shapes: Sequence[Shape], known: Mapping[Mode, Set[str]], processes: int) -> None:
    """Compile the Triton kernels of all calls in several processes, which takes most of the time otherwise."""
    context = torch.multiprocessing.get_context("spawn")
    parts = [shapes[number::processes] for number in range(processes)]
    workers = [context.Process(target=_run_all, args=(device, part, known)) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _run_all(device: torch.device, shapes: Sequence[Shape], known: Mapping[Mode, Set[str]]) -> None:
    """Run each call that launches Triton kernels once, for one sample of the batch and a few channels."""
    for shape in shapes:
        few = min(shape.channels, 4)
        for precision, training in modes(device.type):
            done = known.get((shape, precision, training), set())
            names = [name for name in algorithms(shape, device.type, precision, training=training) if name not in done]
            small = shape._replace(channels=few, groups=few, batch=min(shape.batch, 64))
            triton = [name for name in names if name in ("toeplitz", "monarch")]
            if triton:
                for call in _calls(small, device, precision, triton, training=training).values():
                    call()


def _calls(
    shape: Shape, device: torch.device, precision: str, names: Iterable[str], *, training: bool
) -> dict[str, Callable[[], object]]:
    problem = shape.problem(device.type, PRECISIONS[precision])
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


def read_rows(lines: Iterable[str]) -> dict[Mode, dict[str, float]]:
    """Return milliseconds by algorithm for each shape, precision and mode. The last measurement counts."""
    rows: dict[Mode, dict[str, float]] = defaultdict(dict)
    for line in lines:
        row = json.loads(line)
        shape = Shape(**{field: row[field] for field in Shape._fields if field in row})
        times = {name: row[name] for name in OPERATION_COUNTS if name in row}
        rows[shape, row.get("precision", "fp32"), row["training"]].update(times)
    return dict(rows)


def read_samples(lines: Sequence[str], *, held_out: bool) -> dict[tuple[str, bool], list[Sample]]:
    """Return measurements by precision and mode, of the shapes that are held out or of all others.

    Those of FFTs in float32 are used for half precision, too.

    Depthwise convolutions on a GPU without a measurement of "toeplitz" are left out. "monarch" was measured for some of
    them only.
    """
    device = json.loads(lines[0])["device"] if lines else "cpu"
    rows, not_for_fits = read_rows(lines), {*held_out_shapes(device)}
    samples = defaultdict(list)
    for (shape, precision, training), row in rows.items():
        if (shape in not_for_fits) != held_out:
            continue
        if device == "cuda" and shape.groups == shape.channels > 1 and "toeplitz" not in row:
            continue
        times = {name: 1e6 * ms for name, ms in row.items()}
        in_full = rows.get((shape, "fp32", training), {})
        if "fft" in in_full:
            times.setdefault("fft", 1e6 * in_full["fft"])
        if times:
            problem = shape.problem(device, PRECISIONS[precision])
            samples[PRECISIONS[precision], training].append(Sample(problem, times))
    return dict(samples)


#: the shapes of a measurement by name; those that are held out are not for fits
SHAPES: dict[str, Callable[[str], Iterable[Shape]]] = {
    "all": sweep,
    "depthwise": lambda _: depthwise_shapes(),
    "grouped": lambda _: grouped_shapes(),
    "random": more_shapes,
    "held-out": held_out_shapes,
}


def _shapes(names: Iterable[str], device: str) -> Iterator[Shape]:
    return itertools.chain.from_iterable(SHAPES[name](device) for name in names)


def _lines(files: Iterable[Path]) -> list[str]:
    return [line for file in files for line in file.read_text().splitlines()]


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
    measuring.add_argument("--shapes", choices=tuple(SHAPES), nargs="+", default=["all"])
    measuring.add_argument("--known", type=Path, nargs="*", default=[], help="logs of what need not be measured again")
    measuring.add_argument("--compile", type=int, default=0, metavar="N", help="compile kernels in N processes first")
    measuring.add_argument("--smoke", action="store_true", help="measure tiny shapes, to test that everything runs")
    fitting = commands.add_parser("fit")
    fitting.add_argument("files", type=Path, nargs="+")
    fitting.add_argument("--out", type=Path, help="file for the module (default: standard output)")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        device, limit = torch.device(arguments.device), 100.0 if arguments.device == "cuda" else float("inf")
        shapes = SMOKE if arguments.smoke else [*dict.fromkeys(_shapes(arguments.shapes, device.type))]
        logs = [file for file in (*arguments.known, arguments.file) if file.exists()]
        known = {mode: {*times} for mode, times in read_rows(_lines(logs)).items()}
        if arguments.compile:
            begin = time.perf_counter()
            compile_all(device, shapes, known, arguments.compile)
            print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
        with arguments.file.open("a") as sink:
            measure_all(device, shapes, sink, seconds=arguments.seconds or limit, known=known)
        return
    samples, check = (read_samples(_lines(arguments.files), held_out=each) for each in (False, True))
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
