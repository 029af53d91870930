"""How a number in a table is read from the log of a finished run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._ledger import Log


@dataclass(frozen=True)
class Measure:
    """A number from a log in the paper's units; None if the log does not have it.

    Arguments:
        of: reads the number.
        digits: how many digits are printed after the decimal point; see `show` for negative values.
        before_tuning: whether the number is known before fine-tuning, so that runs without fine-tuning have it too.

    """

    of: Callable[[Log], float | None]
    digits: int
    before_tuning: bool = False


def _percent(*path: str) -> Callable[[Log], float | None]:
    def read(log: Log) -> float | None:
        value: Any = log.results
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value is None else 100 * value

    return read


def _seconds_per_epoch(log: Log) -> float | None:
    """The median, because the first epoch includes compilation and capture."""
    times = [record["epoch_seconds"] for record in log.metrics if "epoch_seconds" in record]
    return statistics.median(times) if times else None


ACCURACY = Measure(_percent("test_accuracy"), 2)
VALIDATION = Measure(_percent("best", "accuracy"), 2)
TOP_5 = Measure(_percent("test_top5_accuracy"), 2)
SOURCE = Measure(_percent("source", "test_accuracy"), 2, before_tuning=True)
CHANGE = Measure(_percent("change_out_of_the_box"), 2, before_tuning=True)
CHANGE_WITH_NORMS = Measure(_percent("change_norms_measured"), 2, before_tuning=True)
FINE_TUNED = Measure(_percent("target", "test_accuracy"), 2)
PSNR = Measure(lambda log: log.results.get("mean_psnr"), 3)
SECONDS = Measure(_seconds_per_epoch, 1)


def error_of(target: str) -> Measure:
    """The mean squared error of a fit on one target."""

    def read(log: Log) -> float | None:
        return log.results.get("targets", {}).get(target, {}).get("mse")

    return Measure(read, -2)


def show(value: float, digits: int) -> str:
    """Format a number for a table. Negative `digits` select scientific notation with that many significant digits."""
    if digits < 0:
        return re.sub(r"e([-+])0", r"e\1", f"{value:.{-digits - 1}e}")
    return f"{value:.{digits}f}".replace("-", "−")
