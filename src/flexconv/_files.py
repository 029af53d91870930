"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from .errors import MissingFileError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that whoever looks, also after a crash, finds the old content or the new one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
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


def refuse_unwritable(path: Path, example: str) -> None:
    """Before the work, rather than after it. `example` is a name of a file, for those who name a folder."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file in it, such as {path / example}")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe: name a file")
    if not path.parent.is_dir():
        raise MissingFileError(f"there is no folder {path.parent} to write {path.name} into")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} cannot be written to")


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
