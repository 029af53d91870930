"""Publishing the network of a finished run: weights, config, recipe, results and a model card in one folder."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from flexconv.data import dataset
from flexconv.errors import ArgumentError
from flexconv.models import CONFIG, ModelCard, from_pretrained, save_pretrained
from flexconv.train import Recipe, RunError, RunFolder

from ._files import PACKAGE_WEIGHTS, WEIGHTS, write, write_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
INDEX = "index.json"
LARGEST = 6_000_000  # bytes of weights that may be published

CHOSEN = {
    "last": "the last epoch",
    "validation": "the best epoch on the validation part",
    "test": "the best epoch on the test part",
}


def ship(
    run: str | os.PathLike[str],
    name: str,
    *,
    into: str | os.PathLike[str] = WEIGHTS,
    licence: str | None = None,
) -> Path:
    """Write the network of a finished run to `into`/`name`, list it in `into`/index.json and return its folder.

    In the default folder, `weights` of this checkout, `from_pretrained(name)` and `flexconv eval NAME` find it.

    Arguments:
        run: the run folder. Of a cross-resolution run, pass a stage: its folder `source` or `target`.
        name: the name of the network.
        into: where to write it.
        licence: the licence of the weights. Default: MIT in the folders of this checkout, otherwise not stated.

    """
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            f"name must consist of letters, digits, '.', '_' and '-', and start with a letter or a digit; got {name!r}"
        )
    source = RunFolder(run)
    recipe = source.read_recipe()
    if not isinstance(recipe, Recipe) or not source.weights.is_dir():
        raise RunError(f"{source.path} holds no finished network")
    results = source.read_results()
    size = sum(path.stat().st_size for path in source.weights.glob("*.safetensors"))
    if size > LARGEST:
        raise RunError(f"the weights of {source.path} have {size:,} bytes; the limit is {LARGEST:,}")
    folder = RunFolder(Path(into) / name)
    save_pretrained(from_pretrained(source.weights), folder.path)
    folder.write_recipe(replace(recipe, data=replace(recipe.data, root=None)))
    folder.write_results(results)
    if source.metrics.is_file():
        shutil.copyfile(source.metrics, folder.metrics)
    write_card(folder.path, licence=licence)
    write_index(folder.path.parent)
    return folder.path


def write_card(folder: Path, *, licence: str | None = None) -> None:
    """Write the model card of a published network from its recipe and results."""
    run = RunFolder(folder)
    recipe = run.read_recipe()
    assert isinstance(recipe, Recipe)
    ours = _is_ours(folder.parent)
    card = _card(recipe, run.read_results(), licence or ("mit" if ours else None))
    path = folder.as_posix() if folder.name != folder.as_posix() else f"./{folder.name}"  # a bare name is not a path
    write(folder / "README.md", card.text(from_pretrained(folder), folder.name if ours else path))


def write_index(root: Path) -> None:
    """Write index.json: the weights file and its SHA-256 for every network in a folder.

    The index in the package also lists the names in `weights`, so that `from_pretrained` can say where to get them.
    """
    networks = {path.parent.name: json.loads(path.read_text("utf-8")) for path in sorted(root.glob(f"*/{CONFIG}"))}
    entries = {name: {key: config[key] for key in ("weights", "sha256")} for name, config in networks.items()}
    index: dict[str, Any] = {"format": 1, "networks": entries}
    if root.resolve() == PACKAGE_WEIGHTS.resolve():
        index["flexconv-weights"] = sorted(path.parent.name for path in WEIGHTS.glob(f"*/{CONFIG}"))
    write_json(root / INDEX, index)
    if root.resolve() == WEIGHTS.resolve():
        write_index(PACKAGE_WEIGHTS)


def _is_ours(root: Path) -> bool:
    """Whether a folder is one of those in this checkout that `from_pretrained` searches by name."""
    return root.resolve() in {PACKAGE_WEIGHTS.resolve(), WEIGHTS.resolve()}


def _card(recipe: Recipe, results: dict[str, Any], licence: str | None) -> ModelCard:
    """A model card with what the log of a run says about its network."""
    data = dataset(recipe.data.name)
    minutes = f"{results['seconds'] / 60:.0f} minutes on {results['device']}"
    versions = f"flexconv {results['flexconv']}, torch {results['torch']}"
    start = f"starting from the weights of {recipe.model.name}, " if recipe.model.pretrained else ""
    source = "; ".join(part for part in (data.citation, data.licence) if part)
    return ModelCard(
        about=f"{recipe.about.rstrip('.')}." if recipe.about else "",
        data=f"{data.title} ({source})" if source else data.title,
        recipe=f"`recipe.yaml` in this folder: {start}{results['epochs']} epochs, {minutes}, {versions}",
        accuracy=f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,} test samples, loss "
        f"{results['test_loss']:.4f}, {CHOSEN[results['selected']]}",
        licence=licence,
    )
