"""Figures that show what is inside trained networks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flexconv.models import Model, from_pretrained
from flexconv.nn import FlexConvNd

from ._item import NOT_RUN, Grid, Item, Job, Section
from ._ledger import Ledger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Pictures(Item):
    """Pictures of the paper's networks that were trained."""

    networks: Mapping[str, str]  # shipped name → recipe
    views: Mapping[str, Callable[[Model], Figure]] = field(repr=False)  # what is drawn of each, by name

    def section(self, ledger: Ledger) -> Section:
        found = {name: ledger.network(recipe, name) for name, recipe in self.networks.items()}
        rows = [(name, recipe, "drawn" if found[name] else NOT_RUN) for name, recipe in self.networks.items()]
        done = sum(folder is not None for folder in found.values())
        return Section(Grid(("network", "recipe", "state"), tuple(rows)), None, self.notes, done, len(rows))

    def jobs(self, ledger: Ledger, seeds: Sequence[int] | None = None) -> list[Job]:
        missing = [recipe for name, recipe in self.networks.items() if ledger.network(recipe, name) is None]
        wanted = [(name, seed) for name in missing for seed in (seeds or (0,))[:1]]
        wanted = [(name, seed) for name, seed in wanted if seed not in {log.seed for log in ledger.finished(name)}]
        return [Job(name, seed, replace(ledger.load(name), seed=seed)) for name, seed in wanted]

    def pictures(self, ledger: Ledger) -> dict[str, Callable[[], Figure]]:
        found = {name: ledger.network(recipe, name) for name, recipe in self.networks.items()}
        return {
            f"{self.name}-{name}-{kind}": functools.partial(_draw, view, folder)
            for name, folder in found.items()
            if folder is not None
            for kind, view in self.views.items()
        }


def _draw(view: Callable[[Model], Figure], folder: Path) -> Figure:
    return view(from_pretrained(folder))


def largest_layer(model: Model) -> FlexConvNd:
    """The FlexConv with the largest kernel."""
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    return max(layers, key=lambda layer: sum(layer.extent))
