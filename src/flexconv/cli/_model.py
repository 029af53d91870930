"""Finding a trained model and its data, and scoring it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._arguments import unknown_name
from ..errors import ArgumentError, MissingFileError
from ._common import say

if TYPE_CHECKING:
    from ..data import DataSplits, DeviceBatches, Split
    from ..models import Inputs, Model
    from ..train import Recipe, Score

PARTS = ("test", "validation", "train")
BATCH_SIZE = 256  # where no recipe says another

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a folder of weights, or a shipped name.")
]
DataName = Annotated[
    str | None,
    typer.Option(help="Data set, standardised as the network was trained; by default the one it was trained on."),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option("--data-option", metavar="KEY=VALUE", help="Of the set in --data, as in path=photos; repeatable."),
]
BatchSize = Annotated[int | None, typer.Option(min=1, help=f"By default that of the training, else {BATCH_SIZE}.")]


def load_model(name: str) -> tuple[Model, Recipe | None]:
    """A model by run folder, weights folder or name; with its recipe where that is known."""
    from ..models import CONFIG, from_pretrained, list_pretrained, pretrained_folder
    from ..train import FitRecipe, RunError, RunFolder

    run = RunFolder(pretrained_folder(name) if name in list_pretrained() else name)
    if not run.exists:
        offer_nearest(name)
        return from_pretrained(name), None
    recipe = run.read_recipe()
    if isinstance(recipe, FitRecipe):
        raise RunError(f"{name} is a fit: there is no network in it")
    if (run.path / CONFIG).is_file():  # a published network
        return from_pretrained(name), recipe
    if not run.weights.is_dir():
        stages = [str(run.path / stage) for stage in ("target", "source") if RunFolder(run.path / stage).finished]
        way = f"name a stage of it: {' or '.join(stages)}" if stages else f"flexconv train --resume {name} finishes it"
        raise RunError(f"{name} holds no finished network; {way}")
    return from_pretrained(run.weights), recipe


def offer_nearest(name: str) -> None:
    """Refuse a folder that is not there where one beside it has a similar name."""
    path = Path(name)
    if path.exists() or not path.parent.is_dir():
        return
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir() if p.is_dir()], n=1)
    if near:
        raise MissingFileError(f"there is no {name}; did you mean {path.parent / near[0]}?")


def load_with_data(
    name: str, data: str | None, root: Path | None, options: Sequence[str] | None = None
) -> tuple[Model, Recipe | None, DataSplits]:
    """A model, its recipe where that is known, and a data set: the one asked for, else that of the recipe.

    `options`: of the set that is asked for, as KEY=VALUE.
    """
    from .. import data as datasets

    given = _read_options(data, options or [])
    model, recipe = load_model(name)
    if data is None:
        return model, recipe, _trained_on(name, recipe, root)
    return model, recipe, _fitted(datasets.load(data, root=root, **given), model)


def _read_options(data: str | None, options: Sequence[str]) -> dict[str, Any]:
    """["path=photos", "image_size=32"] → {"path": "photos", "image_size": 32}; values are read as those of --set."""
    from ..data import check_options
    from ..train import parse_override

    if data is None and options:
        raise ArgumentError(
            f"--data-option {options[0]} is for the set in --data, as in --data folder --data-option path=photos; "
            "data that a run was trained on is looked for below --root"
        )
    given = {}
    for option in options:
        if not re.match(r"\w+=", option):
            raise ArgumentError(f"--data-option is written KEY=VALUE, as in path=photos; got {option!r}")
        given |= parse_override(option)
    if data is not None:
        check_options(data, given)  # here too: `root` and the like would be taken for arguments of `load`
    return given


def _trained_on(name: str, recipe: Recipe | None, root: Path | None) -> DataSplits:
    """The data of a recipe, split and prepared as there."""
    from ..train import load_data

    if recipe is None:
        raise ArgumentError(f"{name} does not say what data it was trained on: add --data NAME")
    settings = recipe.data if root is None else replace(recipe.data, root=str(root))
    return load_data(replace(recipe, data=settings))


def _fitted(splits: DataSplits, model: Model) -> DataSplits:
    """A data set for a network that was made for another: standardised as that, images brought to its size."""
    classes = model.config["num_classes"]
    if splits.num_classes != classes:
        raise ArgumentError(f"{splits.name} has {splits.num_classes} classes, the network {classes}")
    if model.inputs is not None:
        splits = _standardised(splits, model.inputs)
    size = model.config.get("image_size")
    if size is None or splits.image_size is None:
        return splits
    if model.inputs is not None and not model.resampled:  # begun from a trained one, it may have seen other sizes
        size = model.inputs.size
    height, width = (size, size) if isinstance(size, int) else size
    for scales, _ in model.resampled:
        height, width = round(height * scales[0]), round(width * scales[1])
    if splits.train.sample_shape[1:] == (height, width):
        return splits
    say(f"{splits.name}: images are brought to {height}×{width}, which the network was made for")
    return splits.at_resolution((height, width))


def _standardised(splits: DataSplits, inputs: Inputs) -> DataSplits:
    """The data set with the mean and deviation that a network was trained with."""
    import torch

    if inputs.mfcc_rate not in (None, rate := splits.train.mfcc_rate):
        here = "no MFCCs (--data-option features=mfcc)" if rate is None else f"MFCCs at {rate} Hz"
        raise ArgumentError(f"the network was trained on MFCCs at {inputs.mfcc_rate} Hz; {splits.name} has {here}")
    if splits.in_channels != len(inputs.mean):
        raise ArgumentError(f"{splits.name} has {splits.in_channels} channels, the network {len(inputs.mean)}")
    if splits.class_names != inputs.classes:
        ours, theirs = (", ".join(names[:8]) for names in (splits.class_names, inputs.classes))
        say(f"note: classes are compared by their order, {ours} here and {theirs} in training")
    shape = (-1, *(1 for _ in splits.train.sample_shape[1:]))
    mean, std = (torch.tensor(values).view(shape) for values in (inputs.mean, inputs.std))
    parts = {part: getattr(splits, part) for part in PARTS}
    return replace(splits, **{k: v and replace(v, mean=mean, std=std) for k, v in parts.items()})


def part_of(splits: DataSplits, part: str) -> Split:
    """One part of a data set, by its name."""
    if part not in PARTS:
        unknown_name("part", part, PARTS)
    split = getattr(splits, part)
    if split is None:
        raise ArgumentError(f"{splits.name} has no {part} part here")
    return split


class Scorer:
    """Scores models as a training run does at its end."""

    def __init__(self, recipe: Recipe | None, *, device: str, batch_size: int | None) -> None:
        from ..train import DataRecipe, ModelRecipe, Recipe, make_fabric

        plain = Recipe(model=ModelRecipe(name=""), data=DataRecipe(name=""), batch_size=BATCH_SIZE)
        self.batch_size = batch_size or (recipe or plain).batch_size
        self.device = make_fabric(replace(recipe or plain, precision="fp32"), device).device

    def batches(self, split: Split, model: Model, **settings: Any) -> DeviceBatches:
        """Batches of a split in the precision of a model; `settings` are those of `DeviceBatches`."""
        import torch

        from ..data import DeviceBatches

        double = next(model.parameters()).dtype == torch.float64
        dtype = torch.float64 if double else torch.float32
        return DeviceBatches(split, self.batch_size, device=self.device, dtype=dtype, **settings)

    def __call__(self, model: Model, batches: DeviceBatches) -> Score:
        from ..train import evaluate_exactly

        return evaluate_exactly(model.to(self.device), batches)
