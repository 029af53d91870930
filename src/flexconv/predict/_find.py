"""Find the files to classify."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ..data import DamagedDataError, MissingDataError
from ..errors import ArgumentError, MissingFileError

ARRAYS = (".npz", ".npy")
RECORDINGS = (".wav",)
TABLES = (".csv", ".tsv", ".parquet")


def find_files(
    files: Iterable[str | os.PathLike[str]],
    *,
    in_folders: Callable[[str], bool],
    expected: str,
    on_error: Callable[[str, Exception], None],
) -> list[Path]:
    """The given files, and the files in the given folders and their subfolders, sorted by name.

    Arguments:
        files: files and folders.
        in_folders: whether files with a suffix such as ".png" are taken from folders.
        expected: what folders should contain, for messages.
        on_error: called with a path that does not exist or a folder without suitable files, and with the error.

    """
    found = []
    for path in map(Path, files):
        try:
            found += _members(path, in_folders, expected) if path.is_dir() else [_existing(path)]
        except (MissingFileError, MissingDataError, DamagedDataError) as error:
            on_error(str(path), error)
    return found


def _existing(path: Path) -> Path:
    if not path.exists():
        raise MissingFileError(f"{path} does not exist")
    return path


def _members(folder: Path, takes: Callable[[str], bool], expected: str) -> list[Path]:
    below = sorted(p for p in folder.rglob("*") if not any(x.startswith(".") for x in p.relative_to(folder).parts))
    files = [p for p in below if p.is_file()]
    members = [p for p in files if takes(p.suffix.lower())]
    if not members:
        suffixes = ", ".join(sorted({p.suffix or p.name for p in files})[:5])
        raise MissingDataError(
            f"{folder} {f'contains {suffixes}' if suffixes else 'is an empty folder'}, expected {expected}"
        )
    return members


def check_files(files: object) -> list[str | os.PathLike[str]]:
    """One path or several → a list. Raises an error if it is empty."""
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)  # type: ignore[call-overload]
    if not paths:
        raise ArgumentError("there are no files to classify: pass the path of a file or a folder")
    return paths
