"""The paper's tables and figures from the logs of real runs, ours beside the published numbers.

    flexconv paper                  what there is, and what of it was run
    flexconv paper table3           one of them

One module per table or figure: the published numbers and the recipes behind them. Nothing here is chosen on a test set:
a recipe runs on the whole training set and its last epoch is tested, or a validation part chooses the epoch.
"""

from __future__ import annotations

from flexconv._arguments import unknown_name

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
    """The item of a name such as "table3"; all of them for None or "all"."""
    if name is None or name == "all":
        return list(ITEMS.values())
    if name not in ITEMS:
        unknown_name("table or figure", name, ["all", *ITEMS])
    return [ITEMS[name]]


__all__ = ["ITEMS", "Item", "Ledger", "Log", "Section", "items", "ship"]
