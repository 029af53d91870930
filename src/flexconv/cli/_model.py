"""Find a trained model and its data, and evaluate it."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._arguments import unknown_name
from .._files import expand_home
from ..errors import ArgumentError, MissingFileError
from ._common import note
from ._complete import complete, network_names

if TYPE_CHECKING:
    from ..data import DataSplits, DeviceBatches, Split
    from ..models import Inputs, Model
    from ..train import Recipe, Score

PARTS = ("test", "validation", "train")
BATCH_SIZE = 256  # for a model without a recipe
TABLE_OPTIONS = ("label", "id", "time", "columns", "ignore", "shape", "layout", "delimiter", "header")
KINDS = {1: "series", 2: "images", 3: "volumes"}

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run folder, a folder of weights, or the name of a pretrained network (see `flexconv models`).",
        autocompletion=complete(network_names),
    ),
]
DataName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Data set to use, or a file or folder of your own, standardized as in training. "
        "[default: the data that the model was trained on]",
    ),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--data-option",
        metavar="KEY=VALUE",
        help="Set an option of the data set in --data, such as path=photos. Repeatable.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help=f"Samples per batch. [default: as in training, or {BATCH_SIZE} if that is not known]",
    ),
]


def load_model(name: str) -> tuple[Model, Recipe | None]:
    """Load a model from a run folder, a folder of weights or by name. Returns its recipe too, if it has one."""
    from ..models import CONFIG, from_pretrained, list_pretrained, pretrained_folder
    from ..train import FitRecipe, RunError, RunFolder

    run = RunFolder(pretrained_folder(name) if name in list_pretrained() else name)
    if not run.exists:
        offer_nearest(name)
        return from_pretrained(name), None
    recipe = run.read_recipe()
    if isinstance(recipe, FitRecipe):
        raise RunError(f"{name} is the folder of a fit, which has no network")
    if (run.path / CONFIG).is_file():  # a published network
        return from_pretrained(name), recipe
    if not run.weights.is_dir():
        stages = [
            str(run.path / stage) for stage in ("target", "source") if RunFolder(run.path / stage).weights.is_dir()
        ]
        if run.finished and not stages:
            raise RunError(f"{name} contains the log of a finished run, but not its network: {run.weights} is missing")
        resume = f"finish it: flexconv train --resume {shlex.quote(name)}"
        way = f"name one of its stages: {' or '.join(stages)}" if stages else resume
        raise RunError(f"{name} has no finished network; {way}")
    return from_pretrained(run.weights), recipe


def offer_nearest(name: str) -> None:
    """Raise an error that suggests a folder with a similar name, if `name` does not exist and there is one."""
    path = Path(name)
    if path.exists() or not path.parent.is_dir():
        return
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir() if p.is_dir()], n=1)
    if near:
        raise MissingFileError(f"there is no {name}; did you mean {path.parent / near[0]}?")


def load_with_data(
    name: str, data: str | None, root: Path | None, options: Sequence[str] | None = None
) -> tuple[Model, Recipe | None, DataSplits]:
    """Load a model, its recipe if it has one, and data: the set named `data`, or the one that it was trained on.

    `data` may also be the path of the user's own data. `options` are those of the data set, as KEY=VALUE. Options of a
    table that are not given are those of the training.
    """
    from .. import data as datasets

    path = {}
    if data is not None and data not in datasets.list_datasets() and expand_home(data).exists():
        data, path = datasets.dataset_for(data), {"path": data}
    given = _read_options(data, options or [], path)
    model, recipe = load_model(name)
    if data is None:
        return model, recipe, _trained_on(name, recipe, root)
    if data == "table":
        given = table_options(recipe) | given
    splits = datasets.load(data, root=root, **given)
    return model, recipe, _fitted(splits, model, str(given.get("path", splits.name)))


def _read_options(data: str | None, options: Sequence[str], path: dict[str, str]) -> dict[str, Any]:
    """Parse ["path=photos", "image_size=32"] into {"path": "photos", "image_size": 32}, as --set does, after `path`."""
    from ..data import check_options

    if data is None and options:
        raise ArgumentError(
            f"--data-option {options[0]} needs --data, as in --data folder --data-option path=photos; the data of a "
            "training run are searched in --root"
        )
    given = {**path, **parse_options(options)}
    if data is not None:
        check_options(data, given)  # `load` would take `root` and others for its own arguments
    return given


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Parse the values of --data-option. Keys may begin with `data.`, as in recipes and in messages."""
    from ..train import parse_override

    given = {}
    for option in (each.removeprefix("data.") for each in options):
        if not re.match(r"\w+=", option):
            raise ArgumentError(f"--data-option must have the form KEY=VALUE, such as path=photos; got {option!r}")
        given |= parse_override(option)
    return given


def table_options(recipe: Recipe | None) -> dict[str, Any]:
    """The options with which the tables of the training were read, without those for its parts."""
    if recipe is None or recipe.data.name != "table":
        return {}
    return {name: value for name, value in recipe.data.options.items() if name in TABLE_OPTIONS}


def _trained_on(name: str, recipe: Recipe | None, root: Path | None) -> DataSplits:
    """Load the data of a recipe, split and prepared as in training."""
    from ..train import load_data

    if recipe is None:
        raise ArgumentError(f"{name} has no recipe that names its data: add --data NAME")
    settings = recipe.data if root is None else replace(recipe.data, root=str(root))
    return load_data(replace(recipe, data=settings))


