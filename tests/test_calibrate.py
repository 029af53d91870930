"""Calibration of `algorithm="auto"`: measuring, fitting, and the module that is written."""

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
from benchmarks.fit_cost_model import REPORTED_LIMITS, Sample, fit, fit_calibration, module_text, summary
from flexconv.bench.ops import GPU_CASES
from flexconv.ops import _calibration_cpu
from flexconv.ops._cost_model import OPERATION_COUNTS, Calibration, estimate_times
from flexconv.ops._select import fastest_algorithm

GPU: Any = SimpleNamespace(type="cuda")  # the only attribute that is read before tensors are created


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
def gpu(monkeypatch):
    def on_this_machine(shape, device, dtype):
        return torch.randn(shape, dtype=dtype)

    monkeypatch.setattr(calibrate, "random_tensor", on_this_machine)
    return GPU


def test_measures_all_algorithms_in_both_precisions_on_a_gpu(gpu):
    rows = measured(gpu, SMOKE)
    assert len(rows) == 4 * len(SMOKE)
    for row in rows:
        timed = {name for name in OPERATION_COUNTS if name in row}
        expected = {"direct", "fft", "dft"} if row["precision"] == "fp32" else {"direct", "dft"}
        assert timed == expected | ({"toeplitz", "monarch"} if row["groups"] > 1 else set())


def test_leaves_out_calls_that_take_too_long(monkeypatch):
    monkeypatch.setattr(calibrate, "random_tensor", lambda *_: torch.empty(0, device="meta"))
    shape = Shape(2, 512, 96, 128, 65)
    names = [[*calibrate._calls(shape, GPU, "fp32", training=training)] for training in (False, True)]
    assert all("direct" not in each for each in names)


def test_stops_after_the_time_limit(gpu, capsys):
    assert measured(gpu, SMOKE, seconds=-1.0) == []
    assert "time is up after 0 shapes" in capsys.readouterr().out


def test_measures_and_fits_on_a_cpu(tmp_path, monkeypatch, capsys):
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
    assert {*runpy.run_path(str(tmp_path / "table.py"))["COEFFICIENTS"]} == {("full", False), ("full", True)}


def test_sweep_starts_with_benchmark_shapes():
    first = [*dict.fromkeys(benchmark_shapes())]
    assert sweep("cuda")[: len(first)] == first
    cases = {(each.batch, each.channels, each.size[0], each.taps) for group in GPU_CASES for each in group}
    assert cases <= {(each.batch, each.channels, each.size, each.taps) for each in first}
    assert len({each.problem("cuda", "half") for each in sweep("cuda")}) == len(sweep("cuda"))


def test_cpu_sweep_covers_enough_shapes():
    assert len(sweep("cpu")) > 300
    assert {each.out for each in sweep("cpu")} == {None}


def test_fft_times_are_used_for_half_precision():
    common = {**Shape(1, 2, 3, 24, 5)._asdict(), "device": "cuda", "training": True}
    full = {**common, "precision": "fp32", "direct": 3.0, "fft": 2.0, "dft": 1.0}
    half = {**common, "precision": "bf16", "direct": 0.3, "dft": 0.1}
    samples = read_samples(map(json.dumps, (half, full)))
    assert samples["full", True][0].times == {"direct": 3e6, "fft": 2e6, "dft": 1e6}
    assert samples["half", True][0].times == pytest.approx({"direct": 0.3e6, "fft": 2e6, "dft": 0.1e6})


def test_fit_recovers_coefficients():
    counts = [(1.0, a, b) for a in (1e3, 1e5, 1e7) for b in (1e2, 1e5, 1e6)]
    assert fit(counts, [2e3 + 0.5 * a + 3.0 * b for _, a, b in counts]) == pytest.approx((2e3, 0.5, 3.0), rel=1e-2)


def samples_from(coefficients):
    problems = [shape.problem("cpu", "full") for shape in sweep("cpu")[::3]]
    return [Sample(problem, estimate_times(Calibration(coefficients, {}), problem)) for problem in problems]


def test_selection_is_right_for_times_that_follow_the_model():
    samples = samples_from(_calibration_cpu.COEFFICIENTS["full", True])
    calibration = fit_calibration(samples)
    assert max(each.slowdown(fastest_algorithm(calibration, each.problem)) for each in samples) <= REPORTED_LIMITS[0]
    assert len(calibration.overrides) < len(samples) / 20


def test_times_that_contradict_the_model_become_overrides():
    samples = samples_from(_calibration_cpu.COEFFICIENTS["full", False])
    odd = samples[7]
    worse = fastest_algorithm(Calibration(_calibration_cpu.COEFFICIENTS["full", False], {}), odd.problem)
    samples[7] = Sample(odd.problem, {**odd.times, worse: 50 * max(odd.times.values())})
    calibration = fit_calibration(samples)
    assert samples[7].slowdown(fastest_algorithm(calibration, odd.problem)) == 1.0
    assert "1 shapes" in summary(calibration, samples[7:8])


def test_module_text_contains_the_calibration(tmp_path):
    calibrations = {
        ("full", False): Calibration({"direct": {"dense": (1.0, 2.5)}}, {(1, 2, 3): "fft"}),
        ("half", True): Calibration({}, {}),
    }
    (tmp_path / "table.py").write_text(module_text(calibrations, ["a.jsonl"]))
    table = runpy.run_path(str(tmp_path / "table.py"))
    assert table["COEFFICIENTS"] == {mode: each.coefficients for mode, each in calibrations.items()}
    assert table["OVERRIDES"] == {("full", False): {(1, 2, 3): "fft"}}
