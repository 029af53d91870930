"""docs/results.md: everything that was run, beside what was published, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flexconv.models import CONFIG, SHIPPED, list_pretrained
from flexconv.train import RunFolder

from ._item import Grid, Item
from ._ledger import Ledger

IMAGES = "images/results"  # beside the page

HEAD = """# Results

The paper's tables and figures from the logs in `results/`, ours beside the published numbers. Page and pictures are
written by `flexconv paper all --markdown --out docs/images/results > docs/results.md`.

Ours: mean ± standard deviation over seeds (n − 1 in the denominator), how many (n), and the gap to the published
number. Nothing is chosen on a test set: a recipe runs as it is on the whole training set and its last epoch is tested,
once; where the data have a validation part of their own, that one chooses the epoch. The authors report their best
*test* epoch unless it says otherwise. Networks are tested in float32; numbers from before that was so are in the
precision of the training, or, where it says so, tested again (`first_test` in `results.json` has the first number).
A run of another length is no result of its row: it is listed under the table with what differs. What differs from the
paper, and why: [differences](differences.md).
"""

NETWORKS = """## Trained networks

`flexconv.models.from_pretrained(name)` loads one, `flexconv eval NAME` tests it again; each has a model card beside it
in `src/flexconv/weights`.
"""


def page(items: Sequence[Item], ledger: Ledger) -> str:
    """The whole page."""
    sections = [(item, item.section(ledger)) for item in items]
    states = Grid(
        ("", "run"), tuple((f"[{item.title}](#{_anchor(item)})", section.state) for item, section in sections)
    )
    body = [line for item in items for line in item_markdown(item, ledger)]
    return "\n".join([HEAD, *markdown(states), *body, *_networks()])


def item_markdown(item: Item, ledger: Ledger) -> list[str]:
    """One table or figure with its heading."""
    section = item.section(ledger)
    lines = [f'<a id="{_anchor(item)}"></a>', f"## {item.title}", ""]
    if section.grid is not None:
        lines += markdown(section.grid)
    lines += [f"![{name}]({IMAGES}/{name}.png)\n" for name in item.pictures(ledger)]
    lines += [f"- {note}" for note in section.notes] + ([""] if section.notes else [])
    if section.runs is not None:
        lines += ["Logs, in `results/runs`:", "", *markdown(section.runs)]
    return lines


def _networks() -> list[str]:
    """The trained networks that come with flexconv."""
    rows = []
    for name in list_pretrained():
        results = RunFolder(SHIPPED / name).read_results()
        size = (SHIPPED / name / json.loads((SHIPPED / name / CONFIG).read_text("utf-8"))["weights"]).stat().st_size
        accuracy = f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,}"
        rows.append((f"`{name}`", results["data"], f"{results['parameters']:,}", f"{size / 1e6:.2f} MB", accuracy))
    titles = ("name", "data", "parameters", "weights", "test accuracy")
    return [NETWORKS, *markdown(Grid(titles, tuple(rows), right=titles[2:4]))]


def markdown(grid: Grid) -> list[str]:
    """A table, and an empty line."""
    rule = ["--:" if title in grid.right else "---" for title in grid.titles]
    rows = [grid.titles, rule, *grid.rows]
    return [*("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]


def _anchor(item: Item) -> str:
    return item.name
