"""Names that the shell completes. Nothing here imports torch, because the shell runs it at every Tab."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return the function that typer calls with the beginning of a word. Without a match the shell offers files."""

    def matches(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return matches


def recipe_names() -> list[str]:
    """The names of the recipes, without their variants."""
    return sorted(path.stem for path in (PACKAGE / "recipes").glob("*.yaml"))


def network_names() -> list[str]:
    """The names of the pretrained networks, installed or not."""
    index = json.loads((PACKAGE / "weights" / "index.json").read_text("utf-8"))
    return sorted([*index["networks"], *index["flexconv-weights"]])
