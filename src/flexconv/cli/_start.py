"""A quick start of the command: imports without the garbage collector.

Importing torch creates about a million objects that exist until the process ends. Python's garbage collector looks
through them several times during the import and once more at the end. Together this takes a fifth as long as the import
itself. So the command switches the collector off until the modules of a subcommand are imported, and then exempts
everything that exists from collections.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable

_paused = False


def pause_collector() -> None:
    """Switch the garbage collector off until `import_modules` has been called. For a process that is the command."""
    global _paused
    if gc.isenabled():
        gc.disable()
        _paused = True


def import_modules(names: Iterable[str]) -> None:
    """Import modules of flexconv, then switch the garbage collector on again if it was paused."""
    global _paused
    for name in names:
        importlib.import_module(f"flexconv.{name}")
    if _paused:
        gc.freeze()
        gc.enable()
        _paused = False
