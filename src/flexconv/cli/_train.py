"""flexconv train, flexconv fit"""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from ._common import Changes, Device, OutFolder, Root, Stopped, console, say
from ._model import offer_nearest


def train(
    recipe: Annotated[str | None, typer.Argument(help="A name from `flexconv recipes`, or a YAML file.")] = None,
    changes: Changes = None,
    out: OutFolder = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run.")] = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Train a network by a recipe.

    All that comes out of a run lies in its folder. Ctrl-C, a kill or a power cut cost a minute of work at most:
    --resume goes on, and ends with the same weights.
    """
    from .. import train as training

    if (recipe is None) == (resume is None):
        raise ValueError("name a recipe, or a run folder with --resume, and not both")
    if resume is not None:
        if changes or out is not None or root is not None:
            raise ValueError("a resumed run keeps its recipe, folder and data: leave out --set, --out, --root")
        offer_nearest(str(resume))
        if training.RunFolder(resume).finished:
            results = training.resume(resume)
            say(f"{resume} is finished{_outcome(results)}; there is nothing left to do")
            return
        results = _until_stopped(resume, lambda: training.resume(resume, device=device, console=console))
        folder = resume
    else:
        assert recipe is not None
        loaded = training.load_recipe(recipe, [*(changes or []), *([f"data.root={root}"] if root else [])])
        if isinstance(loaded, training.FitRecipe):
            raise ValueError(f"{recipe} fits a function: flexconv fit {recipe}")
        folder = out or training.default_folder(recipe)
        if _first_process():
            say(f"run folder: {folder}")
        results = _until_stopped(folder, lambda: training.train(loaded, folder, device=device, console=console))
    if _first_process():
        _print_results(results, folder)


def fit(
    recipe: Annotated[str, typer.Argument(help="A recipe of kind fit, by name or as a YAML file.")],
    changes: Changes = None,
    out: OutFolder = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Fit a kernel generator to kernels or pictures."""
    from ..train import FitRecipe, default_folder, load_recipe
    from ..train import fit as fit_by

    loaded = load_recipe(recipe, [*(changes or []), *([f"root={root}"] if root else [])])
    if not isinstance(loaded, FitRecipe):
        raise ValueError(f"{recipe} trains a network: flexconv train {recipe}")
    folder = out or default_folder(recipe)
    say(f"run folder: {folder}")
    try:
        fit_by(loaded, folder, device=device, console=console)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; a fit is not resumed: what there is of it is in {folder}") from None
    say(f"results and pictures are in {folder}")


def _until_stopped(folder: Path, work: Any) -> dict[str, Any]:
    """The results of `work()`; where a signal ends it, say how to go on."""
    from ..train import Interrupted, RunFolder

    again = f"go on with: flexconv train --resume {shlex.quote(str(folder))}"
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
    if "out_of_the_box" in results:
        source, shot = results["source"]["test_accuracy"], results["out_of_the_box"]["accuracy"]
        say(f"source {100 * source:.2f} %, out of the box {100 * shot:.2f} %")
        if "target" in results:
            say(f"fine-tuned {100 * results['target']['test_accuracy']:.2f} %")
    say(f"results, weights and pictures are in {folder}")