def _fitted(splits: DataSplits, model: Model, name: str) -> DataSplits:
    """Prepare a data set for a network that was trained on another one: standardize it and resize its images.

    `name` is the name or the path of the data, for messages.
    """
    classes = model.config["num_classes"]
    if splits.num_classes != classes:
        raise ArgumentError(f"{name} has {splits.num_classes} classes, but the network has {classes}")
    dims = len(splits.train.sample_shape) - 1
    if dims != model.dims:
        shape = "" if splits.name != "table" else "; flattened images need --data-option shape=[HEIGHT,WIDTH]"
        raise ArgumentError(f"{name} has {KINDS[dims]}, but the network takes {KINDS[model.dims]}{shape}")
    if model.inputs is not None:
        splits = _standardized(splits, model.inputs, name)
    _check_series(splits, model, name)
    size = model.config.get("image_size")
    if size is None or splits.image_size is None:
        return splits
    if model.inputs is not None and not model.resampling:
        size = model.inputs.size  # a fine-tuned network may have been trained on another size than its first
    sizes = (size, size) if isinstance(size, int) else size
    height, width = (round(each * scale) for each, scale in zip(sizes, model.resolution, strict=True))
    if splits.train.sample_shape[1:] == (height, width):
        return splits
    note(f"{name}: images are resized to {height}×{width}, the input size of the network")
    return splits.at_resolution((height, width))


def _check_series(splits: DataSplits, model: Model, name: str) -> None:
    """Raise an error if recordings have another rate than a network expects, and say so if series have another length.

    Networks accept series of any length.
    """
    inputs = model.inputs
    if inputs is None or splits.length is None or len(inputs.size) != 1:
        return
    scale = model.resolution[0]
    rate = splits.train.rate
    if inputs.rate is not None and rate not in (None, round(inputs.rate * scale)):
        raise ArgumentError(
            f"the network needs recordings at {round(inputs.rate * scale)} Hz; {name} has {rate} Hz: resample the "
            f"recordings, or use save_pretrained(at_resolution(model, {rate / (inputs.rate * scale):.6g}), FOLDER)"
        )
    steps = round(inputs.size[0] * scale)
    if splits.length != steps and not (inputs.varying and splits.length < steps):
        note(
            f"note: the series of {name} have {splits.length:,} steps, but the network was trained on "
            f"{steps:,}; its kernels keep their size in steps"
        )


def _standardized(splits: DataSplits, inputs: Inputs, name: str) -> DataSplits:
    """The data set with the mean and standard deviation that a network was trained with."""
    import torch

    if inputs.mfcc_rate not in (None, rate := splits.train.mfcc_rate):
        here = "no MFCCs (add --data-option features=mfcc)" if rate is None else f"MFCCs at {rate} Hz"
        raise ArgumentError(f"the network was trained on MFCCs at {inputs.mfcc_rate} Hz; {name} has {here}")
    if splits.in_channels != len(inputs.mean):
        gray = splits.name == "folder" and (splits.in_channels, len(inputs.mean)) == (3, 1)
        raise ArgumentError(
            f"{name} has {splits.in_channels} channels, but the network has {len(inputs.mean)}"
            f"{'; add --data-option mode=gray' if gray else ''}"
        )
    splits = _in_order_of_training(splits, inputs.classes)
    shape = (-1, *(1 for _ in splits.train.sample_shape[1:]))
    mean, std = (torch.tensor(values).view(shape) for values in (inputs.mean, inputs.std))
    parts = {part: getattr(splits, part) for part in PARTS}
    return replace(splits, **{k: v and replace(v, mean=mean, std=std) for k, v in parts.items()})


def _in_order_of_training(splits: DataSplits, classes: tuple[str, ...]) -> DataSplits:
    """The data set with its classes in the order of the training. Other names are matched by order, and noted."""
    import torch

    names = splits.class_names
    if names == classes:
        return splits
    if sorted(names) != sorted(classes):
        ours, theirs = (", ".join(each[:8]) for each in (names, classes))
        note(f"note: class names differ, so classes are matched by order: {ours} here, {theirs} in training")
        return splits
    numbers = torch.tensor([classes.index(name) for name in names])
    parts = {part: getattr(splits, part) for part in PARTS}
    ordered = {k: v and replace(v, labels=numbers[v.labels]) for k, v in parts.items()}
    return replace(splits, class_names=classes, **ordered)


def part_of(splits: DataSplits, part: str) -> Split:
    """Return one part of a data set by name."""
    if part not in PARTS:
        unknown_name("part", part, PARTS)
    split = getattr(splits, part)
    if split is None:
        raise ArgumentError(f"{splits.name} has no {part} part with these settings")
    return split


class Scorer:
    """Evaluates models as a training run does at its end."""

    def __init__(self, recipe: Recipe | None, *, device: str, batch_size: int | None) -> None:
        from ..train import choose_device

        self.batch_size = batch_size or (BATCH_SIZE if recipe is None else recipe.batch_size)
        self.device = choose_device(device)

    def batches(self, split: Split, model: Model, **settings: Any) -> DeviceBatches:
        """Batches of a split in the precision of a model. `settings` are arguments of `DeviceBatches`."""
        import torch

        from ..data import DeviceBatches

        double = next(model.parameters()).dtype == torch.float64
        dtype = torch.float64 if double else torch.float32
        return DeviceBatches(split, self.batch_size, device=self.device, dtype=dtype, **settings)

    def __call__(self, model: Model, batches: DeviceBatches) -> Score:
        from ..train import evaluate_exactly

        return evaluate_exactly(model.to(self.device), batches)
