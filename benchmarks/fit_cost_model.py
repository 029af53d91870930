"""Fit the cost model of `algorithm="auto"` to measured times: coefficients, and overrides where they are not enough."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, nnls

from flexconv.ops._cost_model import OPERATION_COUNTS, Calibration, OperationCount, Problem
from flexconv.ops._select import fastest_algorithm, override_key

MIN_SAMPLES = 8  # measurements per fit of a regime; with fewer, similar regimes are added
TOLERANCE = 1.1  # a selected algorithm that takes longer than this times the best one needs an override
MIXINGS = {"dense", "grouped", "depthwise"}
REPORTED_LIMITS = (1.2, 1.3)
LINE_LENGTH = 120  # of generated modules


class Sample(NamedTuple):
    """A convolution and the measured nanoseconds of each algorithm."""

    problem: Problem
    times: dict[str, float]

    def slowdown(self, name: str) -> float:
        """Return the time of an algorithm relative to the fastest one, infinite if it was not measured."""
        return self.times.get(name, np.inf) / min(self.times.values())


def fit_calibration(samples: Sequence[Sample]) -> Calibration:
    """Fit coefficients for every algorithm and regime, then add overrides for wrong selections."""
    coefficients = {}
    for name, count in OPERATION_COUNTS.items():
        counted = [(count(problem), times[name]) for problem, times in samples if name in times]
        known = [(operations, time) for operations, time in counted if operations is not None]
        if known:
            measured = {operations.regime for operations, _ in known}
            required = library_regimes(name, samples[0].problem.device) if name in ("direct", "fft") else []
            regimes = [*required, *sorted(measured - {*required})]
            coefficients[name] = {regime: fit_regime(regime, known) for regime in regimes}
    calibration = Calibration(coefficients, {})
    # an override also applies to similar shapes, which may then need overrides themselves
    while wrong := _wrong_selections(calibration, samples):
        for sample in wrong:
            calibration.overrides[override_key(sample.problem)] = min(sample.times, key=sample.times.__getitem__)
    return calibration


def _wrong_selections(calibration: Calibration, samples: Sequence[Sample]) -> list[Sample]:
    slowdowns = [(sample, sample.slowdown(fastest_algorithm(calibration, sample.problem))) for sample in samples]
    return [
        sample
        for sample, slowdown in slowdowns
        if slowdown > TOLERANCE and override_key(sample.problem) not in calibration.overrides
    ]


def library_regimes(algorithm: str, device: str) -> list[str]:
    """Return all regimes of a direct convolution or an FFT, which must always have coefficients."""
    mixings = "dense", "grouped", "depthwise"
    if algorithm == "direct":
        mixings = "dense aligned", "dense unaligned", "grouped", "depthwise"
    if device == "cpu":
        return [f"{width}{mixing}" for width, mixing in itertools.product(("", "long ", "wide "), mixings)]
    return [" ".join(words) for words in itertools.product(("1D", "2D", "3D"), ("narrow", "wide"), mixings)]


def fit_regime(regime: str, known: Sequence[tuple[OperationCount, float]]) -> tuple[float, ...]:
    """Fit the coefficients of a regime to its measurements, or to those of the regimes with the most similar names.

    Depthwise, grouped and dense convolutions are not mixed if all of them were measured.
    """
    words, used = {*regime.split()}, [each for each in known if each[0].regime == regime]
    mixing = words & MIXINGS
    comparable = [each for each in known if mixing == MIXINGS & {*each[0].regime.split()}]
    if len(comparable) < MIN_SAMPLES:
        comparable = [each for each in known if ("depthwise" in each[0].regime) == ("depthwise" in words)] or known
    for shared in range(len(words), -1, -1):
        if len(used) >= MIN_SAMPLES:
            break
        used = [each for each in comparable if len(words & {*each[0].regime.split()}) >= shared]
    return fit([(1.0, *operations.counts) for operations, _ in used], [time for _, time in used])


def fit(counts: Sequence[tuple[float, ...]], nanoseconds: Sequence[float]) -> tuple[float, ...]:
    """Fit coefficients ≥ 0 by robust least squares of the logarithm of the time. Those of zero counts are zero."""
    a, t = np.array(counts), np.array(nanoseconds)
    counted = [bool(column.any()) for column in a.T]
    a = a[:, counted]
    start = np.maximum(nnls(a / t[:, None], np.ones(len(t)))[0], 1e-9 * t.mean() / a.mean(0))

    def error(log_coefficients: np.ndarray) -> np.ndarray:
        return np.log(a @ np.exp(log_coefficients)) - np.log(t)

    solution = np.exp(least_squares(error, np.log(start), loss="soft_l1", f_scale=0.2).x)
    share = solution * a.mean(0) / (a @ solution).mean()
    rounded = iter([float(f"{c:.3g}") if part > 1e-4 else 0.0 for c, part in zip(solution, share, strict=True)])
    return tuple(next(rounded) if each else 0.0 for each in counted)


def summary(calibration: Calibration, samples: Sequence[Sample]) -> str:
    """Describe how good the selections are, with and without overrides, and list the worst ones."""
    lines = []
    for title, each in (("estimates only", calibration._replace(overrides={})), ("with overrides", calibration)):
        selected = [(sample, fastest_algorithm(each, sample.problem)) for sample in samples]
        rows = sorted(((sample.slowdown(name), sample, name) for sample, name in selected), key=lambda row: -row[0])
        shares = ", ".join(
            f"{np.mean([row[0] <= limit for row in rows]):.1%} within {limit}" for limit in REPORTED_LIMITS
        )
        lines.append(f"  {title}: {len(samples)} shapes, {len(each.overrides)} overrides, {shares}; worst:")
        for slowdown, sample, name in rows[:6]:
            times = ", ".join(f"{key} {1e-6 * time:.4g}" for key, time in sample.times.items())
            shape = "×".join(map(str, sample.problem.x)), "×".join(map(str, sample.problem.weight))
            lines.append(f"    {slowdown:5.2f}  {shape[0]} * {shape[1]}: {name} of {times} ms")
    return "\n".join(lines)


def module_text(calibrations: Mapping[tuple[str, bool], Calibration], sources: Sequence[str]) -> str:
    """Return the source code of a calibration module of `flexconv.ops`."""
    return "\n".join([*_module_lines(calibrations, sources), ""])


def _module_lines(calibrations: Mapping[tuple[str, bool], Calibration], sources: Sequence[str]) -> Iterator[str]:
    yield '"""Coefficients fitted to these measurements, see `_cost_model.py`.\n'
    yield from sources
    yield '"""'
    yield "\n# fmt: off\nfrom __future__ import annotations\n"
    yield "COEFFICIENTS: dict[tuple[str, bool], dict[str, dict[str, tuple[float, ...]]]] = {"
    for (precision, training), each in calibrations.items():
        yield f'    ("{precision}", {training}): {{'
        for name, regimes in each.coefficients.items():
            yield f'        "{name}": {{'
            entries = [f'"{regime}": {coefficients},' for regime, coefficients in regimes.items()]
            yield from _filled_lines(entries, indent=12)
            yield "        },"
        yield "    },"
    yield "}\n\nOVERRIDES: dict[tuple[str, bool], dict[tuple[int, ...], str]] = {"
    for (precision, training), each in calibrations.items():
        if each.overrides:
            yield f'    ("{precision}", {training}): {{'
            yield from _filled_lines([f'{key}: "{name}",' for key, name in sorted(each.overrides.items())], indent=8)
            yield "    },"
    yield "}"


def _filled_lines(entries: Sequence[str], indent: int) -> Iterator[str]:
    """Distribute the entries of a dictionary over as few lines as possible, in order."""
    line = ""
    for entry in entries:
        if line and indent + len(line) + 1 + len(entry) > LINE_LENGTH:
            yield " " * indent + line
            line = ""
        line += f" {entry}" if line else entry
    yield " " * indent + line
