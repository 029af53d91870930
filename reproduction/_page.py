"""docs/results.md: the published numbers and ours, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flexconv.models import CONFIG, list_pretrained, pretrained_folder
from flexconv.train import RunFolder

from ._item import Grid, Item
from ._ledger import Ledger

IMAGES = "images/results"  # next to the page

HEAD = """# Results

The paper's tables and figures, with our numbers next to the published ones. This page and its pictures are generated
from the logs in `results/` by `python -m reproduction all`. Every run behind a number is listed in `results/README.md`.

- "Ours" is the mean ± standard deviation over seeds (with n − 1 in the denominator), the number of seeds n, and the
  difference from the published number.
- Nothing is selected on a test set. A recipe trains on the whole training set, and its last epoch is tested once. If a
  data set has its own validation part, that part selects the epoch. The one exception is the formula of the alias
  penalty, see [differences](differences.md). The authors report their best *test* epoch unless noted otherwise.
- Networks are tested in float32. Older numbers were measured in the training precision; if such a network was tested
  again, `first_test` in its `results.json` has the first number.
- A run of another length is not a result of its row. Such runs are listed in `results/README.md` with their
  differences.

[Differences](differences.md) says where our method and training differ from the paper, and why.
"""

NETWORKS = """## Trained networks

`flexconv.from_pretrained(name)` loads a network and `flexconv eval NAME` tests it. `flexnet3-digits` is part of
flexconv, the others are in the distribution flexconv-weights and in `weights/` of a checkout. Each has a model card.
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
    for name in item.picture_names(ledger):
        lines += [*_picture(name), ""]
    lines += [f"- {note}" for note in section.notes] + ([""] if section.notes else [])
    return lines


def _picture(name: str) -> list[str]:
    """The picture of a light or a dark page. docs/hooks.py makes it follow the switch of the site."""
    return [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{IMAGES}/{name}-dark.png">',
        f'  <img alt="{name}" src="{IMAGES}/{name}-light.png">',
        "</picture>",
    ]


def _networks() -> list[str]:
    """The trained networks of this checkout."""
    rows = []
    for name in list_pretrained():
        folder = pretrained_folder(name)
        results = RunFolder(folder).read_results()
        size = (folder / json.loads((folder / CONFIG).read_text("utf-8"))["weights"]).stat().st_size
        accuracy = f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,}"
        rows.append((f"`{name}`", results["data"], f"{results['parameters']:,}", f"{size / 1e6:.2f} MB", accuracy))
    titles = ("name", "data", "parameters", "weights", "test accuracy")
    return [NETWORKS, *markdown(Grid(titles, tuple(rows), right=titles[2:4]))]


def markdown(grid: Grid) -> list[str]:
    """A table, followed by an empty line."""
    rule = ["--:" if title in grid.right else "---" for title in grid.titles]
    rows = [grid.titles, rule, *grid.rows]
    return [*("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]


def _anchor(item: Item) -> str:
    return item.name
