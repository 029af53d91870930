"""Stop a run between two steps on Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

REPEAT_SECONDS = 1.0  # signals in quick succession count as one: `timeout` signals a process and then its group


class Interrupted(Exception):  # noqa: N818  (not an error)
    """The run was stopped by a signal. It can be resumed."""


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], str | None]]:
    """Yield a function that returns the name of the received signal, or None.

    A second signal, at least `REPEAT_SECONDS` later, raises KeyboardInterrupt at once.
    """
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
        elif time.monotonic() - since > REPEAT_SECONDS:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
