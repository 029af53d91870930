"""Where things are in a checkout, and writing files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "results"
PACKAGE_WEIGHTS = ROOT / "src" / "flexconv" / "weights"
WEIGHTS = ROOT / "weights"  # built as the distribution flexconv-weights


def write(path: Path, text: str) -> None:
    """Write a text file in one step: an interrupted call leaves the old content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one step."""
    write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
