"""What pages show of the package itself, written when the site is built and so never stale.

    <!-- help: train, recipes -->    the help of these commands
    <!-- examples -->                the first paragraph of every file in examples/
    <!-- networks -->                the networks in src/flexconv/weights

mkdocs calls `on_page_markdown`; tests/test_docs.py uses the rest.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WIDTH = 88


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of every page → the text with its comments filled in."""
    markdown = re.sub(r"^<!-- help: (.+?) -->$", lambda found: help_of(found[1].split(", ")), markdown, flags=re.M)
    for name, table in {"examples": examples, "networks": networks}.items():
        markdown = re.sub(rf"^<!-- {name} -->$", lambda _, table=table: table(), markdown, flags=re.M)
    return markdown


def commands() -> dict[str, Any]:
    """Every command of `flexconv` that has no subcommands, by its words: {"train": …, "data ls": …}."""
    from typer.main import get_command

    from flexconv.cli import app

    def walk(command: Any, words: tuple[str, ...]) -> dict[str, Any]:
        inner = getattr(command, "commands", None)
        if inner is None:
            return {" ".join(words): command}
        return {name: found for word in inner for name, found in walk(inner[word], (*words, word)).items()}

    return walk(get_command(app), ())


def help_of(names: list[str]) -> str:
    """A heading and the help text for each of the commands."""
    from typer import Context

    known = commands()
    parts = []
    for name in names:
        context = Context(known[name], info_name=f"flexconv {name}", max_content_width=WIDTH, terminal_width=WIDTH)
        usage, _, rest = known[name].get_help(context).partition("\n\n")
        parts.append(f"## flexconv {name}\n\n```text\n{usage}\n\n{rest.rstrip()}\n```\n")
    return "\n".join(parts)


def examples() -> str:
    """A table of examples/*.py: the file, and the first paragraph of its docstring."""
    rows = ["| | |", "|---|---|"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rows.append(f"| `{path.name}` | {' '.join(text.split(chr(10) * 2)[0].split())} |")
    return "\n".join(rows)


def networks() -> str:
    """A table of the networks that are shipped: name, accuracy on the test part, parameters, sizes of the layers."""
    rows = ["| | test accuracy | parameters | sizes, first layer to last |", "|---|---|---|---|"]
    for path in sorted((ROOT / "src/flexconv/weights").glob("*/results.json")):
        results = json.loads(path.read_text("utf-8"))
        accuracy = f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,}"
        sizes = " ".join("×".join(map(str, size)) for size in results["sizes"].values())
        rows.append(f"| `{path.parent.name}` | {accuracy} | {results['parameters']:,} | {sizes} |")
    return "\n".join(rows)
