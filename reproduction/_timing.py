"""Timings: how long a training step takes. They use noise in the shape of the data, so no data set is needed."""

from __future__ import annotations

import functools
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flexconv.data import DataSplits, Split
from flexconv.nn import GaussianMask
from flexconv.train import Recipe, RunFolder, build_model, fit_classifier, load_recipe, make_fabric

from ._files import write_json
from ._item import NOT_RUN, Grid, Item, Job, Section
from ._ledger import Ledger

BATCHES = {"cuda": 32, "cpu": 4}  # the paper times 32
EPOCHS = 4  # of BATCHES steps each; the first one is a warm-up


@dataclass(frozen=True)
class Case:
    """A recipe trained on noise of shape [samples, *shape]. With `whole`, masks cover the whole grid."""

    label: str
    recipe: str
    shape: tuple[int, ...]
    published: str
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Timing(Item):
    """Milliseconds per training step in several cases, next to what the paper says about them."""

    cases: tuple[Case, ...]

    def path(self, ledger: Ledger) -> Path:
        return ledger.results / "timing" / f"{self.name}.json"

    def section(self, ledger: Ledger) -> Section:
        path = self.path(ledger)
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {"cases": {}}
        rows = [(case.label, case.published, *_timed(found["cases"].get(case.label))) for case in self.cases]
        titles = ("case", "published", "ms per batch", "budget", "device")
        grid = Grid(titles, tuple(rows), right=("published", "ms per batch"))
        measured = tuple(f"{text}: measured {found['ratios'][text]:.2f}." for text in found.get("ratios", {}))
        done = sum(case.label in found["cases"] for case in self.cases)
        return Section(grid, None, (*self.notes, *measured), done, len(self.cases))

    def jobs(self, ledger: Ledger, seeds: Sequence[int] | None = None) -> list[Job]:  # noqa: ARG002
        work = functools.partial(self.measure, ledger)
        return [] if self.path(ledger).is_file() else [Job(self.name, 0, work)]

    def measure(
        self, ledger: Ledger, *, device: str = "auto", changes: Sequence[str] = (), small: bool = False
    ) -> None:
        """Time all cases and write the result. `small` uses tiny networks, to test that it runs."""
        times = {case.label: _measure(case, device, changes, small) for case in self.cases}
        first, *_ = times.values()
        labels = list(times)
        pairs = zip(labels[::2], labels[1::2], strict=True)
        ratios = {f"{b} / {a}": times[b]["milliseconds"] / times[a]["milliseconds"] for a, b in pairs}
        write_json(self.path(ledger), {"device": first["device"], "ratios": ratios, "cases": times})


def _measure(case: Case, device: str, changes: Sequence[str], small: bool) -> dict[str, Any]:
    shape = tuple(8 if axis else size for axis, size in enumerate(case.shape)) if small else case.shape
    recipe = load_recipe(case.recipe, ["schedule.warmup_epochs=0", *(["model.widths=[3]"] if small else []), *changes])
    assert isinstance(recipe, Recipe)
    recipe = replace(recipe, epochs=EPOCHS, data=replace(recipe.data, augment=False))
    fabric = make_fabric(recipe, device)
    if recipe.engine == "auto" and fabric.device.type == "cuda":
        recipe = replace(recipe, engine="graph")  # what a long run uses
    batches = BATCHES[fabric.device.type]
    torch.manual_seed(0)
    inputs, labels = torch.randn(batches * recipe.batch_size, *shape), torch.arange(batches * recipe.batch_size) % 10
    noise = DataSplits("noise", Split(inputs, labels), None, None, tuple("0123456789"))
    network = build_model(recipe, noise)
    for mask in (module for module in network.modules() if isinstance(module, GaussianMask) and case.whole):
        mask.set_(sigma=2.0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(scratch)
        results = fit_classifier(network, noise, recipe, folder, fabric, plots=False)
        times = [1e3 * record["epoch_seconds"] / batches for record in folder.read_metrics()[1:]]
    return {
        "milliseconds": statistics.median(times),
        "each": times,
        "batches": batches,
        "batch_size": recipe.batch_size,
        "precision": recipe.precision,
        "engine": results["engine"],
        "device": results["device"],
        "torch": results["torch"],
    }


def _timed(found: dict[str, Any] | None) -> tuple[str, str, str]:
    if found is None:
        return NOT_RUN, "–", "–"
    budget = f"{found['batches']} batches of {found['batch_size']}, {found['precision']}, {found['engine']}"
    return f"{found['milliseconds']:.1f}", budget, found["device"]
