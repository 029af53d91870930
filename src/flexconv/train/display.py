"""The progress of a run: a bar with loss, accuracy, kernel sizes and time left, and a line per epoch.

Without a terminal, for example in the log of a cluster, a line is printed every minute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .._text import printable

SECONDS_WITHOUT_A_LINE = 60.0


class Display:
    """Shows a progress bar on a terminal and plain lines elsewhere. With `console=None` it shows nothing."""

    def __init__(self, console: Console | None, *, epochs: int, steps_per_epoch: int) -> None:
        self.console, self.epochs, self.steps_per_epoch = console, epochs, steps_per_epoch
        self._said_at = time.monotonic()
        self._bar: Progress | None = None
        if console is not None and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._bar.add_task("training", total=epochs * steps_per_epoch, text="")

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line, in which rich's markup counts. Control characters are shown, see `printable`."""
        if self.console is not None:
            self.console.print(printable(text), highlight=False)
            self._said_at = time.monotonic()

    def step(self, step: int, *, loss: float, accuracy: float, sizes: Mapping[str, Sequence[int]]) -> None:
        """Update the bar, or print a line if the last one was a minute ago."""
        text = f"loss {loss:.3f}  accuracy {100 * accuracy:.1f} %  {short_sizes(sizes)}"
        epoch = max(step - 1, 0) // self.steps_per_epoch + 1
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text, description=f"epoch {epoch}/{self.epochs}")
        elif time.monotonic() - self._said_at > SECONDS_WITHOUT_A_LINE:
            done = step - (epoch - 1) * self.steps_per_epoch
            self.say(f"epoch {epoch:>3}/{self.epochs}, batch {done} of {self.steps_per_epoch}  {text}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Print the results of an epoch."""
        text = f"epoch {record['epoch']:>3}/{self.epochs}  loss {record['train_loss']:.4f}"
        text += f"  train {100 * record['train_accuracy']:.2f} %"
        if "validation_accuracy" in record:
            text += f"  validation {100 * record['validation_accuracy']:.2f} %"
        self.say(f"{text}  {record['epoch_seconds']:.1f} s  {short_sizes(record['sizes'])}")


def short_sizes(sizes: Mapping[str, Sequence[int]], most: int = 8) -> str:
    """Return kernel sizes in one line: 5×5 7×7 …"""
    texts = ["×".join(map(str, size)) for size in sizes.values()]
    if len(texts) > most:
        texts = [*texts[: most // 2], "…", *texts[-(most // 2) :]]
    return " ".join(texts)
