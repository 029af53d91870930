"""The reproduction of the paper: its tables and figures from the logs of real runs, next to the published numbers.

    python -m reproduction                  list the tables and figures, and what has been run
    python -m reproduction table3           print one of them

This package uses flexconv as any user does: it imports public names only and is not part of the wheel. There is one
module per table or figure, with the published numbers and the recipes behind them. Nothing is selected on a test set:
a recipe trains on the whole training set and its last epoch is tested, or a validation part selects the epoch.
"""

from __future__ import annotations

import difflib

from flexconv.errors import ArgumentError

from . import (
    crop_timing,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    figure8,
    figure9,
    low_resolution_timing,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    table8,
    table9,
    table10,
)
from ._item import Item, Section
from ._ledger import Ledger, Log
from ._ship import ship

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        *(module.TABLE for module in (table1, table2, table3, table4, table5)),
        *(module.TABLE for module in (table6, table7, table8, table9, table10)),
        *(module.FIGURE for module in (figure3, figure4, figure5, figure6, figure7, figure8, figure9)),
        *(module.PARAGRAPH for module in (crop_timing, low_resolution_timing)),
    )
}


def items(name: str | None = None) -> list[Item]:
    """The item with a name such as "table3"; all items for None or "all"."""
    if name is None or name == "all":
        return list(ITEMS.values())
    if name not in ITEMS:
        near = difflib.get_close_matches(name, ITEMS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"unknown table or figure {name!r}: choose one of all, {', '.join(ITEMS)}{hint}")
    return [ITEMS[name]]


__all__ = ["ITEMS", "Item", "Ledger", "Log", "Section", "items", "ship"]
