"""Runs that are asked to stop between two steps, by Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

IMPATIENCE = 1.0  # seconds: `timeout` signals a process and then its group, so that one wish arrives twice


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """The user or the system asked the run to stop; it can be resumed."""


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], str | None]]:
    """Gives what tells the name of the signal that came, or None. A second one, a while later, is answered at once."""
    asked: list[str] = []
    since = 0.0
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def handle(number: int, _frame: object) -> None:
        nonlocal since
        if not asked:
            asked.append(signal.Signals(number).name)
            since = time.monotonic()
        elif time.monotonic() - since > IMPATIENCE:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
