"""Whether this process is the `flexconv` command."""

from __future__ import annotations

import sys
from pathlib import Path


def is_command() -> bool:
    """Whether this process was started as `flexconv` or as `python -m flexconv`."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # while Python looks for the module to run, it has not yet replaced this by a file name
        options = sys.orig_argv[1:]
        module = options[options.index("-m") + 1] if "-m" in options[:-1] else ""
        return module in ("flexconv", "flexconv.cli")
    path = Path(program)
    return path.stem == "flexconv" or path.parts[-2:] == ("flexconv", "__main__.py")
