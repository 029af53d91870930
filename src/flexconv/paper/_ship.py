"""A finished run as a network that others can load: weights, config, recipe, results and a model card in one folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data import dataset
from ..models import from_pretrained, save_pretrained
from ..models._card import ModelCard
from ..models._files import write_atomically
from ..models._pretrained import SHIPPED
from ..train import Recipe, RunError, RunFolder

LARGEST = 6_000_000  # bytes of weights that go into the package

CHOSEN = {
    "last": "the last epoch",
    "validation": "the epoch that was best on the validation part",
    "test": "the epoch that was best on the test part",
}


def ship(run: str | os.PathLike[str], name: str, *, into: str | os.PathLike[str] = SHIPPED) -> Path:
    """Write the network of a finished run to `into`/`name`, for `from_pretrained` and `flexconv eval` → the folder.

    Of a cross-resolution run, name the stage: its folder `source` or `target`.
    """
    source = RunFolder(run)
    recipe = source.read_recipe()
    if not isinstance(recipe, Recipe) or not source.weights.is_dir():
        raise RunError(f"{source.path} holds no finished network")
    results = source.read_results()
    size = sum(path.stat().st_size for path in source.weights.glob("*.safetensors"))
    if size > LARGEST:
        raise RunError(f"the weights of {source.path} have {size:,} bytes; no more than {LARGEST:,} are shipped")
    model = from_pretrained(source.weights)
    folder = RunFolder(Path(into) / name)
    save_pretrained(model, folder.path)
    folder.write_recipe(replace(recipe, data=replace(recipe.data, root=None)))
    folder.write_results(results)
    write_atomically(folder.path / "README.md", _card(recipe, results).text(model, name).encode())
    return folder.path


def _card(recipe: Recipe, results: dict[str, Any]) -> ModelCard:
    """What the log of a run tells about its network."""
    data = dataset(recipe.data.name)
    minutes = f"{results['seconds'] / 60:.0f} minutes on {results['device']}"
    versions = f"flexconv {results['flexconv']}, torch {results['torch']}"
    return ModelCard(
        about=f"{recipe.about}.",
        data=f"{data.title} ({data.citation}; {data.licence})",
        recipe=f"`recipe.yaml` beside this file: {results['epochs']} epochs, {minutes}, {versions}",
        accuracy=f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,} test samples, loss "
        f"{results['test_loss']:.4f}, by {CHOSEN[results['selected']]}",
    )
