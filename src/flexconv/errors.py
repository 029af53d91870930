"""The errors that flexconv raises on purpose.

Every one of them is a `FlexConvError` and also the built-in exception that torch would raise in its place, so that
`except ValueError` keeps working. The command prints a `FlexConvError` as one line; anything else is a bug in flexconv,
and its traceback is shown.
"""

from __future__ import annotations


class FlexConvError(Exception):
    """Something that the user of flexconv can put right. The message says what was wrong and what would be right."""


class ArgumentError(FlexConvError, ValueError):
    """An argument, a recipe or an option has a value that cannot work."""


class ArgumentTypeError(FlexConvError, TypeError):
    """An argument has the wrong type."""


class UsageError(FlexConvError, RuntimeError):
    """An operation is not possible in the current state, or not on this object."""


class RunError(UsageError):
    """A run folder cannot be used as requested: it holds no run, an unfinished one, or one of another kind."""


class MissingFileError(FlexConvError, FileNotFoundError):
    """A file or folder does not exist."""


class MissingPackageError(FlexConvError, ImportError):
    """An optional package is not installed."""


def first_line(error: Exception) -> str:
    """Return the first informative line of an error message, without the line "... raised:" of torch.compile."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.rstrip().endswith("raised:")]
    return lines[0].strip()[:200] if lines else type(error).__name__
