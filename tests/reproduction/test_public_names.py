"""The reproduction uses flexconv from outside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import reproduction

FILES = sorted(Path(reproduction.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports_public_names_of_flexconv_only(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in (name for name in names if name.startswith("flexconv")):
            assert not any(part.startswith("_") for part in name.split(".")), f"line {node.lineno}: {name} is private"
