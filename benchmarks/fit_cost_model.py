"""Fit the cost model of `algorithm="auto"` to measured times: coefficients, and overrides where they are not enough."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, nnls

from flexconv.ops._cost_model import OPERATION_COUNTS, Calibration, OperationCount, Problem, estimate_times
from flexconv.ops._select import fastest_algorithm, override_key

MIN_SAMPLES = 8  # measurements of comparable regimes; with fewer, further regimes are added
PENALTY = 0.1  # for a coefficient that is e times that of comparable regimes, in units of errors of log(time)
REFITS = 3  # see `fit_calibration`
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
    """Fit coefficients for every algorithm and regime, then add overrides for wrong selections.

    Only ratios of times matter to a selection. If all algorithms take longer for a sample than estimated, for example
    because the machine was busy, the times are divided by the median of these factors, and the fit is repeated.
    """
    coefficients = fit_coefficients(samples)
    for _ in range(REFITS):
        coefficients = fit_coefficients([_without_common_factor(coefficients, sample) for sample in samples])
    calibration = Calibration(coefficients, {})
    # an override also applies to similar shapes, which may then need overrides themselves
    while wrong := _wrong_selections(calibration, samples):
        for sample in wrong:
            calibration.overrides[override_key(sample.problem)] = min(sample.times, key=sample.times.__getitem__)
    return calibration


def fit_coefficients(samples: Sequence[Sample]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the coefficients by algorithm and regime."""
    coefficients = {}
    for name, count in OPERATION_COUNTS.items():
        counted = [(count(problem), times[name]) for problem, times in samples if name in times]
        known = [(operations, time) for operations, time in counted if operations is not None]
        if known:
            measured = {operations.regime for operations, _ in known}
            required = library_regimes(name, samples[0].problem.device) if name in ("direct", "fft") else []
            coefficients[name] = fit_regimes([*required, *sorted(measured - {*required})], known)
    return coefficients


def _without_common_factor(coefficients: dict[str, dict[str, tuple[float, ...]]], sample: Sample) -> Sample:
    estimates = estimate_times(Calibration(coefficients, {}), sample.problem)
    deviations = [np.log(time / estimates[name]) for name, time in sample.times.items() if name in estimates]
    factor = np.exp(np.median(deviations))
    return sample._replace(times={name: time / factor for name, time in sample.times.items()})


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


def fit_regimes(regimes: Sequence[str], known: Sequence[tuple[OperationCount, float]]) -> dict[str, tuple[float, ...]]:
    """Fit the coefficients of each regime to its measurements, but close to those of a fit to all comparable regimes.

    A few measurements alone would be fitted too closely. Depthwise, grouped and dense convolutions are not comparable
    if there are enough measurements of each.
    """
    common, found = {}, {}
    for regime in regimes:
        words = {*regime.split()}
        mixing = words & MIXINGS
        comparable = [each for each in known if mixing == MIXINGS & {*each[0].regime.split()}]
        if len(comparable) < MIN_SAMPLES:
            comparable = [each for each in known if ("depthwise" in each[0].regime) == ("depthwise" in words)] or known
        key = frozenset(operations.regime for operations, _ in comparable)
        if key not in common:
            common[key] = fit(*_columns(comparable))
        own = [each for each in known if each[0].regime == regime]
        found[regime] = _rounded(fit(*_columns(own), common[key]) if own else common[key], *_columns(comparable))
    return found


def _columns(known: Sequence[tuple[OperationCount, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([(1.0, *operations.counts) for operations, _ in known]), np.array([time for _, time in known])


def fit(counts: np.ndarray, nanoseconds: np.ndarray, common: np.ndarray | None = None) -> np.ndarray:
    """Fit coefficients ≥ 0 by robust least squares of the logarithm of the time.

    If common coefficients are given, deviations from their logarithms are penalized, and coefficients of counts that
    are always zero are equal to them. Otherwise these are zero.
    """
    if common is None:
        counted = counts.any(0)
        relative = counts[:, counted] / nanoseconds[:, None]
        start = nnls(relative, np.ones(len(relative)))[0]
        start = np.maximum(start, 1e-9 / relative.mean(0))
    else:
        counted = common > 0
        start = common[counted]
    a = counts[:, counted]
    penalty = 0.0 if common is None else PENALTY

    def errors(deviations: np.ndarray) -> np.ndarray:
        data = np.log(a @ (start * np.exp(deviations))) - np.log(nanoseconds)
        return np.concatenate([data, penalty * deviations])

    solution = least_squares(errors, np.zeros(len(start)), loss="soft_l1", f_scale=0.2).x
    coefficients = np.zeros(counts.shape[1])
    coefficients[counted] = start * np.exp(solution)
    return coefficients


def _rounded(coefficients: np.ndarray, counts: np.ndarray, nanoseconds: np.ndarray) -> tuple[float, ...]:
    """Round coefficients to three digits, and to zero those that hardly contribute to any of the times."""
    largest_share = coefficients * (counts / nanoseconds[:, None]).max(0)
    return tuple(
        float(f"{c:.3g}") if share > 1e-4 else 0.0 for c, share in zip(coefficients, largest_share, strict=True)
    )


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
