"""flexconv train, flexconv fit"""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ArgumentError
from ._common import Changes, Device, OutFolder, Root, Stopped, console, say
from ._complete import complete, recipe_names
from ._model import offer_nearest


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="The name of a recipe (see `flexconv recipes`) or a YAML file.",
            autocompletion=complete(recipe_names),
        ),
    ] = None,
    changes: Changes = None,
    out: OutFolder = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the interrupted run in this folder.")
    ] = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Train a network as a recipe describes.

    All results are written to the folder of the run. A run saves a checkpoint every minute. After Ctrl-C, a kill or
    a power cut, --resume continues it and ends with the same weights (on a GPU, up to rounding). With --resume, only
    --set engine=NAME may be given.
    """
    from .. import train as training

    if resume is not None:
        engines = [change.removeprefix("engine=") for change in changes or () if change.startswith("engine=")]
        alone = not any((recipe, out)) and len(changes or ()) == len(engines) < 2
        _go_on(resume, "train", device, root, alone=alone, engine=engines[0] if engines else None)
        return
    if recipe is None:
        raise ArgumentError("give a recipe, or a run folder with --resume")
    loaded = training.load_recipe(recipe, [*(changes or []), *([{"data": {"root": str(root)}}] if root else [])])
    if isinstance(loaded, training.FitRecipe):
        raise ArgumentError(f"{recipe} is a recipe for a fit: use flexconv fit {recipe}")
    folder = out or training.default_folder(recipe)
    results = _until_stopped(folder, "train", lambda: training.train(loaded, folder, device=device, console=console))
    _print_results(results, folder)


def fit(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe of kind fit: its name or a YAML file.",
            autocompletion=complete(recipe_names),
        ),
    ] = None,
    changes: Changes = None,
    out: OutFolder = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the interrupted fit in this folder.")
    ] = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Fit a kernel generator to kernels or images.

    An interrupted fit is continued with --resume, as in `flexconv train`.
    """
    from .. import train as training

    if resume is not None:
        _go_on(resume, "fit", device, root, alone=not any((recipe, changes, out)))
        return
    if recipe is None:
        raise ArgumentError("give a recipe, or a run folder with --resume")
    loaded = training.load_recipe(recipe, [*(changes or []), *([{"root": str(root)}] if root else [])])
    if not isinstance(loaded, training.FitRecipe):
        raise ArgumentError(f"{recipe} is a recipe for training: use flexconv train {recipe}")
    folder = out or training.default_folder(recipe)
    results = _until_stopped(folder, "fit", lambda: training.fit(loaded, folder, device=device, console=console))
    _print_results(results, folder)


def _go_on(
    folder: Path, command: str, device: str, root: Path | None, *, alone: bool, engine: str | None = None
) -> None:
    """Resume a run. `root` is the new place of its data, if given; `alone` says that no other option was given."""
    from .. import train as training

    if not alone:
        but = "; only --set engine=NAME is allowed" if command == "train" else ""
        raise ArgumentError(f"a resumed run keeps its recipe and folder: leave out the recipe, --set and --out{but}")
    offer_nearest(str(folder))
    kind = "fit" if isinstance(training.RunFolder(folder).read_recipe(), training.FitRecipe) else "train"
    if kind != command:
        raise ArgumentError(
            f"{folder} is not a run of flexconv {command}: use flexconv {kind} --resume {shlex.quote(str(folder))}"
        )
    if training.RunFolder(folder).finished:
        results = training.resume(folder)
        say(f"{folder} is already finished{_outcome(results)}")
        return
    results = _until_stopped(
        folder, command, lambda: training.resume(folder, root=root, engine=engine, device=device, console=console)
    )
    _print_results(results, folder)


def _until_stopped(folder: Path, command: str, work: Any) -> dict[str, Any]:
    """Return the results of `work()`. If a signal ends it, print how to continue."""
    from ..train import Interrupted, RunFolder

    again = f"continue with: flexconv {command} --resume {shlex.quote(str(folder))}"
    try:
        return work()
    except Interrupted as stop:
        raise Stopped(f"stopped by {stop}, the run is saved; {again}", signal.Signals[str(stop)]) from None
    except KeyboardInterrupt:  # before the first step, or a second Ctrl-C
        raise Stopped(f"stopped; {again}" if RunFolder(folder).exists else "stopped") from None


def _first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _outcome(results: dict[str, Any]) -> str:
    accuracy = results.get("test_accuracy")
    return "" if accuracy is None else f", with {100 * accuracy:.2f} % test accuracy after {results['epochs']} epochs"


def _print_results(results: dict[str, Any], folder: Path) -> None:
    if not _first_process():
        return
    if "out_of_the_box" in results:
        source, shot = results["source"]["test_accuracy"], results["out_of_the_box"]["accuracy"]
        say(f"source {100 * source:.2f} %, out of the box {100 * shot:.2f} %")
        if "norms_measured" in results:
            say(f"with recalibrated batch norms {100 * results['norms_measured']['accuracy']:.2f} %")
        if "target" in results:
            say(f"fine-tuned {100 * results['target']['test_accuracy']:.2f} %")
    fitted = "targets" in results
    say(f"results{'' if fitted else ', weights'} and plots are in {folder}")
