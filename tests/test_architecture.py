"""The plan of the package: which part may import which, checked on the source without running it.

Imports inside functions count as well, and so do those that are there for type checkers only.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "flexconv"

# The parts of flexconv from the lowest to the highest. A part may import from its own row and from earlier rows.
ROWS = (
    (
        "errors",
        "_version",
        "_process",
        "_arguments",
        "_context",
        "_files",
        "_text",
        "_hooks",
        "_matmul",
        "_records",
        "_registry",
    ),
    ("ops", "audio"),
    ("nn",),
    ("sampling", "spectrum", "resolution", "norm_scale", "materialize", "convert", "capture"),
    ("models",),
    ("compat", "summary", "_multiply_adds", "testing"),  # after models: they know whole networks, not only layers
    ("data",),
    ("viz", "export", "predict"),  # before train: a run draws its own plots
    ("train",),
    ("bench", "explorer"),
    ("cli",),
    ("__init__", "__main__"),  # the top level is for users: no module imports its names from there
)
RANK = {part: rank for rank, row in enumerate(ROWS) for part in row}


@dataclass(frozen=True)
class Import:
    """One name that a file imports from flexconv: `from flexconv.nn import FlexConv2d`, or a whole module."""

    importer: str  # dotted name of the module that imports
    line: int
    module: str  # dotted name of the module that it is imported from
    name: str  # empty where the module itself is imported

    def __str__(self) -> str:
        return f"{self.importer}:{self.line}: {self.module}{'.' if self.name else ''}{self.name}"


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path, ROOT / "src"): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(path: Path, name: str) -> Iterator[Import]:
    """Everything that a file takes from flexconv, attributes of imported modules included."""
    tree = ast.parse(path.read_text("utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    bound: dict[str, str] = {}  # names in the file that stand for modules of flexconv
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            if base.partition(".")[0] != "flexconv":
                continue
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in MODULES:
                    bound[alias.asname or alias.name] = whole
                    yield Import(name, node.lineno, whole, "")
                else:
                    yield Import(name, node.lineno, base, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "flexconv":
                    bound[alias.asname or "flexconv"] = alias.name if alias.asname else "flexconv"
                    yield Import(name, node.lineno, alias.name, "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = _module_of(node.value, bound)
            if module is not None and f"{module}.{node.attr}" not in MODULES:
                yield Import(name, node.lineno, module, node.attr)
            elif module is not None:
                yield Import(name, node.lineno, f"{module}.{node.attr}", "")


def _module_of(node: ast.expr, bound: dict[str, str]) -> str | None:
    """The module that an expression such as `flexconv.nn` stands for."""
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        outer = _module_of(node.value, bound)
        return f"{outer}.{node.attr}" if outer is not None and f"{outer}.{node.attr}" in MODULES else None
    return None


def part_of(module: str) -> str:
    """The part of flexconv that a module belongs to: "nn" for flexconv.nn.kernels._siren."""
    return [*module.split("."), "__init__"][1]


def package_of(module: str) -> str:
    """The package whose members may use the private names of a module. A module of the top level is its own."""
    parent = module.rpartition(".")[0]
    is_package = module in MODULES and MODULES[module].name == "__init__.py"
    return module if is_package or parent == "flexconv" else parent


def reaches_private(each: Import) -> bool:
    """Whether an import reaches a private module or name of a package that the importer does not belong to.

    The private modules of the top level, such as `flexconv._arguments`, are helpers for all of flexconv.
    """
    parts = [*each.module.split("."), *([each.name] if each.name else [])]
    for depth, part in enumerate(parts):
        package = package_of(".".join(parts[:depth]))
        inside = each.importer == package or each.importer.startswith(f"{package}.")
        if part.startswith("_") and not part.startswith("__") and not inside:
            return True
    return False


def imports_of_folder(folder: Path, root: Path) -> list[Import]:
    files = {module_name(path, root): path for path in sorted(folder.rglob("*.py"))}
    return [each for name, path in files.items() for each in imports_of(path, name)]


@pytest.fixture(scope="module")
def core() -> list[Import]:
    """All imports inside flexconv except those of `_fast`, which may reach for anything."""
    return [each for each in imports_of_folder(PACKAGE, ROOT / "src") if part_of(each.importer) != "_fast"]


def listed(imports: list[Import]) -> str:
    return "\n".join(map(str, imports))


def test_every_part_has_a_place_in_the_order():
    parts = {part_of(module) for module in MODULES} - {"_fast"}
    assert parts == set(RANK)


def test_imports_go_one_way(core):
    wrong = [
        each
        for each in core
        if part_of(each.module) != "_fast" and RANK[part_of(each.module)] > RANK[part_of(each.importer)]
    ]
    assert not wrong, listed(wrong)


def test_parts_do_not_import_each_other_in_a_circle(core):
    needs: dict[str, set[str]] = {part: set() for part in RANK}
    for each in core:
        if part_of(each.module) != "_fast":
            needs[part_of(each.importer)].add(part_of(each.module))
    sorter = graphlib.TopologicalSorter({part: others - {part} for part, others in needs.items()})
    assert set(sorter.static_order()) == set(RANK)


def test_private_names_stay_in_their_package(core):
    wrong = [each for each in core if reaches_private(each) and part_of(each.module) != "_fast"]
    assert not wrong, listed(wrong)


def test_nothing_but_the_registry_knows_the_fast_versions(core):
    wrong = [each for each in core if part_of(each.module) == "_fast"]
    assert not wrong, listed(wrong)


def test_reproduction_imports_public_names_only():
    found = [each for each in imports_of_folder(ROOT / "reproduction", ROOT) if reaches_private(each)]
    assert not found, listed(found)


def test_examples_import_public_names_only():
    found = [each for each in imports_of_folder(ROOT / "examples", ROOT) if reaches_private(each)]
    assert not found, listed(found)


@pytest.mark.parametrize(
    ("importer", "line", "private"),
    [
        ("flexconv.models.flexnet", "from ..nn._conv import FlexConvNd", True),
        ("flexconv.models.flexnet", "from ..nn import _conv", True),
        ("flexconv.models.flexnet", "from .. import nn\nnn._conv", True),
        ("flexconv.models.flexnet", "def f():\n    from flexconv.nn import _hidden", True),
        ("flexconv.export._conv", "from ..materialize import _CONVS", True),
        ("reproduction.table1", "from flexconv._files import write_atomically", True),
        ("reproduction.table1", "import flexconv\nflexconv.nn._conv", True),
        ("flexconv.nn._mask", "from ._grid import Axis", False),
        ("flexconv.nn._conv", "from .kernels import GENERATORS", False),
        ("flexconv.models.flexnet", "from .._arguments import per_axis", False),
        ("flexconv.models.flexnet", "from ..nn import FlexConv2d", False),
        ("reproduction.table1", "import flexconv\nflexconv.nn.FlexConv2d, flexconv.__version__", False),
    ],
)
def test_private_imports_are_recognised(tmp_path, importer, line, private):
    path = tmp_path / f"{importer.rpartition('.')[2]}.py"
    path.write_text(line)
    assert any(map(reaches_private, imports_of(path, importer))) == private
