"""The output of a run without a terminal."""

import io

import pytest
from rich.console import Console

from flexconv.train import display
from flexconv.train.display import Display


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test advances."""
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_prints_a_line_per_minute(clock):
    file = io.StringIO()
    shown = Display(Console(file=file, width=200), epochs=3, steps_per_epoch=100)

    def take(step, seconds):
        clock[0] += seconds
        shown.step(step, loss=1.23456, accuracy=0.5, sizes={"a": (5, 7)})

    take(1, 59)
    assert file.getvalue() == ""
    take(2, 2)
    take(3, 59)
    take(100, 2)
    take(101, 61)
    lines = file.getvalue().splitlines()
    assert lines[0] == "epoch   1/3, batch 2 of 100  loss 1.235  accuracy 50.0 %  5×7"
    assert [line.split("  loss")[0] for line in lines[1:]] == [
        "epoch   1/3, batch 100 of 100",
        "epoch   2/3, batch 1 of 100",
    ]


def test_any_line_restarts_the_minute(clock):
    file = io.StringIO()
    shown = Display(Console(file=file), epochs=1, steps_per_epoch=100)
    clock[0] += 59
    shown.say("something else")
    clock[0] += 59
    shown.step(5, loss=1.0, accuracy=0.5, sizes={})
    assert file.getvalue() == "something else\n"


def test_prints_nothing_without_a_console(capsys):
    shown = Display(None, epochs=1, steps_per_epoch=1)
    shown.say("a word")
    shown.step(1, loss=1.0, accuracy=0.5, sizes={})
    assert capsys.readouterr().out == ""
