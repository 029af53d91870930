"""flexconv data"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ._common import Changes, Root, print_table, say

if TYPE_CHECKING:
    from ..train import Recipe

MAX_CLASSES = 50  # rows of the table of classes


def ls(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show the details of this data set.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Read the files and verify their checksums.")] = False,
    root: Root = None,
) -> None:
    """List the data sets and which of them are on this machine."""
    from .. import data as datasets
    from ..data import describe_root

    found = [
        datasets.status(each, root=root, verify=check)
        for each in ([name] if name is not None else datasets.list_datasets())
    ]
    if name is None:
        rows = [(each.name, each.state, _size(each.size), each.title) for each in found]
        print_table(("name", "state", "size", "what"), rows, right=("size",))
        say(f"\ndata root: {describe_root(root)}")
    else:
        one = found[0]
        about = {
            "what": one.title,
            "state": one.state,
            "place": "" if one.location is None else str(one.location),
            "size": _size(one.size),
            "license": one.licence,
            "source": one.citation,
            "options": inspect.cleandoc(datasets.dataset(one.name).read.__doc__ or "").replace("\n", "\n" + 9 * " "),
        }
        for key, value in about.items():
            if value:
                say(f"{key:8} {value}")
    for each in found:
        if each.state in ("damaged", "incomplete") or name is not None:
            for problem in each.problems:
                say(f"{each.name}: {problem}")


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A file or folder of your own data, a recipe file, a run folder, or the name of a data set.",
        ),
    ],
    changes: Changes = None,
    root: Root = None,
) -> None:
    """Show how data are read, before you train on them.

    The command prints the shape of the samples, the range of their values, and the classes with their numbers of
    samples. --set takes the keys of a recipe, such as data.label=species.
    """
    from ..data import class_counts, describe
    from ..train import load_data

    recipe = _recipe_of(what, [*(changes or ()), *([{"data": {"root": str(root)}}] if root else [])])
    data = load_data(recipe)
    place = recipe.data.options.get("path")
    lines = {"data set": data.name + (f", {place}" if place else ""), **describe(data)}
    for key, value in lines.items():
        say(f"{key:9} {value}")
    counts = class_counts(data)
    parts = [part for part in ("train", "validation", "test") if getattr(data, part) is not None]
    say("")
    print_table(("class", *parts), counts[:MAX_CLASSES], right=parts)
    if len(counts) > MAX_CLASSES:
        say(f"… and {len(counts) - MAX_CLASSES} more classes")


def _recipe_of(what: str, changes: Sequence[str | dict[str, Any]]) -> Recipe:
    """A recipe whose data are those of a path, a recipe file, a run or a data set."""
    from ..data import list_datasets
    from ..train import FitRecipe, RunFolder, build_recipe, load_recipe, merge, parse_override, plain

    if Path(what).suffix in (".yaml", ".yml"):
        recipe = load_recipe(what, changes)
    else:
        if RunFolder(what).exists:
            tree = plain(RunFolder(what).read_recipe())
        else:
            own = {"name": what} if what in list_datasets() else {"path": what}
            tree = {"model": {"name": "flexnet3"}, "data": own}  # any model: only the data are loaded
        for change in changes:
            tree = merge(tree, parse_override(change) if isinstance(change, str) else change)
        recipe = build_recipe(tree)
    if isinstance(recipe, FitRecipe):
        raise ArgumentError(f"{what} is a fit, which has no data set")
    return recipe


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a data set (see `flexconv data ls`).")],
    root: Root = None,
) -> None:
    """Download a data set if it is not here yet, and verify it."""
    from .. import data as datasets

    if not datasets.dataset(name).needs_files:
        say(f"{name} needs no files: {datasets.dataset(name).title}")
        return
    say(f"{name} is in {datasets.fetch(name, root=root)}")


def _size(count: int) -> str:
    """A number of bytes as text, such as 170.5 MB; empty for 0."""
    if not count:
        return ""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"
