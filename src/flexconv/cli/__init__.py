"""The `flexconv` command, with one file per group of subcommands. `flexconv COMMAND --help` describes each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

from .._text import printable
from .._version import __version__
from ..errors import ArgumentError
from . import _common
from ._bench import bench
from ._common import App, typer
from ._common import console as console
from ._common import print_table as print_table
from ._common import say as say
from ._data import fetch, ls, show
from ._eval import evaluate
from ._explore import explore
from ._export import export
from ._inspect import inspect
from ._models import models
from ._predict import predict
from ._recipes import recipes
from ._resample import resample
from ._start import pause_collector
from ._threads import set_up_threads
from ._train import fit, train

app = App()
data = App(help="List, show and download data sets.")


def _version(wanted: bool) -> None:
    if wanted:
        say(f"flexconv {__version__}")
        raise typer.Exit


@app.callback()
def flexconv(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, evaluate and inspect networks whose convolutions learn their size."""


def _examples(*lines: str) -> str:
    """The last lines of a help text. The backspace character tells click not to wrap them."""
    return "\b\nExamples:\n" + "\n".join(f"  flexconv {line}" for line in lines)


app.command(epilog=_examples("train digits --set epochs=5 --out runs/mine", "train --resume runs/mine"))(train)
app.command("eval", epilog=_examples("eval runs/digits", "eval runs/pets --data folder --data-option path=photos"))(
    evaluate
)
app.command(epilog=_examples("predict runs/pets photos --top 3", "predict runs/words talk.wav --chunks --json"))(
    predict
)
app.command(epilog=_examples("resample runs/digits --to 32", "resample runs/digits --to 24 --recalibrate 9"))(resample)
app.command(epilog=_examples("inspect runs/digits --html page.html", "inspect runs/digits --pictures plots"))(inspect)
app.command(epilog=_examples("explore runs/digits", "explore runs/digits flexnet3-digits --out both.html"))(explore)
app.command(epilog=_examples("export runs/digits --format onnx --resolution 32"))(export)
app.command(imports=["models"], epilog=_examples("models", "models --json"))(models)
app.command(epilog=_examples("recipes --all", "recipes digits > mine.yaml"))(recipes)
app.command(epilog=_examples("fit fit-gabor --set steps=500", "fit --resume runs/kodak"))(fit)
app.command(epilog=_examples("bench ops --out ops.md", "bench steps --device cuda --out steps.json"))(bench)
app.add_typer(data, name="data")
data.command(imports=["data"], epilog=_examples("data ls", "data ls cifar10 --check"))(ls)
data.command(epilog=_examples("data show waves.csv --set data.label=species", "data show photos"))(show)
data.command(imports=["data"], epilog=_examples("data fetch cifar10"))(fetch)


@app.command(
    "paper", imports=[], hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
@app.command(
    "ship", imports=[], hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def moved() -> None:
    """Moved: the reproduction of the paper is no longer part of the package."""
    raise ArgumentError("flexconv paper and ship have moved: use `python -m reproduction` in a checkout of flexconv")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. The default arguments are those of this process."""
    return _common.run(app, arguments)


def main() -> NoReturn:
    """The entry point `flexconv`."""
    pause_collector()
    set_up_threads()
    warnings.formatwarning = lambda message, *_: (
        f"warning: {printable(str(message))}\n"
    )  # a user of the command has no use for the line of code
    sys.exit(run())
