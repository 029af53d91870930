"""What is in the paper: tables, figures, paragraphs with numbers. Each reads logs and says what it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexconv.train.recipe import AnyRecipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ._ledger import Ledger

NOTHING = "–"  # no number was published, or there can be none
NOT_RUN = "not run"


@dataclass(frozen=True)
class Grid:
    """Text in columns under titles; the ones whose titles are in `right` are flush right."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """An item filled in from logs: published numbers and ours, the runs behind them, what must be told along."""

    grid: Grid | None
    runs: Grid | None
    notes: tuple[str, ...]
    done: int  # of `all` parts, those that were run
    all: int

    @property
    def state(self) -> str:
        if self.done == self.all:
            return "run"
        return f"{self.done} of {self.all}" if self.done else "begun" if self.runs else NOT_RUN


@dataclass(frozen=True)
class Job:
    """A run that an item needs and the logs do not have: a recipe with its seed, or something to be timed."""

    name: str
    seed: int
    work: AnyRecipe | Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """A table, a figure or a paragraph of the paper."""

    name: str
    title: str
    notes: tuple[str, ...] = ()

    @abstractmethod
    def section(self, ledger: Ledger) -> Section:
        """Published numbers and ours, as text."""

    @abstractmethod
    def jobs(self, ledger: Ledger, seeds: Sequence[int] | None = None) -> list[Job]:
        """What has not been run yet, for these seeds; None: as many as the paper has."""

    def pictures(self, ledger: Ledger) -> dict[str, Callable[[], Figure]]:  # noqa: ARG002
        """Its pictures by name, to be drawn when called; none where there is nothing to draw from."""
        return {}
