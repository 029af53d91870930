"""Name the line of the user's code that cannot be captured."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

OWN = tuple(f"{Path(path).parent}/" for path in (torch.__file__, Path(__file__).parent))


def users_line(error: BaseException) -> str | None:
    """Return file, line number and source of the innermost line outside of torch and flexconv, or None."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        library = frame.filename.startswith(OWN) or frame.filename.startswith("<frozen")
        if not library and Path(frame.filename).name != "contextlib.py":
            source = f": {frame.line}" if frame.line else ""
            return f"{frame.filename}:{frame.lineno}{source}"
    return None
