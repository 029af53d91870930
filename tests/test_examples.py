"""The examples run, as a stranger would run them: from their file, without the test suite around them."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_learn_a_size_trains_and_prints_a_table(capsys):
    loss, floor, size = load("learn_a_size").main(steps=20)
    assert math.isfinite(loss)
    assert loss > 0
    assert 0 < floor < 1  # the filter has energy 1, part of it outside the first size
    assert len(size) == 2
    assert all(1 <= n <= 33 for n in size)
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("step"))
    assert lines[head].split() == ["step", "loss", "size", "sigma", "ms/step"]
    rows = [line.split() for line in lines[head + 1 :]]
    assert [int(row[0]) for row in rows] == list(range(0, 21, 2))
    assert all(math.isfinite(float(row[1])) and "×" in row[2] for row in rows)
    assert float(rows[-1][1]) < float(rows[0][1])


def test_learn_a_size_takes_few_steps(capsys):
    loss, _, _ = load("learn_a_size").main(steps=3)
    assert math.isfinite(loss)
    assert "step" in capsys.readouterr().out
