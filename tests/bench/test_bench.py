"""Timings, peak rates and reports of `flexconv bench`."""

import contextlib
import functools
import itertools
import json
import time

import pytest
import torch

from flexconv import bench, cli
from flexconv.bench import Ceilings, Report, layers, memory, timing, write_report

CPU = torch.device("cpu")


def test_measure_returns_median_and_interquartile_range(monkeypatch):
    clock = 0.0

    def takes(*ms):
        durations = itertools.cycle(ms)

        def function():
            nonlocal clock
            clock += 1e-3 * next(durations)

        return function

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)
    times = bench.measure({"steady": takes(2), "varying": takes(20, 30, 40)}, CPU, seconds=0.6)
    assert times["steady"] == pytest.approx((2, 0))
    assert times["varying"] == pytest.approx((30, 20))


def test_measure_calls_slow_functions_at_least_once():
    calls = []
    bench.measure({"slow": lambda: calls.append(time.sleep(0.02))}, CPU, seconds=0.001)
    assert 2 <= len(calls) <= 4


def test_omits_functions_that_fail_with_a_warning(monkeypatch):
    def captured(function, _device):
        if function is min:
            raise RuntimeError("out of memory\nand much more")
        return function

    monkeypatch.setattr(timing, "as_in_training", captured)
    with pytest.warns(UserWarning, match="^huge .*out of memory$"):
        assert timing.all_in_training({"huge": min, "small": max}, CPU) == {"small": max}


def test_interrupted_command_writes_the_rows_measured_so_far(tmp_path, monkeypatch):
    def rows(*_, **__):
        yield {"case": {}, "ms": 1.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "bench_ops", rows)
    assert cli.run(["bench", "ops", "--smoke", "--device", "cpu", "--out", str(tmp_path / "report.json")]) == 130
    assert json.loads((tmp_path / "report.json").read_text())["tables"] == {"ops": [{"case": {}, "ms": 1.0}]}


def test_floor_of_a_matrix_product_and_of_a_copy():
    ceilings = Ceilings({"fp32": 1e9}, copy=1e12)
    a, b = torch.randn(10, 20), torch.randn(20, 30)
    assert ceilings.floor(lambda: a @ b, "fp32") == pytest.approx(1e3 * 2 * 10 * 20 * 30 / 1e9)
    slow_copies = Ceilings({"fp32": 1e30}, copy=1e6)
    assert slow_copies.floor(lambda: a + 1, "fp32") == pytest.approx(1e3 * 2 * a.nbytes / 1e6)
    assert slow_copies.floor(lambda: a.t()[2:5].expand(4, 3, 10), "fp32") == 0  # views are free


def test_floor_counts_convolutions_and_their_gradients():
    ceilings = Ceilings({"fp32": 1e9}, copy=1e30)
    x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3, requires_grad=True)
    forward = ceilings.floor(lambda: torch.nn.functional.conv2d(x, w), "fp32")
    assert forward == pytest.approx(1e3 * 2 * 2 * 5 * 36 * 27 / 1e9)
    both = ceilings.floor(lambda: torch.nn.functional.conv2d(x, w).sum().backward(), "fp32")
    assert both == pytest.approx(2 * forward)  # x does not require a gradient


def test_peak_rates_are_positive():
    ceilings = bench.measure_ceilings(CPU, small=True)
    assert set(ceilings.products) == {"fp32", "bf16", "fp16"}
    assert min(*ceilings.products.values(), ceilings.copy) > 0


@pytest.mark.parametrize("name", ["report.txt", "report", "no/such/folder/report.md"])
def test_rejects_unwritable_report_before_measuring(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "measure_ceilings", lambda *_, **__: pytest.fail("measured"))
    assert cli.run(["bench", "--smoke", "--out", str(tmp_path / name)]) == 2
    assert "report" in capsys.readouterr().err


def test_rejects_unknown_table(capsys):
    assert cli.run(["bench", "step", "--smoke"]) == 2
    assert "did you mean 'steps'" in capsys.readouterr().err


def test_command_prints_and_writes_the_report(tmp_path, capsys):
    files = [tmp_path / "report.json", tmp_path / "report.md"]
    arguments = ["bench", "--smoke", "--device", "cpu", "--out", str(files[0]), "--out", str(files[1])]
    assert cli.run(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == files[1].read_text("utf-8").strip()
    content = json.loads(files[0].read_text("utf-8"))
    assert set(content["tables"]) == {"ops", "layers", "steps"}
    assert f"torch {torch.__version__}" in content["machine"]
    for row in content["tables"]["ops"]:
        assert set(row["ms"]) == {"torch", "direct", "fft", "dft", "auto"}
        assert row["auto_over_best"] == row["ms"]["auto"] / row["ms"][row["best"]]
    assert {row["full"] for row in content["tables"]["steps"]} == {True, False}
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    assert all(line.count("|") > 5 for line in lines)


def test_report_without_tables_states_the_peak_rates(tmp_path):
    report = Report("a machine", "flexconv bench", Ceilings({"fp32": 1e12}, 1e9), {})
    write_report(report, tmp_path / "r.md")
    assert "matrix products fp32 1 TFLOP/s; copies 1 GB/s" in (tmp_path / "r.md").read_text()


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # raised by torch
@pytest.mark.usefixtures("quick_compiler")
def test_layer_as_in_a_training_step_computes_the_same():
    case = layers.Case(2, 3, (8, 8), full=True)
    layer, x = layers._flex(case), torch.randn(2, 3, 8, 8, requires_grad=True)
    alone = functools.partial(layers._pass, layer, x, contextlib.nullcontext)
    for result, expected in zip(layers._as_in_step(layer, alone)(), alone(), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_memory_of_layers_and_networks(capsys):
    rows = list(bench.bench_memory(CPU, small=True))
    assert {row["case"]["network"] for row in rows} == {True, False}
    assert all(set(row["mib"]) == {"torch", "flexconv", "recomputed"} for row in rows)
    assert cli.run(["bench", "memory", "--smoke", "--device", "cpu"]) == 0
    assert "recompute=True" in capsys.readouterr().out


def test_live_bytes_counts_tensors_once_and_forgets_freed_ones():
    with memory.LiveBytes() as live:
        a = torch.ones(100)
        b = a.view(10, 10) + 1
        assert live.now == 800
        del b
        a.add_(1)
    assert live.now == 400
    assert live.most == 800
