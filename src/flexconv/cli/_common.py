"""What the subcommands share: common options, printing, errors and exit codes."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from ..errors import ArgumentError, ArgumentTypeError, FlexConvError, MissingPackageError, RunError

try:
    import typer
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from typer.core import TyperCommand
except ImportError as error:
    raise SystemExit(str(MissingPackageError(f"the flexconv command needs {error.name}", extra="train"))) from error

from .._arguments import unknown_name
from .._text import printable
from ._complete import complete
from ._hints import recipe_hint
from ._start import import_modules

WIDE = 10_000  # columns if the output is not a terminal, so that no line is wrapped
DEVICES = ("auto", "cpu", "cuda")

console = Console(soft_wrap=True, emoji=False)
errors = Console(stderr=True, soft_wrap=True, emoji=False)


def _check_device(name: str) -> str:
    if name not in DEVICES:
        unknown_name("device", name, DEVICES)
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ArgumentError("--device cuda: torch finds no GPU here; use --device cpu, or leave out --device")
    return name


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a value of the recipe, such as optim.lr=0.001. Repeatable."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",  # typer 0.27.0 would call it --DEVICE, because of the metavar
        callback=_check_device,
        metavar="DEVICE",
        help="Device: cpu, cuda, or auto to use a GPU if there is one.",
        autocompletion=complete(lambda: DEVICES),
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of the data sets. [default: $FLEXCONV_DATA, else a folder in the user's cache]"
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for the run. [default: runs/RECIPE, or runs/RECIPE-2 if that exists]"),
]


class Command(TyperCommand):
    """A subcommand whose help shows arguments as MODEL, without the braces and Python types that typer adds.

    The modules of flexconv in `imports` are imported before it runs. Its help needs none of them.
    """

    imports: tuple[str, ...] = ("train",)

    def invoke(self, ctx: Any) -> Any:
        import_modules(self.imports)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            parameters = [each for each in self.get_params(ctx) if each.param_type_name == kind]
            records = [record for each in parameters if (record := each.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl([(re.sub(r" <.*>$", "", name), text) for name, text in records])


class App(typer.Typer):
    """A group of subcommands of the class `Command`. Its help is plain text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)

    def command(self, name: str | None = None, *, imports: Sequence[str] | None = None, **settings: Any) -> Any:
        kind = Command if imports is None else type("Command", (Command,), {"imports": tuple(imports)})
        return super().command(name, cls=kind, **settings)


# --- printing ---------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print text without markup or wrapping. Control characters in it are shown, see `printable`."""
    console.print(printable(text), highlight=False, markup=False)


def note(text: str) -> None:
    """Print a remark on stderr, so that it does not mix with results that another program reads."""
    errors.print(printable(text), highlight=False, markup=False)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows under titles, with the columns named in `right` aligned right. Wraps lines only in a terminal."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(
            Text(printable(title, one_line=True)), justify="right" if title in right else "left", no_wrap=number == 0
        )
    for row in rows:
        table.add_row(*(Text(printable(cell, one_line=True)) for cell in row))
    paper = Console(file=io.StringIO(), width=console.width if console.is_terminal else WIDE, emoji=False)
    with paper.capture() as drawn:
        paper.print(table, highlight=False, markup=False)
    for line in drawn.get().splitlines():
        say(line.rstrip())


def percent(share: float) -> str:
    """A small share with one significant digit, such as <0.1%, 0.3% or 12%."""
    if share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if share < 0.00995 else f"{share:.0%}"


# --- ending -----------------------------------------------------------------------------------------------------------

_ClickUsageError: Any = typer.BadParameter.__base__  # click is a dependency of typer, or vendored, by its version

REPORT = "This is a bug in flexconv. Please report it with the command that you ran and the traceback above."


class Stopped(Exception):  # noqa: N818  (it is not an error)
    """A signal ended the command. The message says how to continue."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.code = 128 + number


def run(app: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit code.

    The code is 0 on success, 2 for a mistake in the command line, a recipe or a file name, 1 for a failure, and
    128 + n after signal n (130 after Ctrl-C). A `FlexConvError` or an `OSError` is printed as one line on stderr. Any
    other exception is a bug: its traceback is printed, and a request to report it. With FLEXCONV_TRACEBACK=1 in the
    environment every exception is raised instead.
    """
    try:
        code = app(arguments, standalone_mode=False, prog_name="flexconv")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except SystemExit as finished:  # typer prints the completion script in this way
        code = finished.code
    except Stopped as stopped:
        _print_error(str(stopped))
        return stopped.code
    except _ClickUsageError as error:
        return _report_misuse(error, sys.argv[1:] if arguments is None else arguments)
    except Exception as error:
        if os.environ.get("FLEXCONV_TRACEBACK"):
            raise
        return _report(error)
    if code == 130:
        _print_error("stopped")
    return code if isinstance(code, int) else 0


def _report_misuse(error: Any, arguments: Sequence[str]) -> int:
    """Print what click has to say about the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        say(error.ctx.get_help())
        return 0
    where = error.ctx.command_path if error.ctx is not None else "flexconv"
    message = _hint_at_recipe(error, arguments) or error.format_message().rstrip(".")
    _print_error(f"error: {message} ({where} --help)", red=True)
    return 2


def _hint_at_recipe(error: Any, arguments: Sequence[str]) -> str | None:
    """The message for an unknown option that is a key of a recipe, in a command that can change recipes."""
    if type(error).__name__ != "NoSuchOption" or error.ctx is None:
        return None
    if not any("--set" in parameter.opts for parameter in error.ctx.command.params):
        return None
    fit, mistyped = error.ctx.info_name == "fit", bool(error.possibilities)  # an option of the command, perhaps
    hint = recipe_hint(error.option_name, arguments, fit=fit, exact=mistyped)
    return hint and f"no option {error.option_name}; to change the recipe, use {hint}"


def _report(error: Exception) -> int:
    """Print one line for an expected error, and the traceback of a bug. Returns the exit code."""
    if _is_out_of_memory(error):
        _print_error(f"error: out of memory: {str(error).partition(chr(10))[0]}", red=True)
        return 1
    if not isinstance(error, FlexConvError | OSError):
        _print_error("".join(traceback.format_exception(error)).rstrip())
        _print_error(REPORT, red=True)
        return 1
    _print_error(f"error: {error}", red=True)
    return 2 if _is_mistake_of_user(error) else 1


def _is_mistake_of_user(error: Exception) -> bool:
    """Whether the user can mend the error on the command line or in a recipe, rather than on the machine or in data."""
    from ..data import DataError

    mistakes = (ArgumentError, ArgumentTypeError, FileNotFoundError, FileExistsError, RunError)
    return isinstance(error, mistakes) and not isinstance(error, DataError)


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    # torch has no class of its own for a failed allocation on the CPU
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _print_error(text: str, *, red: bool = False) -> None:
    errors.print(printable(text), style="red" if red else None, highlight=False, markup=False)
