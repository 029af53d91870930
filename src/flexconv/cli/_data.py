"""flexconv data"""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from ._common import Root, print_table, say


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
            "licence": one.licence,
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
