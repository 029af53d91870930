"""Figures that show masks, kernels and spectra of trained networks."""

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
    """Pictures of trained networks.

    Arguments:
        networks: name of a published network → its recipe.
        views: what is drawn of each network, by name.
        archived: the same as `networks` for networks that are not published any more. Their pictures are committed in
            docs/images/results. They are drawn again only if their run is here.

    """

    networks: Mapping[str, str]
    views: Mapping[str, Callable[[Model], Figure]] = field(repr=False)
    archived: Mapping[str, str] = field(default_factory=dict)

    def section(self, ledger: Ledger) -> Section:
        rows = [(name, recipe, "drawn" if folder else NOT_RUN) for name, recipe, folder in self._found(ledger)]
        done = sum(state == "drawn" for *_, state in rows)
        rows += [(name, recipe, "drawn from a run that is not published") for name, recipe in self.archived.items()]
        return Section(Grid(("network", "recipe", "state"), tuple(rows)), None, self.notes, done, len(self.networks))

    def jobs(self, ledger: Ledger, seeds: Sequence[int] | None = None) -> list[Job]:
        missing = [recipe for _, recipe, folder in self._found(ledger) if folder is None]
        wanted = [(name, seed) for name in missing for seed in (seeds or (0,))[:1]]
        wanted = [(name, seed) for name, seed in wanted if seed not in {log.seed for log in ledger.finished(name)}]
        return [Job(name, seed, replace(ledger.load(name), seed=seed)) for name, seed in wanted]

    def pictures(self, ledger: Ledger) -> dict[str, Callable[[], Figure]]:
        found = self._found(ledger) + [
            (name, recipe, ledger.network(recipe, name)) for name, recipe in self.archived.items()
        ]
        return {
            self._picture(name, view): functools.partial(_draw, draw, folder)
            for name, _, folder in found
            if folder is not None
            for view, draw in self.views.items()
        }

    def picture_names(self, ledger: Ledger) -> list[str]:
        names = [name for name, _, folder in self._found(ledger) if folder is not None]
        return [self._picture(name, view) for name in (*names, *self.archived) for view in self.views]

    def _found(self, ledger: Ledger) -> list[tuple[str, str, Path | None]]:
        """Name, recipe and folder of every network; the folder is None if there is no trained network."""
        return [(name, recipe, ledger.network(recipe, name)) for name, recipe in self.networks.items()]

    def _picture(self, network: str, view: str) -> str:
        return f"{self.name}-{network}-{view}"


def _draw(view: Callable[[Model], Figure], folder: Path) -> Figure:
    return view(from_pretrained(folder))


def largest_layer(model: Model) -> tuple[str, FlexConvNd]:
    """Name and layer of the FlexConv with the largest kernel."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    return max(layers, key=lambda named: sum(named[1].extent))
