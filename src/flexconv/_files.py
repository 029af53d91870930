"""Atomic writing of files."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from pathlib import Path

from .errors import ExistingFileError, MissingFileError


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path with ~ and ~user replaced. Unlike `Path.expanduser`, it keeps ~name if there is no such user."""
    return Path(os.path.expanduser(path))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any time, even after a crash, it has either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")  # see `is_temporary`
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def is_temporary(path: Path) -> bool:
    """Whether a file is a temporary one of `write_atomically`, which a killed process leaves."""
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", path.name) is not None


def refuse_unwritable(path: Path, example: str) -> None:
    """Raise an error before the work starts if `path` cannot be written. `example` is a file name to suggest."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give a file in it, such as {path / example}")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe: give a regular file")
    if not path.parent.is_dir():
        raise MissingFileError(f"cannot write {path.name}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot write {path.name}: the folder {path.parent} is read-only")


def refuse_existing(path: Path) -> None:
    """Raise an error if there is a file at `path`."""
    if path.exists():
        raise ExistingFileError(f"{path} exists already: give another name, or --force (force=True) to replace it")


def _sync_folder(folder: Path) -> None:
    """Make the new file name survive a power cut, if the system supports that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
