"""The `flexconv` command. Every subcommand explains itself with --help."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise SystemExit(f'the flexconv command needs {error.name}: pip install "flexconv[train]"') from error

if TYPE_CHECKING:
    from .data import DataSplits
    from .models import Model
    from .train import Recipe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Convolutions that learn how large they are: train, evaluate, look inside.",
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Data sets: what there is, and getting it.")
app.add_typer(data_app, name="data")
console, errors = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)

Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe; repeatable.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets; else FLEXCONV_DATA, else the user's cache.")]
ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a folder of weights, or a shipped name.")
]


# --- training ---------------------------------------------------------------------------------------------------------


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A name from `flexconv recipes`, or a YAML file.")] = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/RECIPE.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run.")] = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Train by a recipe.

    Example: flexconv train digits --set epochs=10 --out runs/mine
    """
    from . import train as training

    if (recipe is None) == (resume is None):
        raise typer.BadParameter("name a recipe, or a folder with --resume (and not both)")
    if resume is not None:
        if changes or out is not None:
            raise typer.BadParameter(
                "a resumed run keeps its recipe and folder: --set and --out do not go with --resume"
            )
        folder = resume
        results = training.resume(folder, device=device, console=console)
    else:
        assert recipe is not None
        loaded = training.load_recipe(recipe, [*(changes or []), *([f"data.root={root}"] if root else [])])
        if isinstance(loaded, training.FitRecipe):
            raise typer.BadParameter(f"{recipe} fits a function: flexconv fit {recipe}")
        folder = out or training.default_folder(recipe)
        console.print(f"run folder: {folder}", highlight=False)
        results = training.train(loaded, folder, device=device, console=console)
    if int(os.environ.get("RANK", "0")) == 0:
        _print_results(results, folder)


@app.command()
def fit(
    recipe: Annotated[str, typer.Argument(help="A recipe of kind fit, by name or as a YAML file.")],
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; by default runs/RECIPE.")] = None,
    device: Device = "auto",
) -> None:
    """Fit a kernel generator to an image or a function.

    Example: flexconv fit kodak-magnet --set steps=2000
    """
    from . import train as training

    loaded = training.load_recipe(recipe, changes or [])
    if not isinstance(loaded, training.FitRecipe):
        raise typer.BadParameter(f"{recipe} trains a network: flexconv train {recipe}")
    folder = out or training.default_folder(recipe)
    results = training.fit(loaded, folder, device=device, console=console)
    _print_results(results, folder)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this one whole, defaults included.")] = None,
    changes: Changes = None,
) -> None:
    """List the recipes, or print one.

    Example: flexconv recipes flexnet7-cifar10/gabor
    """
    from . import train as training
    from .train._read import _yaml, plain
    from .train.folder import _lists

    if name is not None:
        tree = _lists(plain(training.load_recipe(name, changes or [])))
        console.print(_yaml().safe_dump(tree, sort_keys=False, allow_unicode=True), highlight=False, markup=False)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("about")
    for known, about in training.list_recipes().items():
        table.add_row(known, about)
    console.print(table)


# --- using what was trained -------------------------------------------------------------------------------------------


