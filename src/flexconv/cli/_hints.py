"""Hints for options that do not exist but are keys of a recipe: `--epochs 3` is `--set epochs=3`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Iterator, Sequence

NEAR = 0.8  # similarity, from 0 to 1, of an option to a key that is suggested


def recipe_hint(option: str, arguments: Sequence[str], *, fit: bool, exact: bool = False) -> str | None:
    """Return the --set option for an unknown option that is a key of a recipe; None if recipes have no such key.

    Arguments:
        option: the unknown option, such as --epochs.
        arguments: all arguments of the command, with the value of the option.
        fit: whether the recipe is one of a fit.
        exact: do not accept keys that are only similar to the option.

    """
    keys = _recipe_keys(fit)
    near = difflib.get_close_matches(option.lstrip("-").replace("-", "_"), keys, n=1, cutoff=1.0 if exact else NEAR)
    return f"--set {keys[near[0]]}={_value(option, arguments)}" if near else None


def _recipe_keys(fit: bool) -> dict[str, str]:
    """All keys of recipes by their own name and by their full name: "lr" and "optim.lr" → "optim.lr"."""
    from ..models import ARCHITECTURES
    from ..train import CrossResolutionRecipe, FitRecipe

    paths = [*_paths(FitRecipe if fit else CrossResolutionRecipe)]  # the latter has all keys of `Recipe` and more
    if not fit:
        given = {"device", "dtype", "in_channels", "num_classes"}  # the last two follow from the data
        options = {name for network in ARCHITECTURES.values() for name in inspect.signature(network).parameters}
        paths += [f"model.{name}" for name in sorted(options - given)]
    own = [path.rpartition(".")[2] for path in paths]
    short = {name: path for name, path in zip(own, paths, strict=True) if own.count(name) == 1}
    return short | {path: path for path in paths}


def _paths(kind: type, outer: str = "") -> Iterator[str]:
    """The full names of the fields of a recipe, and of the mappings in it."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = [each for each in (hints[field.name], *typing.get_args(hints[field.name])) if isinstance(each, type)]
        nested = next((each for each in inner if dataclasses.is_dataclass(each)), None)
        if nested is None:
            yield f"{outer}{field.name}"
        else:
            yield from _paths(nested, f"{outer}{field.name}.")


def _value(option: str, arguments: Sequence[str]) -> str:
    """The value that was given for an option, in the form --epochs=3 or --epochs 3."""
    for position, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument == option and position + 1 < len(arguments) and not arguments[position + 1].startswith("--"):
            return arguments[position + 1]
    return "VALUE"
