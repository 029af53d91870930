"""The parts of the paper that have numbers or pictures: tables, figures, paragraphs. Each is filled in from logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexconv.train.recipe import AnyRecipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ._ledger import Ledger

NOTHING = "–"  # no number was published, or none exists
NOT_RUN = "not run"


@dataclass(frozen=True)
class Grid:
    """A table of text. The columns whose titles are in `right` are right-aligned."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """An item filled in from logs: published numbers and ours, the runs behind them, and notes."""

    grid: Grid | None
    runs: Grid | None
    notes: tuple[str, ...]
    done: int  # how many of its parts have been run
    all: int  # how many parts it has

    @property
    def state(self) -> str:
        if self.done == self.all:
            return "run"
        return f"{self.done} of {self.all}" if self.done else "started" if self.runs else NOT_RUN


@dataclass(frozen=True)
class Job:
    """A run that an item needs and that is not in the logs: a recipe with its seed, or a timing."""

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
        """The published numbers and ours, as text."""

    @abstractmethod
    def jobs(self, ledger: Ledger, seeds: Sequence[int] | None = None) -> list[Job]:
        """The runs that are missing for these seeds. Default: as many seeds as the paper has."""

    def pictures(self, ledger: Ledger) -> dict[str, Callable[[], Figure]]:  # noqa: ARG002
        """Functions that draw its pictures, by name. Empty if there is nothing to draw from."""
        return {}

    def picture_names(self, ledger: Ledger) -> list[str]:
        """The pictures that docs/results.md shows of it."""
        return list(self.pictures(ledger))
