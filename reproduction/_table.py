"""Tables: the published numbers, the recipe behind each row, and our numbers next to them."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ._item import NOT_RUN, NOTHING, Grid, Item, Job, Section
from ._ledger import Ledger, Log, Match, one_per_seed
from ._measures import ACCURACY, SECONDS, Measure, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBER = re.compile(r"[<~]?\s*([-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Arguments:
        title: the title of the column.
        measure: how the number is read from a log.
        recipe: how the row's recipe becomes the recipe of this column: "flextcn-smnist{}" with the row "/gabor" is the
            recipe flextcn-smnist/gabor.

    """

    title: str
    measure: Measure = ACCURACY
    recipe: str = "{}"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Arguments:
        model: the name of the model in the paper.
        size: the number of parameters in the paper.
        published: the numbers as the paper prints them, one per column.
        recipe: the recipe for all columns, or one per column; None for numbers of other methods.
        beside: whether the row is ours and not in the paper's table.

    """

    model: str
    size: str
    published: tuple[str, ...]
    recipe: str | tuple[str | None, ...] | None = None
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class Table(Item):
    """A table of the paper, or a figure that shows numbers.

    Arguments:
        columns: the columns with numbers.
        rows: the rows.
        seeds: the seeds that are run by default.
        draw: draws the figure, if it is one.
        published: which epoch the published numbers are from.

    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    draw: Callable[[Ledger], Figure] | None = field(default=None, repr=False)
    published: str = "the authors' best test epoch"

    def recipe(self, row: Row, column: Column) -> str | None:
        """The recipe behind a cell."""
        own = row.recipe[self.columns.index(column)] if isinstance(row.recipe, tuple) else row.recipe
        return None if own is None else column.recipe.format(own)

    @property
    def recipes(self) -> tuple[str, ...]:
        """All recipes behind the table, without duplicates, those of the paper's own rows first."""
        rows = sorted(self.rows, key=lambda row: row.beside)
        found = [self.recipe(row, column) for row in rows for column in self.columns]
        return tuple(dict.fromkeys(name for name in found if name is not None))

    @property
    def own_recipes(self) -> tuple[str, ...]:
        """The recipes of the paper's own rows, without duplicates."""
        found = [self.recipe(row, column) for row in self.rows if not row.beside for column in self.columns]
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def section(self, ledger: Ledger) -> Section:
        titles = (
            "model",
            "size",
            *(f"{column.title}, {whose}" for column in self.columns for whose in self._of(column)),
        )
        matches = self.matches(ledger)
        rows = [self._row(row, matches) for row in self.rows]
        grid = Grid(titles, tuple(rows), right=titles[1:])
        own = self.own_recipes
        done = sum(bool(ledger.finished(name)) for name in own)
        notes = (f"Published: {self.published}.", *self.notes)
        return Section(grid, self._runs(matches), notes, done, len(own))

    def jobs(self, ledger: Ledger, seeds: Sequence[int] | None = None) -> list[Job]:
        wanted = self.seeds if seeds is None else seeds
        missing = [
            (name, seed)
            for name in self.recipes
            for seed in wanted
            if seed not in {log.seed for log in ledger.finished(name)}
        ]
        return [Job(name, seed, replace(ledger.load(name), seed=seed)) for name, seed in missing]

    def pictures(self, ledger: Ledger) -> dict[str, Callable[[], Figure]]:
        if self.draw is None or not any(ledger.finished(name) for name in self.recipes):
            return {}
        return {self.name: functools.partial(_styled, self.draw, ledger)}

    def matches(self, ledger: Ledger) -> dict[str, list[Match]]:
        """The logs of every recipe. Runs of another length are listed under the closest recipe."""
        found = {name: ledger.of(name) for name in self.recipes}
        nearest: dict[Path, int] = {}
        for match in (match for matches in found.values() for match in matches):
            path = match.log.path
            nearest[path] = min(len(match.differs), nearest.get(path, len(match.differs)))
        return {
            name: [match for match in matches if len(match.differs) == nearest[match.log.path]]
            for name, matches in found.items()
        }

    def _of(self, column: Column) -> tuple[str, ...]:
        """Whose numbers a column has: ours alone if nothing was published."""
        index = self.columns.index(column)
        any_published = any(row.published[index] != NOTHING for row in self.rows)
        return ("published", "ours") if any_published else ("ours",)

    def _row(self, row: Row, matches: dict[str, list[Match]]) -> tuple[str, ...]:
        cells = []
        for column, published in zip(self.columns, row.published, strict=True):
            recipe = self.recipe(row, column)
            ours = NOTHING if recipe is None else _ours(column.measure, published, matches[recipe])
            cells += [published, ours][-len(self._of(column)) :]
        return (f"{row.model} (extra row)" if row.beside else row.model, row.size, *cells)

    def _runs(self, matches: dict[str, list[Match]]) -> Grid | None:
        """All logs related to the table, including those that do not count, with their differences."""
        titles = (
            "log",
            "recipe",
            "seed",
            "numbers",
            "budget",
            "tested",
            "device",
            "seconds",
            "differs from the recipe",
        )
        rows = [
            (
                match.log.path.name,
                name,
                f"{match.log.seed}",
                self._numbers(match.log, name),
                match.log.budget,
                match.log.chosen,
                match.log.device,
                f"{match.log.seconds:.0f}" if match.log.seconds else NOTHING,
                _differs(match),
            )
            for name, found in matches.items()
            for match in found
        ]
        return Grid(titles, tuple(rows), right=("seed", "seconds")) if rows else None

    def _numbers(self, log: Log, recipe: str) -> str:
        """The numbers of a run for the columns that use its recipe."""
        own = [c.measure for c in self.columns for r in self.rows if self.recipe(r, c) == recipe]
        found = [(measure, measure.of(log)) for measure in dict.fromkeys(own) if measure is not SECONDS]
        return ", ".join(show(value, measure.digits) for measure, value in found if value is not None) or NOTHING


def _ours(measure: Measure, published: str, matches: Sequence[Match]) -> str:
    """Mean ± standard deviation, the number of runs, and the difference from the published number."""
    logs = one_per_seed(matches, measure)
    values = [value for log in logs if (value := measure.of(log)) is not None]
    if values:
        mean = statistics.fmean(values)
        spread = f" ± {show(statistics.stdev(values), measure.digits)}" if len(values) > 1 else ""
        target = published_value(published)
        gap = "" if target is None or measure.digits < 0 else f"; {_signed(mean - target, measure.digits)}"
        return f"{show(mean, measure.digits)}{spread} (n = {len(values)}{gap})"
    if logs:
        return "not recorded"
    for match in matches:
        value = measure.of(match.log) if match.log.finished and measure is not SECONDS else None
        if value is not None:
            return f"{NOT_RUN}; {show(value, measure.digits)} with {match.log.budget}"
    return NOT_RUN


def _styled(draw: Callable[[Ledger], Figure], ledger: Ledger) -> Figure:
    from flexconv.viz.style import styled

    return styled(draw)(ledger)


def published_value(text: str) -> float | None:
    """The number in a cell as the paper prints it: "92.2 ± 0.1" → 92.2, "92.9*†" → 92.9, "–" → None."""
    found = _NUMBER.match(text.strip())
    return None if found is None else float(found[1].replace("−", "-"))


def _signed(value: float, digits: int) -> str:
    text = show(value, digits)
    return text if text.startswith("−") else f"+{text}"


def _differs(match: Match) -> str:
    return "nothing" if not match.differs else match.difference
