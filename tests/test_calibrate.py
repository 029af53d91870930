"""The measurements that calibrate `algorithm="auto"`, and how good its selections are on the logged shapes."""

import io
import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("scipy")

from benchmarks.calibrate import SHAPES, measure_all, read_rows
from benchmarks.calibration_shapes import SMOKE, Shape, held_out_shapes
from benchmarks.evaluate_auto import KINDS, Selection, cross_validate, evaluate, kind_of, summarize
from benchmarks.fit_cost_model import Sample, fit, module_text
from flexconv.ops import _calibration_cpu, _calibration_cuda
from flexconv.ops._cost_model import Calibration

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
    counts = [(1.0, n, 0.0) for n in (1e3, 1e4, 1e5, 1e6)]
    constant, slope, unused = fit(counts, [100.0 + 0.01 * n for _, n, _ in counts])
    assert unused == 0.0
    assert math.isclose(constant, 100.0, rel_tol=0.05)
    assert math.isclose(slope, 0.01, rel_tol=0.05)


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
