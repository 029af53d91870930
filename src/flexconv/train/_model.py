"""The model of a recipe: a new one of the registry, or a trained one."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from .._arguments import per_axis
from ..data import DataSplits
from ..errors import ArgumentError
from ..models import Model, create_model, from_pretrained, list_models, list_pretrained
from .optim import penalties
from .recipe import ModelRecipe, Recipe


def build_model(recipe: Recipe, data: DataSplits) -> Model:
    """Build the model of a recipe with its seed. Raises an error if data or penalties of the recipe do not fit it."""
    torch.manual_seed(recipe.seed)
    if recipe.model.pretrained:
        # it may have been saved in another precision
        dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        model = _trained_model(recipe.model.name, data).to(dtype)
    else:
        model = _new_model(recipe.model, data)
    if getattr(model, "readout", None) == "every":
        raise ArgumentError(
            f"{recipe.model.name} with readout='every' has logits for every time step, but a recipe trains a network "
            "with one class per sample: set model.readout to mean or last, or write your own loop (docs/own-data.md)"
        )
    with torch.no_grad():
        penalties(model, recipe)
    return model


def _new_model(settings: ModelRecipe, data: DataSplits) -> Model:
    if settings.name not in list_models() and (settings.name in list_pretrained() or Path(settings.name).is_dir()):
        raise ArgumentError(f"{settings.name} is a trained model: to train it further, set model.pretrained to true")
    _check_size(settings, data)
    options = {**data.model_arguments, **settings.options}
    model = create_model(settings.name, **options)
    if options["in_channels"] != data.in_channels or options["num_classes"] != data.num_classes:
        raise ArgumentError(
            f"model.in_channels {options['in_channels']} and model.num_classes {options['num_classes']} do not fit "
            f"{data.name}, which has {data.in_channels} and {data.num_classes}: leave them out"
        )
    return model


def _check_size(settings: ModelRecipe, data: DataSplits) -> None:
    """Raise an error if a recipe gives its model another size than the samples have."""
    size = data.train.sample_shape[1:]
    key = "length" if len(size) == 1 else "image_size"
    given = settings.options.get(key)
    if given is not None and per_axis(f"model.{key}", given, len(size), minimum=1) != size:
        found, resize = "×".join(map(str, size)), "" if key == "length" else ", or resize images with data.resolution"
        raise ArgumentError(
            f"model.{key} {given} does not fit {data.name}, whose samples have the size {found}: leave it out{resize}"
        )


def _trained_model(name: str, data: DataSplits) -> Model:
    """Load a trained model. It gets a new last layer if the data have other classes than the model was trained on.

    If the model does not name its classes, only their number is compared.
    """
    if name in list_models() and not Path(name).is_dir():
        raise ArgumentError(f"{name} is an architecture, not a trained model: set model.pretrained to false")
    model = from_pretrained(name)
    lacking = data.model_arguments.keys() - model.config.keys()
    if lacking or model.config["in_channels"] != data.in_channels:
        kind = "series" if "length" in model.config else "images"
        here = "images" if data.image_size is not None else "series"
        raise ArgumentError(
            f"{name} expects {kind} with in_channels {model.config['in_channels']}; {data.name} has {here} with "
            f"{data.in_channels}"
        )
    inputs, size = model.inputs, data.train.sample_shape[1:]
    if inputs is not None and not model.resampling and data.image_size is not None and size != inputs.size:
        before, now = ("×".join(map(str, each)) for each in (inputs.size, size))
        warnings.warn(
            f"{name} was trained on {before} images and is now trained on {now} ones: its kernels keep their size in "
            "pixels (docs/own-data.md explains how to resize images or kernels)",
            stacklevel=2,
        )
    same = model.num_classes == data.num_classes if inputs is None else inputs.classes == data.class_names
    return model if same else from_pretrained(name, num_classes=data.num_classes)
