"""A finished run as a network that others can load: weights, config, recipe, results and a model card in one folder."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from flexconv._files import write_atomically
from flexconv.data import dataset
from flexconv.models import SHIPPED, ModelCard, from_pretrained, save_pretrained
from flexconv.train import Recipe, RunError, RunFolder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LARGEST = 6_000_000  # bytes of weights that go into the package

CHOSEN = {
    "last": "the last epoch",
    "validation": "the epoch that was best on the validation part",
    "test": "the epoch that was best on the test part",
}


def ship(
    run: str | os.PathLike[str],
    name: str,
    *,
    into: str | os.PathLike[str] = SHIPPED,
    licence: str | None = None,
) -> Path:
    """Write the network of a finished run to `into`/`name`, for `from_pretrained` and `flexconv eval` → the folder.

    Of a cross-resolution run, name the stage: its folder `source` or `target`. `licence` is that of the weights; None:
    this package's where they go into it, else not stated.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name must be made of letters, digits, '.', '_' and '-', and begin with a letter or a digit; got {name!r}"
        )
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
    inside = Path(into).resolve() == SHIPPED.resolve()
    card = _card(recipe, results, licence or ("mit" if inside else None))
    text = card.text(model, name if inside else f"{Path(into).as_posix()}/{name}")
    write_atomically(folder.path / "README.md", text.encode())
    return folder.path


def _card(recipe: Recipe, results: dict[str, Any], licence: str | None) -> ModelCard:
    """What the log of a run tells about its network."""
    data = dataset(recipe.data.name)
    minutes = f"{results['seconds'] / 60:.0f} minutes on {results['device']}"
    versions = f"flexconv {results['flexconv']}, torch {results['torch']}"
    before = f"from the weights of {recipe.model.name}, " if recipe.model.pretrained else ""
    source = "; ".join(part for part in (data.citation, data.licence) if part)
    return ModelCard(
        about=f"{recipe.about.rstrip('.')}." if recipe.about else "",
        data=f"{data.title} ({source})" if source else data.title,
        recipe=f"`recipe.yaml` beside this file: {before}{results['epochs']} epochs, {minutes}, {versions}",
        accuracy=f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,} test samples, loss "
        f"{results['test_loss']:.4f}, by {CHOSEN[results['selected']]}",
        licence=licence,
    )
