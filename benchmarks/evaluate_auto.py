"""Evaluate `algorithm="auto"` on logged times: how much slower is the selected algorithm than the best one?

    python -m benchmarks.evaluate_auto [--worst N] [--folds N]

Reads the logs of `benchmarks.calibrate` in results/bench and prints one row per device, precision, mode, kind of
convolution and set of shapes: those of the fit, and held-out ones that no fit uses. "within 1.1" is the share of shapes
for which the selected algorithm takes at most 1.1 times as long as the best measured one. Shapes for which the selected
algorithm was not measured count as misses and are listed in the column "unknown". Selections are those of captured and
compiled code, which does not count the time of the host. `--worst` lists the worst selections.

`--folds` is for changes of the cost model, for which held-out shapes must not be used. It evaluates the model by
cross-validation in place of the package: the shapes of the fit are divided into N parts at random, and selections for
one part are made by a fit to the others.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.calibrate import read_samples
from benchmarks.fit_cost_model import TOLERANCE, Sample, fit_calibration
from flexconv.ops._cost_model import Problem
from flexconv.ops._select import fastest_algorithm, select_for

LOGS = {
    "cuda": ("calibrate_cuda.jsonl", "calibrate_depthwise_cuda.jsonl", "held_out_cuda.jsonl"),
    "cpu": ("calibrate_cpu.jsonl", "held_out_cpu.jsonl"),
}
SETS = {"fit": False, "held out": True}
KINDS = ("dense", "grouped", "depthwise")


class Selection(NamedTuple):
    """A measured convolution and the algorithm that "auto" selects for it."""

    sample: Sample
    name: str

    @property
    def slowdown(self) -> float:
        """The time of the selected algorithm relative to the best one; infinite if it was not measured."""
        return self.sample.slowdown(self.name)


class Row(NamedTuple):
    """How good the selections for some shapes are."""

    shapes: int
    within: float
    mean: float
    worst: float
    unknown: int


def kind_of(problem: Problem) -> str:
    """Return "dense", "grouped" or "depthwise"."""
    if problem.geometry.groups == 1:
        return "dense"
    return "depthwise" if problem.weight[1] == 1 else "grouped"


def summarize(selections: Iterable[Selection]) -> Row:
    """Return the number of shapes, the share within `TOLERANCE`, and the geometric mean and the worst slowdown."""
    slowdowns = [each.slowdown for each in selections]
    known = [slowdown for slowdown in slowdowns if slowdown < math.inf]
    mean = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
    within = sum(slowdown <= TOLERANCE for slowdown in slowdowns) / len(slowdowns)
    return Row(len(slowdowns), within, mean, max(known, default=math.nan), len(slowdowns) - len(known))


def evaluate(folder: Path) -> dict[tuple[str, ...], list[Selection]]:
    """Return the selections by device, set of shapes, precision, mode and kind."""
    found = defaultdict(list)
    for (device, names), (of, held_out) in itertools.product(LOGS.items(), SETS.items()):
        for (precision, training), samples in _samples(folder, names, held_out=held_out):
            for sample in samples:
                key = device, of, precision, "training" if training else "inference", kind_of(sample.problem)
                found[key].append(Selection(sample, select_for(sample.problem, training)))
    return dict(found)


def cross_validate(folder: Path, folds: int, seed: int = 0) -> dict[tuple[str, ...], list[Selection]]:
    """Return the selections for all shapes of the fits, each by a fit to the other parts, with keys as `evaluate`."""
    found = defaultdict(list)
    for device, names in LOGS.items():
        modes = _samples(folder, names, held_out=False)
        shapes = sorted({_shape(sample) for _, samples in modes for sample in samples})
        random.Random(seed).shuffle(shapes)
        part_of = {shape: number % folds for number, shape in enumerate(shapes)}
        for ((precision, training), samples), part in itertools.product(modes, range(folds)):
            calibration = fit_calibration([sample for sample in samples if part_of[_shape(sample)] != part])
            for sample in samples:
                if part_of[_shape(sample)] == part:
                    mode = "training" if training else "inference"
                    key = device, "cross-validation", precision, mode, kind_of(sample.problem)
                    found[key].append(Selection(sample, fastest_algorithm(calibration, sample.problem)))
    return dict(found)


def _samples(folder: Path, names: Iterable[str], *, held_out: bool) -> list[tuple[tuple[str, bool], list[Sample]]]:
    """Return the logged measurements by precision and mode."""
    lines = [line for name in names if (folder / name).exists() for line in (folder / name).read_text().splitlines()]
    return sorted(read_samples(lines, held_out=held_out).items())


def _shape(sample: Sample) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sample.problem.x, sample.problem.weight


def report(found: dict[tuple[str, ...], list[Selection]], worst: int = 0) -> str:
    """Return the table."""
    lines = [f"{'device, shapes, precision, mode, kind':48} shapes  within {TOLERANCE}   mean   worst  unknown"]

    def add(title: str, selections: list[Selection]) -> None:
        row = summarize(selections)
        lines.append(f"{title:48} {row.shapes:6} {row.within:11.1%} {row.mean:6.3f} {row.worst:7.2f} {row.unknown:8}")
        for each in sorted(selections, key=lambda each: -each.slowdown)[:worst]:
            if each.slowdown > TOLERANCE:
                shape = "×".join(map(str, each.sample.problem.x)), "×".join(map(str, each.sample.problem.weight))
                times = ", ".join(f"{key} {1e-6 * time:.4g}" for key, time in each.sample.times.items())
                lines.append(f"    {each.slowdown:5.2f}  {shape[0]} * {shape[1]}: {each.name} of {times} ms")

    for key, selections in found.items():
        add(", ".join(key), selections)
    for device, of in dict.fromkeys((key[0], key[1]) for key in found):
        for kind in (*KINDS, ""):
            wanted = [each for key, each in found.items() if key[:2] == (device, of) and kind in ("", key[-1])]
            if wanted:
                title = f"{device}, {of}, all modes" + (f", {kind}" if kind else "")
                selections = [*itertools.chain(*wanted)]
                shapes = {_shape(each.sample) for each in selections}
                add(f"{title} ({len(shapes)} shapes)", selections)
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=Path("results/bench"))
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list the N worst selections of each row")
    parser.add_argument("--folds", type=int, metavar="N", help="evaluate the model by cross-validation with N parts")
    arguments = parser.parse_args()
    found = cross_validate(arguments.logs, arguments.folds) if arguments.folds else evaluate(arguments.logs)
    print(report(found, arguments.worst))


if __name__ == "__main__":
    main()
