"""Runs that are asked to stop between two steps, by Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """The user or the system asked the run to stop; it can be resumed."""


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], str | None]]:
    """Gives what tells the name of the signal that came, or None. A second signal is answered at once."""
    asked: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def handle(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
