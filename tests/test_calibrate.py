"""The measurements that calibrate `algorithm="auto"`, and how good its selections are on the logged shapes."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("scipy")

from benchmarks.calibrate import SHAPES, measure_all, read_rows
from benchmarks.calibration_shapes import SMOKE, Shape, held_out_shapes
from benchmarks.evaluate_auto import KINDS, Selection, cross_validate, evaluate, kind_of, summarize
from benchmarks.fit_cost_model import Sample, fit, fit_calibration, fit_regimes, module_text
from flexconv.ops import _calibration_cpu, _calibration_cuda
from flexconv.ops._cost_model import OPERATION_COUNTS, Calibration, OperationCount, estimate_times

LOGS = Path(__file__).parents[1] / "results" / "bench"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_held_out_shapes_are_in_no_fit(device):
    held_out = {*held_out_shapes(device)}
    assert len(held_out) >= 100
    for name, shapes in SHAPES.items():
        assert name == "held-out" or not held_out & {*shapes(device)}


def test_measurement_continues_where_it_ended():
    measured = []

    def timer(calls, _):
        measured.extend(calls)
        return dict.fromkeys(calls, 1.0)

    sink = io.StringIO()
    measure_all(torch.device("cpu"), SMOKE[:2], sink, seconds=1e9, timer=timer)
    assert measured == ["direct", "fft"] * 4
    lines = sink.getvalue().splitlines()
    rows = read_rows(lines[:-1])
    del rows[SMOKE[0], "fp32", True]["fft"]
    measured.clear()
    measure_all(
        torch.device("cpu"), SMOKE[:2], sink, seconds=1e9, known={k: {*v} for k, v in rows.items()}, timer=timer
    )
    assert measured == ["fft", "direct", "fft"]


def test_no_measurement_starts_when_time_is_up():
    sink = io.StringIO()
    measure_all(torch.device("cpu"), SMOKE, sink, seconds=-1.0, timer=lambda *_: {})
    assert not sink.getvalue()


def test_measurements_of_one_shape_are_merged():
    shape = Shape(1, 2, 4, 24, 5, 4)
    lines = [
        json.dumps({**shape._asdict(), "device": "cuda", "precision": "bf16", "training": True, **times})
        for times in ({"direct": 3.0, "dft": 4.0}, {"monarch": 1.0}, {"direct": 2.0})
    ]
    assert read_rows(lines) == {(shape, "bf16", True): {"direct": 2.0, "dft": 4.0, "monarch": 1.0}}


def test_summary_counts_unknown_selections_as_misses():
    sample = Sample(Shape(1, 2, 8, 24, 5, 2).problem("cpu", "full"), {"direct": 1.0, "fft": 4.0})
    row = summarize([Selection(sample, name) for name in ("direct", "fft", "dft")])
    assert row.shapes == 3
    assert row.unknown == 1
    assert math.isclose(row.within, 1 / 3)
    assert math.isclose(row.mean, 2.0)
    assert row.worst == 4.0
    assert kind_of(sample.problem) == "grouped"


def test_fit_ignores_counts_that_are_always_zero():
    counts = np.array([(1.0, n, 0.0) for n in (1e3, 1e4, 1e5, 1e6)])
    constant, slope, unused = fit(counts, 100.0 + 0.01 * counts[:, 1])
    assert unused == 0.0
    assert math.isclose(constant, 100.0, rel_tol=0.05)
    assert math.isclose(slope, 0.01, rel_tol=0.05)


def test_few_measurements_of_a_regime_are_fitted_close_to_comparable_ones():
    known = [(OperationCount("2D dense", (n, 0.0)), 100.0 + 0.01 * n) for n in (1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6)]
    known += [(OperationCount("2D dense", (n, n)), 100.0 + 0.03 * n) for n in (1e3, 1e4, 1e5, 1e6)]
    slower = [(OperationCount("1D dense", (n, 0.0)), 200.0 + 0.02 * n) for n in (1e3, 1e6)]
    found = fit_regimes(["1D dense", "2D dense", "3D dense"], known + slower)
    assert found["2D dense"] == pytest.approx((100.0, 0.01, 0.02), rel=0.1)
    constant, slope, unseen = found["1D dense"]
    assert constant == pytest.approx(200.0, rel=0.2)
    assert slope == pytest.approx(0.02, rel=0.2)
    assert unseen == pytest.approx(0.02, rel=0.2)  # no measurement of the regime has this count
    assert found["3D dense"] == pytest.approx((100.0, 0.01, 0.02), rel=0.5)


def test_fit_does_not_depend_on_the_speed_of_the_machine():
    samples = []
    for size in range(16, 80, 2):
        problem = Shape(2, 4, 8, size, 5).problem("cpu", "full")
        direct, fft = (OPERATION_COUNTS[name](problem).counts for name in ("direct", "fft"))
        slower = 4.0 if size > 50 else 1.0
        samples.append(
            Sample(problem, {"direct": slower * (1e4 + 0.1 * direct[0]), "fft": slower * (5e5 + 2.0 * fft[2])})
        )
    calibration = fit_calibration(samples)
    for sample in samples:
        estimates = estimate_times(calibration, sample.problem)
        ratio, measured = (each["direct"] / each["fft"] for each in (estimates, sample.times))
        assert ratio == pytest.approx(measured, rel=0.2)


def test_cross_validation_selects_for_every_shape_once(tmp_path):
    shapes = [Shape(1, 2, 8, size, 5, groups) for size in range(20, 30) for groups in (1, 2)]
    lines = [
        json.dumps({**shape._asdict(), "device": "cpu", "training": False, "direct": shape.size, "fft": 100.0})
        for shape in shapes
    ]
    (tmp_path / "calibrate_cpu.jsonl").write_text("\n".join(lines))
    found = cross_validate(tmp_path, folds=3)
    assert {key[-1]: len(selections) for key, selections in found.items()} == {"dense": 10, "grouped": 10}
    selections = [each for selections in found.values() for each in selections]
    assert {each.sample.problem for each in selections} == {shape.problem("cpu", "full") for shape in shapes}
    assert {each.name for each in selections} == {"direct"}


@pytest.mark.parametrize("module", [_calibration_cpu, _calibration_cuda], ids=["cpu", "cuda"])
def test_calibration_modules_are_as_written_by_a_fit(module):
    tables = {mode: Calibration(each, module.OVERRIDES.get(mode, {})) for mode, each in module.COEFFICIENTS.items()}
    sources = module.__doc__.split()[-2 if module is _calibration_cpu else -3 :]
    text = module_text(tables, sources)
    assert text == Path(module.__file__).read_text()
    assert max(map(len, text.splitlines())) <= 120


def test_selections_on_logged_shapes():
    found = evaluate(LOGS)
    for key, selections in found.items():
        row = summarize(selections)
        assert key[-1] in KINDS
        if key[1] == "fit":
            assert row.within == 1.0, key