@app.command("eval")
def evaluate(
    model: ModelName,
    data: Annotated[str | None, typer.Option(help="Data set; by default the one it was trained on.")] = None,
    part: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Accuracy of a trained model.

    Example: flexconv eval runs/digits
    """
    network, splits = _model_and_data(model, data, root)
    score = _score(network, splits, part, batch_size, device)
    console.print(f"{splits.name} {part}: {100 * score.accuracy:.2f} % of {score.count:,}, loss {score.loss:.4f}")
    if splits.note:
        console.print(f"note: {splits.note}")


@app.command()
def resample(
    model: ModelName,
    to: Annotated[str, typer.Option(help="Image size (64 or 48x64) or length in samples to evaluate at.")],
    data: Annotated[str | None, typer.Option(help="Data set; by default the one it was trained on.")] = None,
    crop: Annotated[str, typer.Option(help="taper, or hard as in the paper.")] = "taper",
    recalibrate: Annotated[int, typer.Option(min=0, help="Training batches to measure batch norms on again.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Evaluate a trained model at another resolution, without training.

    Example: flexconv resample runs/digits --to 16
    """
    from itertools import islice

    from .data import DeviceBatches
    from .resolution import at_resolution, recalibrate_batchnorm

    network, splits = _model_and_data(model, data, root)
    before = splits.train.sample_shape[1:]
    after = _sizes(to, len(before))
    if len(before) != 2:
        raise typer.BadParameter(f"resample is for images; {splits.name} holds series of {before[0]} samples")
    other = splits.at_resolution((after[0], after[1]))
    here = _score(network, splits, "test", batch_size, device)
    network = at_resolution(network, [new / old for new, old in zip(after, before, strict=True)], crop=crop)
    if recalibrate:
        where = _device(device)
        batches = DeviceBatches(other.train, batch_size, shuffle=True, device=where)
        recalibrate_batchnorm(network.to(where), islice(batches, recalibrate))
    there = _score(network, other, "test", batch_size, device)
    table = Table(box=None, pad_edge=False)
    for title in ("resolution", "test accuracy", "loss"):
        table.add_column(title, justify="right")
    for size, score in ((before, here), (after, there)):
        table.add_row("×".join(map(str, size)), f"{100 * score.accuracy:.2f} %", f"{score.loss:.4f}")
    console.print(table)


@app.command()
def inspect(
    model: ModelName,
    pictures: Annotated[Path | None, typer.Option(help="Draw masks, kernels and spectra into this folder.")] = None,
) -> None:
    """Sizes, masks, frequencies and parameters, layer by layer.

    Example: flexconv inspect runs/digits --pictures pictures
    """
    from .summary import summarize

    network, _ = _load(model)
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for title in ("channels", "size", "of", "mask centre", "sigma", "frequency", "Nyquist", "parameters"):
        table.add_column(title, justify="right")
    for layer in summarize(network):
        table.add_row(
            layer.name,
            f"{layer.channels[0]}→{layer.channels[1]}",
            "×".join(map(str, layer.extent)),
            "×".join(map(str, layer.grid)),
            _numbers(layer.mean),
            _numbers(layer.sigma),
            _numbers(layer.frequency, 1),
            _numbers(layer.nyquist, 1),
            f"{layer.parameters:,}",
        )
    console.print(table)
    console.print(f"{sum(p.numel() for p in network.parameters()):,} parameters in all", highlight=False)
    if pictures is not None:
        _draw(network, pictures)


# --- data -------------------------------------------------------------------------------------------------------------


@data_app.command("ls")
def data_ls(root: Root = None) -> None:
    """What data sets there are, and which of them are here.

    Example: flexconv data ls
    """
    from . import data as datasets

    table = Table(box=None, pad_edge=False)
    for title in ("name", "state", "what", "licence"):
        table.add_column(title, no_wrap=title == "name")
    for name in datasets.list_datasets():
        status = datasets.status(name, root=root)
        table.add_row(name, status.state, datasets.dataset(name).title, datasets.dataset(name).licence)
    console.print(table)


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A name from `flexconv data ls`.")], root: Root = None) -> None:
    """Get a data set, unless it is here, and check it.

    Example: flexconv data fetch cifar10
    """
    from . import data as datasets

    console.print(f"{name} is in {datasets.fetch(name, root=root)}", highlight=False)


# --- parts ------------------------------------------------------------------------------------------------------------


def _load(name: str) -> tuple[Model, Recipe | None]:
    """A model by run folder, weights folder or name; with its recipe where that is known."""
    from .models import from_pretrained
    from .train import FitRecipe, RunError, RunFolder

    run = RunFolder(name)
    if not run.exists:
        return from_pretrained(name), None
    recipe = run.read_recipe()
    if isinstance(recipe, FitRecipe):
        raise RunError(f"{name} is a fit: there is no network in it")
    if not run.weights.is_dir():
        stages = [stage for stage in ("source", "target") if (run.path / stage / "weights").is_dir()]
        where = (
            f"name a stage of it: {', '.join(f'{run.path}/{stage}' for stage in stages)}"
            if stages
            else (f"it is not finished; flexconv train --resume {name}")
        )
        raise RunError(f"{name} holds no finished network: {where}")
    return from_pretrained(run.weights), recipe


def _model_and_data(name: str, data: str | None, root: Path | None) -> tuple[Model, DataSplits]:
    from dataclasses import replace

    from . import data as datasets
    from .train import load_data

    model, recipe = _load(name)
    if data is not None:
        return model, datasets.load(data, root=root)
    if recipe is None:
        raise typer.BadParameter(f"{name} does not say what data it was trained on: add --data NAME")
    settings = replace(recipe.data, root=str(root)) if root is not None else recipe.data
    return model, load_data(replace(recipe, data=settings))


def _score(model: Model, splits: DataSplits, part: str, batch_size: int, device: str) -> Any:
    from ._arguments import unknown_name
    from .data import DeviceBatches
    from .train import evaluate as measure

    if part not in ("test", "validation", "train"):
        unknown_name("part", part, ("test", "validation", "train"))
    split = getattr(splits, part)
    if split is None:
        raise typer.BadParameter(f"{splits.name} has no {part} part here")
    where = _device(device)
    return measure(model.to(where), DeviceBatches(split, batch_size, device=where))


def _device(name: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _sizes(text: str, axes: int) -> list[int]:
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts) or len(parts) not in (1, axes):
        raise typer.BadParameter(f"--to wants a size such as 64, or one per axis such as 48x64; got {text!r}")
    return [int(part) for part in parts] * (axes if len(parts) == 1 else 1)


def _numbers(values: Sequence[float] | None, digits: int = 2) -> str:
    return "–" if values is None else " ".join(f"{value:.{digits}f}" for value in values)


def _print_results(results: dict[str, Any], folder: Path) -> None:
    if "out_of_the_box" in results:
        source, shot = results["source"]["test_accuracy"], results["out_of_the_box"]["accuracy"]
        console.print(f"source {100 * source:.2f} %, out of the box {100 * shot:.2f} %", highlight=False)
        if "target" in results:
            console.print(f"fine-tuned {100 * results['target']['test_accuracy']:.2f} %", highlight=False)
    console.print(f"results, weights and pictures are in {folder}", highlight=False)


def _draw(model: Model, folder: Path) -> None:
    from . import viz
    from .nn._conv import FlexConvNd

    folder.mkdir(parents=True, exist_ok=True)
    viz.plot_masks(model).savefig(folder / "masks.png")
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    for name, layer in layers:
        viz.plot_kernel(layer).savefig(folder / f"{name}-kernel.png")
        viz.plot_spectrum(layer).savefig(folder / f"{name}-spectrum.png")
    console.print(f"{1 + 2 * len(layers)} pictures in {folder}", highlight=False)


def main() -> None:
    """Run the command; exit with 2 for what the user got wrong, 1 for what failed, 130 for Ctrl-C."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        errors.print("stopped")
        sys.exit(130)
    except Exception as error:
        sys.exit(_explain(error))


def _explain(error: Exception) -> int:
    """Say what went wrong in one line, as far as we know it; the exit code."""
    from .data import DataError

    if type(error).__name__ == "Interrupted":
        errors.print(f"stopped by {error}; go on with: flexconv train --resume DIR", highlight=False)
        return 130
    known = (ValueError, TypeError, OSError, ImportError, RuntimeError, DataError)
    if not isinstance(error, known) or os.environ.get("FLEXCONV_TRACEBACK"):
        raise error
    errors.print(f"error: {error}", style="red", highlight=False, markup=False)
    return 2 if isinstance(error, ValueError | TypeError | FileNotFoundError) else 1


if __name__ == "__main__":
    main()
