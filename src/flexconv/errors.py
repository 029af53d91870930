"""The errors that flexconv raises on purpose.

Each of them is a `FlexConvError` and also the built-in exception that torch or Python would raise in its place, so that
`except ValueError` works as usual. The command prints a `FlexConvError` as one line. Any other exception is a bug in
flexconv, and the command shows its traceback.
"""

from __future__ import annotations


class FlexConvError(Exception):
    """The base class: an error that the user can correct. The message names the wrong value and what would be right."""


class ArgumentError(FlexConvError, ValueError):
    """An argument, an option or a value in a recipe or a file is not possible."""


class ArgumentTypeError(FlexConvError, TypeError):
    """An argument, an option or a value in a recipe or a file has the wrong type."""


class UsageError(FlexConvError, RuntimeError):
    """An operation is not possible in the current state, or not on this object."""


class PrecisionError(FlexConvError, OverflowError):
    """A number cannot be represented in the requested precision, such as 100000 in float16."""


class RunError(UsageError):
    """A run folder cannot be used as requested: it has no run, an unfinished one, or one of another kind."""


class MissingFileError(FlexConvError, FileNotFoundError):
    """A file or a folder does not exist."""


class ExistingFileError(FlexConvError, FileExistsError):
    """A file exists and was not replaced."""


class MissingPackageError(FlexConvError, ModuleNotFoundError):
    """An optional package is not installed.

    Arguments:
        needs: what needs which package, such as "downloading data needs pooch".
        extra: the extra of flexconv that installs it.

    """

    def __init__(self, needs: str, *, extra: str) -> None:
        super().__init__(f'{needs}: pip install ".[{extra}]" in a checkout of flexconv')


def first_line(error: Exception) -> str:
    """Return the first informative line of an error message, without the line "... raised:" of torch.compile."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.rstrip().endswith("raised:")]
    return lines[0].strip()[:200] if lines else type(error).__name__
