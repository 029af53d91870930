"""`status` and `fetch`: whether a data set is in the data root, and how to get it there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import _registry
from ._files import data_root, describe_root, find_damage, missing_files


@dataclass(frozen=True)
class Status:
    """The state of a data set in the data root.

    Attributes:
        name: name of the data set.
        title: one line about it.
        state: "present", "absent", "incomplete" or "damaged"; "built-in" and "yours" need no files in the data root.
        location: folder of its files, if there are any.
        size: size of its files in bytes.
        problems: one line for each missing or damaged file.
        licence: licence of the data.
        citation: how to cite the data.

    """

    name: str
    title: str
    state: Literal["built-in", "yours", "present", "absent", "incomplete", "damaged"]
    location: Path | None
    size: int
    problems: tuple[str, ...]
    licence: str
    citation: str


def fetch(name: str, *, root: str | os.PathLike[str] | None = None, offline: bool = False) -> Path:
    """Download the files of a data set that are missing or damaged, and verify all of them → the data root.

    With `offline`, nothing is downloaded, and missing or damaged files are an error.
    """
    chosen = _registry.dataset(name)
    folder = data_root(root)
    if not chosen.needs_files:
        return folder
    files = chosen.files_in(folder)
    if not offline and (missing_files(folder, files) or find_damage(folder, files)):
        from ._fetch import download_missing

        download_missing(chosen, folder)
    _registry.check_files(chosen, folder, describe_root(root), verify=True)
    return folder


def status(name: str, *, root: str | os.PathLike[str] | None = None, verify: bool = True) -> Status:
    """Whether a data set is present, absent or damaged, where it is, and its size.

    With `verify=False`, only the sizes of files are compared, not their contents.
    """
    chosen = _registry.dataset(name)
    about = {"name": name, "title": chosen.title, "licence": chosen.licence, "citation": chosen.citation}
    if not chosen.needs_files:
        state = "yours" if chosen.kind == "own" else "built-in"
        return Status(state=state, location=None, size=0, problems=(), **about)
    folder = data_root(root)
    files = chosen.files_in(folder)
    absent = missing_files(folder, files)
    problems = find_damage(folder, files, contents=verify)
    existing = [folder / f.path for f in files if f.path not in absent]
    state = "damaged" if problems else "present" if not absent else "incomplete" if existing else "absent"
    location = Path(os.path.commonpath([p.parent for p in existing])) if existing else None
    return Status(
        state=state,
        location=location,
        size=_size(location) if location and location != folder else sum(p.stat().st_size for p in existing),
        problems=(*problems, *(f"{folder / path}: missing" for path in absent)),
        **about,
    )


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
