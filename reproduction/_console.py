"""Printing text and tables."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 10_000  # columns if the output is not a terminal: lines are not wrapped there

console = Console(soft_wrap=True, emoji=False)


def say(text: str) -> None:
    """Print a line without any markup."""
    console.print(text, highlight=False, markup=False)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print columns under titles. Columns in `right` are right-aligned; lines are only wrapped in a terminal."""
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if title in right else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    page = Console(file=io.StringIO(), width=console.width if console.is_terminal else WIDE, emoji=False)
    with page.capture() as drawn:
        page.print(table, highlight=False, markup=False)
    for line in drawn.get().splitlines():
        say(line.rstrip())
