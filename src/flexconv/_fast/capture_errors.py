"""Find the lines of the user's code that cannot be captured."""

from __future__ import annotations

import contextlib
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

TORCH, FLEXCONV = (f"{Path(path).parent}/" for path in (torch.__file__, Path(__file__).parent))
OWN = (TORCH, FLEXCONV)
COMPILERS = (f"{TORCH}_dynamo/", f"{TORCH}_inductor/", "/triton/")
SYNC = "called a synchronizing CUDA operation"


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return file, line number and source of the innermost line outside of torch and flexconv."""
    for frame in reversed(frames):
        if not frame.filename.startswith(OWN) and not _is_standard(frame):
            return f"{frame.filename}:{frame.lineno}" + (f": {frame.line}" if frame.line else "")
    return "an unknown line"


def _is_allowed(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a compiler waits for the device, or a check of flexconv, but not `refresh_extents`."""
    if any(part in frame.filename for frame in frames for part in COMPILERS):
        return True
    outside = [frame for frame in frames if not frame.filename.startswith(TORCH) and not _is_standard(frame)]
    return bool(outside) and outside[-1].filename.startswith(FLEXCONV) and outside[-1].name != "refresh"


def _is_standard(frame: traceback.FrameSummary) -> bool:
    """Whether a frame belongs to a helper of the standard library."""
    return frame.filename.startswith("<frozen") or Path(frame.filename).name in ("contextlib.py", "warnings.py")


@contextlib.contextmanager
def host_reads() -> Iterator[list[str]]:
    """Inside, list the user's lines in which the host waits for the device.

    Torch warns of most such operations on request. Other warnings are shown as usual. What compilers do is left out,
    and so are the checks of flexconv, which are not made during a capture.
    """
    found: list[str] = []
    mode, show, thread = torch.cuda.get_sync_debug_mode(), warnings.showwarning, threading.get_ident()

    def note(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if SYNC not in str(message):
            show(message, *args, **kwargs)
        elif threading.get_ident() == thread:
            frames = traceback.extract_stack()[:-1]
            if not _is_allowed(frames):
                found.append(users_line(frames))

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=SYNC)
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        warnings.showwarning = note
        try:
            torch.cuda.set_sync_debug_mode("warn")
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(mode)
