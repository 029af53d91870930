"""What all subcommands share: common options, where they print, how they end."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise SystemExit(f'the flexconv command needs {error.name}: pip install "flexconv[train]"') from error

from .._arguments import unknown_name
from ..errors import ArgumentError

WIDE = 10_000  # columns of what is no terminal: nothing is wrapped there
DEVICES = ("auto", "cpu", "cuda")

console = Console(soft_wrap=True, emoji=False)
errors = Console(stderr=True, soft_wrap=True, emoji=False)


def _check_device(name: str) -> str:
    if name not in DEVICES:
        unknown_name("device", name, DEVICES)
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ArgumentError("there is no GPU here that torch can use: leave --device out, or say --device cpu")
    return name


Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe, as in optim.lr=0.001; repeatable."),
]
Device = Annotated[str, typer.Option(callback=_check_device, help="cpu, cuda, or auto: a GPU where there is one.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets; else FLEXCONV_DATA, else the user's cache.")]
OutFolder = Annotated[
    Path | None, typer.Option(help="Run folder; by default runs/RECIPE, with a number where that is taken.")
]


# --- printing ---------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A line for the user, as it is."""
    console.print(text, highlight=False, markup=False)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Columns under titles, those named in `right` flush right. Only a terminal has an edge to wrap at."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if title in right else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    paper = Console(file=io.StringIO(), width=console.width if console.is_terminal else WIDE, emoji=False)
    with paper.capture() as drawn:
        paper.print(table, highlight=False, markup=False)
    for line in drawn.get().splitlines():
        say(line.rstrip())


# --- ending -----------------------------------------------------------------------------------------------------------

_UsageError: Any = typer.BadParameter.__base__  # of click, which typer has inside or beside it, by its version


class Stopped(Exception):  # noqa: N818  (it is no error)
    """A signal ended the command; the message says how to go on."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.code = 128 + number


def run(app: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run a command → its exit code: 0, 2 for what the user got wrong, 1 for what failed, 130 for Ctrl-C.

    What went wrong is said in one line on stderr; with FLEXCONV_TRACEBACK=1 in the environment the error is raised.
    """
    try:
        code = app(arguments, standalone_mode=False, prog_name="flexconv")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Stopped as stopped:
        _complain(str(stopped))
        return stopped.code
    except _UsageError as error:
        return _misused(error)
    except Exception as error:
        if os.environ.get("FLEXCONV_TRACEBACK"):
            raise
        return _explain(error)
    if code == 130:
        _complain("stopped")
    return code if isinstance(code, int) else 0


def _misused(error: Any) -> int:
    """What click says about the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        say(error.ctx.get_help())
        return 0
    where = error.ctx.command_path if error.ctx is not None else "flexconv"
    _complain(f"error: {error.format_message().rstrip('.')} ({where} --help)", red=True)
    return 2


def _explain(error: Exception) -> int:
    """Say what went wrong, as far as we know it; raise what we do not know."""
    from ..data import DataError

    known = (ValueError, TypeError, OSError, ImportError, RuntimeError, DataError)
    if not isinstance(error, known):
        raise error
    _complain(f"error: {error}", red=True)
    if isinstance(error, DataError):
        return 1
    return 2 if isinstance(error, ValueError | TypeError | FileNotFoundError) or _is_run_error(error) else 1


def _is_run_error(error: Exception) -> bool:
    if isinstance(error, ImportError):  # maybe of what is imported here
        return False
    from ..train import RunError

    return isinstance(error, RunError)


def _complain(text: str, *, red: bool = False) -> None:
    errors.print(text, style="red" if red else None, highlight=False, markup=False)
