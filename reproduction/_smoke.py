"""Smoke tests: every table and figure from training to drawing in minutes, with tiny networks and small data sets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flexconv.data import import_pillow
from flexconv.models import MODELS, CIFARResNet
from flexconv.train import FitRecipe, build_recipe, load_recipe, plain
from flexconv.train.recipe import AnyRecipe
from flexconv.train.targets import ALEXNET_FILE

from . import _work
from ._item import Item, Job
from ._ledger import Ledger
from ._timing import Timing

SERIES = ("flextcn", "cktcn")  # prefixes of the networks for sequences
NO_NETWORK = ("njet",)  # generators without hidden channels


def smoke(items: Sequence[Item], folder: Path, *, say: Callable[[str], None] = lambda _: None) -> Ledger:
    """Run everything the items need in a small version, draw their pictures, and return the ledger of these runs."""
    picture, data = folder / "picture.png", folder / "data"
    _write_stand_ins(picture, data)
    before = os.environ.get("FLEXCONV_DATA")
    os.environ["FLEXCONV_DATA"] = str(data)
    try:
        return _smoke(items, folder, picture, say)
    finally:
        del os.environ["FLEXCONV_DATA"]
        if before is not None:
            os.environ["FLEXCONV_DATA"] = before


def _smoke(items: Sequence[Item], folder: Path, picture: Path, say: Callable[[str], None]) -> Ledger:
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    ledger = new_ledger(folder, picture)
    for item in items:
        jobs = _different(item.jobs(ledger, (0,)))
        if isinstance(item, Timing):
            item.measure(ledger, device="cpu", small=True)
        else:
            _work.do(jobs, ledger, device="cpu", plots=False)
        ledger = new_ledger(folder, picture)
        drawn = item.pictures(ledger)
        for name, draw in drawn.items():
            draw().savefig(pictures / f"{name}.png", dpi=50)
        say(f"{item.name}: {len(jobs)} runs, {len(drawn)} pictures; {item.section(ledger).state}")
    return ledger


def new_ledger(folder: Path, picture: Path) -> Ledger:
    return Ledger(folder, load=lambda name: small_recipe(name, picture))


def small_recipe(name: str, picture: Path) -> AnyRecipe:
    """A recipe of the paper with small data, a short training and a tiny network."""
    recipe = load_recipe(name)
    tree = plain(recipe)
    if isinstance(recipe, FitRecipe):
        return build_recipe(tree | _small_fit(recipe, picture))
    series = recipe.model.name.startswith(SERIES)
    tree |= {
        "model": _small_network(recipe.model.name, recipe.model.options),
        "data": {"name": "sdigits" if series else "digits", "augment": recipe.data.augment},
        "epochs": 1,
        "batch_size": 719,
        "optim": {},
        "schedule": {"warmup_epochs": 0},
    }
    if tree["kind"] == "cross-resolution":
        tree |= {"source": 8, "target": 10, "finetune_epochs": 1}
    return build_recipe(tree)


def _small_network(name: str, options: Any) -> dict[str, Any]:
    kind, preset = MODELS[name]
    if kind is CIFARResNet:
        return {"name": name, **options, "depth": 8}
    settings = {**preset, **options}
    small = {"name": name, **options, "widths": [2]}
    if settings.get("conv") != "plain" and settings.get("generator") not in NO_NETWORK:
        small["generator_options"] = {**options.get("generator_options", {}), "hidden": 3}
    return small


def _small_fit(recipe: FitRecipe, picture: Path) -> dict[str, Any]:
    model = {"name": recipe.model.name, **recipe.model.options}
    targets = {"kodak": (str(picture), {}), "flower": ("flower", {**recipe.target_options, "size": 8})}
    sized = {"gabor": {"size": 9}, "random": {"size": 9, "seed": 0}, "alexnet": {"size": 11}}
    target, options = targets.get(recipe.target) or (recipe.target, sized[recipe.target])
    small = {} if recipe.model.name in NO_NETWORK else {"hidden": 3}
    return {"model": model | small, "target": target, "target_options": options, "steps": 2, "record_every": 1}


def _different(jobs: Sequence[Job]) -> list[Job]:
    """Jobs with different recipes: the small versions of several rows are often the same."""
    found: dict[str, Job] = {}
    for job in jobs:
        tree = {} if callable(job.work) else plain(job.work) | {"about": ""}
        found.setdefault(json.dumps(tree, sort_keys=True, default=list), job)
    return list(found.values())


def _write_stand_ins(picture: Path, data: Path) -> None:
    """Write an image in place of the Kodak images, and noise in place of the AlexNet filters."""
    generator = np.random.default_rng(0)
    picture.parent.mkdir(parents=True, exist_ok=True)
    import_pillow().fromarray(generator.integers(0, 256, (8, 12, 3), dtype=np.uint8)).save(picture)
    filters = data / ALEXNET_FILE
    filters.parent.mkdir(parents=True, exist_ok=True)
    np.save(filters, generator.standard_normal((64, 3, 11, 11)).astype(np.float32))
