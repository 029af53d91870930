"""From timings to the tables of `algorithm="auto"`."""

from __future__ import annotations

import io
import json
import runpy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import calibrate
from benchmarks.calibrate import SMOKE, Shape, benchmark_shapes, measure_all, read_samples, sweep
from benchmarks.fit_rates import LIMITS, Sample, fit, fit_prices, module_text, summary
from flexconv.bench._ops import GPU_CASES
from flexconv.ops import _rates_cpu
from flexconv.ops._select import Prices, cheapest, estimates
from flexconv.ops._work import WORK

CARD: Any = SimpleNamespace(type="cuda")  # all that is read of a device before tensors are made


def run_once(calls, device):
    return {name: float(index) for index, name in enumerate(calls, 1) if call_works(calls[name])}


def call_works(call):
    results = call()
    return all(each.isfinite().all() for each in (results if isinstance(results, tuple) else (results,)))


def measured(device, shapes, **options):
    sink = io.StringIO()
    measure_all(device, shapes, sink, **{"seconds": 60.0, "timer": run_once, **options})
    return [json.loads(line) for line in sink.getvalue().splitlines()]


@pytest.fixture
def card(monkeypatch):
    def on_this_machine(shape, device, dtype):
        return torch.randn(shape, dtype=dtype)

    monkeypatch.setattr(calibrate, "random_tensor", on_this_machine)
    return CARD


def test_a_gpu_is_asked_for_all_algorithms_in_both_precisions(card):
    rows = measured(card, SMOKE)
    assert len(rows) == 4 * len(SMOKE)
    for row in rows:
        timed = {name for name in WORK if name in row}
        assert timed == ({"direct", "fft", "dft"} if row["precision"] == "fp32" else {"direct", "dft"})


def test_what_would_take_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(calibrate, "random_tensor", lambda *_: torch.empty(0, device="meta"))
    shape = Shape(2, 512, 96, 128, 65)
    names = [[*calibrate._calls(shape, CARD, "fp32", training=training)] for training in (False, True)]
    assert all("direct" not in each for each in names)


def test_time_runs_out_between_shapes(card, capsys):
    assert measured(card, SMOKE, seconds=-1.0) == []
    assert "time is up after 0 shapes" in capsys.readouterr().out


def test_a_real_clock_on_a_cpu(tmp_path, monkeypatch, capsys):
    file = tmp_path / "timings.jsonl"
    monkeypatch.setattr("sys.argv", ["calibrate", "measure", "cpu", str(file), "--smoke"])
    calibrate.main()
    monkeypatch.setattr("sys.argv", ["calibrate", "fit", str(file)])
    capsys.readouterr()
    calibrate.main()
    printed, report = capsys.readouterr()
    assert "within 1.2" in report
    monkeypatch.setattr("sys.argv", ["calibrate", "fit", str(file), "--out", str(tmp_path / "table.py")])
    calibrate.main()
    assert (tmp_path / "table.py").read_text() == printed
    assert {*runpy.run_path(str(tmp_path / "table.py"))["RATES"]} == {("full", False), ("full", True)}


def test_the_benchmark_comes_first():
    first = [*dict.fromkeys(benchmark_shapes())]
    assert sweep("cuda")[: len(first)] == first
    cases = {(each.batch, each.channels, each.size[0], each.taps) for group in GPU_CASES for each in group}
    assert cases <= {(each.batch, each.channels, each.size, each.taps) for each in first}
    assert len({each.problem("cuda", "half") for each in sweep("cuda")}) == len(sweep("cuda"))


def test_shapes_are_what_they_were_on_a_cpu():
    assert len(sweep("cpu")) > 300
    assert {each.out for each in sweep("cpu")} == {None}


def test_fft_times_count_for_half_precision():
    common = {**Shape(1, 2, 3, 24, 5)._asdict(), "device": "cuda", "training": True}
    full = {**common, "precision": "fp32", "direct": 3.0, "fft": 2.0, "dft": 1.0}
    half = {**common, "precision": "bf16", "direct": 0.3, "dft": 0.1}
    samples = read_samples(map(json.dumps, (half, full)))
    assert samples["full", True][0].times == {"direct": 3e6, "fft": 2e6, "dft": 1e6}
    assert samples["half", True][0].times == pytest.approx({"direct": 0.3e6, "fft": 2e6, "dft": 0.1e6})


def test_rates_are_found_again():
    units = [(1.0, a, b) for a in (1e3, 1e5, 1e7) for b in (1e2, 1e5, 1e6)]
    assert fit(units, [2e3 + 0.5 * a + 3.0 * b for _, a, b in units]) == pytest.approx((2e3, 0.5, 3.0), rel=1e-2)


def made_up(rates):
    problems = [shape.problem("cpu", "full") for shape in sweep("cpu")[::3]]
    return [Sample(problem, estimates(Prices(rates, {}), problem)) for problem in problems]


def test_decisions_from_timings_that_follow_rates_are_right():
    samples = made_up(_rates_cpu.RATES["full", True])
    prices = fit_prices(samples)
    assert max(each.regret(cheapest(prices, each.problem)) for each in samples) <= LIMITS[0]
    assert len(prices.surprises) < len(samples) / 20


def test_timings_that_follow_nothing_are_remembered():
    samples = made_up(_rates_cpu.RATES["full", False])
    odd = samples[7]
    worse = cheapest(Prices(_rates_cpu.RATES["full", False], {}), odd.problem)
    samples[7] = Sample(odd.problem, {**odd.times, worse: 50 * max(odd.times.values())})
    prices = fit_prices(samples)
    assert samples[7].regret(cheapest(prices, odd.problem)) == 1.0
    assert "1 shapes" in summary(prices, samples[7:8])


def test_the_table_is_a_module(tmp_path):
    prices = {
        ("full", False): Prices({"direct": {"dense": (1.0, 2.5)}}, {(1, 2, 3): "fft"}),
        ("half", True): Prices({}, {}),
    }
    (tmp_path / "table.py").write_text(module_text(prices, ["a.jsonl"]))
    table = runpy.run_path(str(tmp_path / "table.py"))
    assert table["RATES"] == {mode: each.rates for mode, each in prices.items()}
    assert table["SURPRISES"] == {("full", False): {(1, 2, 3): "fft"}}
