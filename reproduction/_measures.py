"""How the log of a finished run gives the number of a table."""

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
    """A number of a log, in the paper's units; None where that log has none. `digits` are printed behind the point.

    One that a run has `before_tuning` does not depend on whether it is fine-tuned.
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
    """The median: the first epoch also compiles and captures."""
    times = [record["epoch_seconds"] for record in log.metrics if "epoch_seconds" in record]
    return statistics.median(times) if times else None


ACCURACY = Measure(_percent("test_accuracy"), 2)
TOP_5 = Measure(_percent("test_top5"), 2)
SOURCE = Measure(_percent("source", "test_accuracy"), 2, before_tuning=True)
CHANGE = Measure(_percent("change_out_of_the_box"), 2, before_tuning=True)
CHANGE_WITH_NORMS = Measure(_percent("change_norms_measured"), 2, before_tuning=True)
FINE_TUNED = Measure(_percent("target", "test_accuracy"), 2)
PSNR = Measure(lambda log: log.results.get("mean_psnr"), 3)
SECONDS = Measure(_seconds_per_epoch, 1)


def error_of(target: str) -> Measure:
    """The mean squared error of one target of a fit."""

    def read(log: Log) -> float | None:
        return log.results.get("targets", {}).get(target, {}).get("mse")

    return Measure(read, -2)


def show(value: float, digits: int) -> str:
    """A number as the tables print it; negative `digits` are the significant ones of a small number."""
    if digits < 0:
        return re.sub(r"e([-+])0", r"e\1", f"{value:.{-digits - 1}e}")
    return f"{value:.{digits}f}".replace("-", "−")
