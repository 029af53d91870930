"""How data sets stand in the data root, and getting those that are not there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import _registry
from ._files import damage, data_root, described_root, missing


@dataclass(frozen=True)
class Status:
    """How a data set stands in the data root.

    state: "built-in" and "yours" need no files in the root. problems name what is missing or damaged.
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
    """Make sure that a set is whole in the data root, downloading what is missing or damaged → the data root.

    offline: download nothing; say what is missing or damaged instead.
    """
    chosen = _registry.dataset(name)
    folder = data_root(root)
    if not chosen.needs_files:
        return folder
    files = chosen.files_in(folder)
    if not offline and (missing(folder, files) or damage(folder, files)):
        from ._fetch import download_missing

        download_missing(chosen, folder)
    _registry.require(chosen, folder, described_root(root), verify=True)
    return folder


def status(name: str, *, root: str | os.PathLike[str] | None = None, verify: bool = True) -> Status:
    """Present, absent or damaged, where, how large. verify=False looks at sizes only, not into the files."""
    chosen = _registry.dataset(name)
    about = {"name": name, "title": chosen.title, "licence": chosen.licence, "citation": chosen.citation}
    if not chosen.needs_files:
        state = "yours" if chosen.kind == "own" else "built-in"
        return Status(state=state, location=None, size=0, problems=(), **about)
    folder = data_root(root)
    files = chosen.files_in(folder)
    absent = missing(folder, files)
    problems = damage(folder, files, contents=verify)
    here = [folder / f.path for f in files if f.path not in absent]
    state = "damaged" if problems else "present" if not absent else "incomplete" if here else "absent"
    location = Path(os.path.commonpath([p.parent for p in here])) if here else None
    return Status(
        state=state,
        location=location,
        size=_size(location) if location and location != folder else sum(p.stat().st_size for p in here),
        problems=(*problems, *(f"{folder / path}: not there" for path in absent)),
        **about,
    )


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
