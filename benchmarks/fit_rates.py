"""From timings to the tables of `algorithm="auto"`: rates per unit of work, and the measurements they contradict."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares, nnls

from flexconv.ops._select import Prices, cheapest, landmark
from flexconv.ops._work import WORK, Problem, Work

FEWEST = 8  # timings to fit a regime to; with fewer, those of the most similar regimes help
TOLERATED = 1.1  # times the best that a choice by estimate may take, before the best is written down
LIMITS = (1.2, 1.3)


class Sample(NamedTuple):
    """A convolution, and nanoseconds of the algorithms it was computed by."""

    problem: Problem
    times: dict[str, float]

    def regret(self, name: str) -> float:
        """How many times the best; infinite if the choice was not even tried."""
        return self.times.get(name, np.inf) / min(self.times.values())


def fit_prices(samples: Sequence[Sample]) -> Prices:
    """Rates for every algorithm and regime, then the samples that would be decided wrongly."""
    rates = {}
    for name, count in WORK.items():
        timed = [(count(problem), times[name]) for problem, times in samples if name in times]
        known = [(work, time) for work, time in timed if work is not None]
        if known:
            seen = {work.regime for work, _ in known}
            named = library_regimes(name, samples[0].problem.device) if name in ("direct", "fft") else []
            rates[name] = {regime: fit_regime(regime, known) for regime in [*named, *sorted(seen - {*named})]}
    prices = Prices(rates, {})
    while wrong := _wrong(prices, samples):  # a surprise may mislead a neighbour, which then becomes one itself
        prices.surprises.update({landmark(each.problem): min(each.times, key=each.times.__getitem__) for each in wrong})
    return prices


def _wrong(prices: Prices, samples: Sequence[Sample]) -> list[Sample]:
    chosen = [(each, each.regret(cheapest(prices, each.problem))) for each in samples]
    return [each for each, regret in chosen if regret > TOLERATED and landmark(each.problem) not in prices.surprises]


def library_regimes(algorithm: str, device: str) -> list[str]:
    """All that there are of a direct convolution and of the FFT, which must always have a price."""
    mixings = "dense", "depthwise"
    if device == "cpu":
        return [f"{width}{mixing}" for width, mixing in itertools.product(("", "long ", "wide "), mixings)]
    if algorithm == "direct":
        mixings = "dense aligned", "dense unaligned", "depthwise"
    return [" ".join(words) for words in itertools.product(("1D", "2D", "3D"), ("narrow", "wide"), mixings)]


def fit_regime(regime: str, known: Sequence[tuple[Work, float]]) -> tuple[float, ...]:
    """Rates for a regime from its own timings, or from those that share as many words of its name as needed.

    Depthwise and dense convolutions have nothing in common, where there are both.
    """
    words, near = {*regime.split()}, [each for each in known if each[0].regime == regime]
    alike = [each for each in known if ("depthwise" in each[0].regime) == ("depthwise" in words)] or known
    for shared in range(len(words), -1, -1):
        if len(near) >= FEWEST:
            break
        near = [each for each in alike if len(words & {*each[0].regime.split()}) >= shared]
    return fit([(1.0, *work.units) for work, _ in near], [time for _, time in near])


def fit(units: Sequence[tuple[float, ...]], nanoseconds: Sequence[float]) -> tuple[float, ...]:
    """Rates ≥ 0 with the smallest squared error of log time, outliers counting less."""
    a, t = np.array(units), np.array(nanoseconds)
    start = np.maximum(nnls(a / t[:, None], np.ones(len(t)))[0], 1e-9 * t.mean() / a.mean(0))

    def error(log_rates: np.ndarray) -> np.ndarray:
        return np.log(a @ np.exp(log_rates)) - np.log(t)

    solution = np.exp(least_squares(error, np.log(start), loss="soft_l1", f_scale=0.2).x)
    share = solution * a.mean(0) / (a @ solution).mean()
    return tuple(float(f"{rate:.3g}") if part > 1e-4 else 0.0 for rate, part in zip(solution, share, strict=True))


def summary(prices: Prices, samples: Sequence[Sample]) -> str:
    """How often choices are good, by estimate alone and with the surprises, and the worst of each."""
    lines = []
    for title, each in (("by estimate", prices._replace(surprises={})), ("with surprises", prices)):
        chosen = [(sample, cheapest(each, sample.problem)) for sample in samples]
        regrets = sorted(((sample.regret(name), sample, name) for sample, name in chosen), key=lambda row: -row[0])
        shares = ", ".join(f"{np.mean([row[0] <= limit for row in regrets]):.1%} within {limit}" for limit in LIMITS)
        lines.append(f"  {title}: {len(samples)} shapes, {len(each.surprises)} surprises, {shares}; worst:")
        for regret, sample, name in regrets[:6]:
            times = ", ".join(f"{key} {1e-6 * time:.4g}" for key, time in sample.times.items())
            shape = "×".join(map(str, sample.problem.x)), "×".join(map(str, sample.problem.weight))
            lines.append(f"    {regret:5.2f}  {shape[0]} * {shape[1]}: {name} of {times} ms")
    return "\n".join(lines)


def module_text(prices: Mapping[tuple[str, bool], Prices], sources: Sequence[str]) -> str:
    """A module of `flexconv.ops` with these prices."""
    return "\n".join([*_module_lines(prices, sources), ""])


def _module_lines(prices: Mapping[tuple[str, bool], Prices], sources: Sequence[str]) -> Iterator[str]:
    yield f'"""Nanoseconds per unit of work, fitted to `{"`, `".join(sources)}`: see `_select.py`."""'
    yield "\nfrom __future__ import annotations\n"
    yield "RATES: dict[tuple[str, bool], dict[str, dict[str, tuple[float, ...]]]] = {"
    for (precision, training), each in prices.items():
        yield f'    ("{precision}", {training}): {{'
        for name, regimes in each.rates.items():
            yield f'        "{name}": {{'
            yield from (f'            "{regime}": {rates},' for regime, rates in regimes.items())
            yield "        },"
        yield "    },"
    yield "}\n\nSURPRISES: dict[tuple[str, bool], dict[tuple[int, ...], str]] = {"
    for (precision, training), each in prices.items():
        if each.surprises:
            yield f'    ("{precision}", {training}): {{'
            yield from (f'        {place}: "{name}",' for place, name in sorted(each.surprises.items()))
            yield "    },"
    yield "}"
