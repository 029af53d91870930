"""Where data lies, and whether it is whole.

The data root is the `root` argument, else the environment variable FLEXCONV_DATA, else a folder of the user's cache.
Below it every set keeps its published layout.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import FlexConvError

ENVIRONMENT = "FLEXCONV_DATA"
MANIFEST = "flexconv-checksums.json"  # SHA-256 of what was fetched, for files without a published checksum


class DataError(FlexConvError):
    """Something is wrong with the files of a data set."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set, or a part of it, is not in the data root."""


class DamagedDataError(DataError, ValueError):
    """A file is truncated, corrupted, or of another version than the published one."""


@dataclass(frozen=True)
class DataFile:
    """One file of a published layout: path below the data root, size in bytes and "sha256:…" or "md5:…" if known."""

    path: str
    size: int | None = None
    checksum: str | None = None


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that data sets lie in: `root`, $FLEXCONV_DATA, or the user's cache. It need not exist."""
    return _root_and_reason(root)[0]


def described_root(root: str | os.PathLike[str] | None) -> str:
    """The data root and why it is that one, for error messages."""
    return "{} ({})".format(*_root_and_reason(root))


def _root_and_reason(root: str | os.PathLike[str] | None) -> tuple[Path, str]:
    if root is not None:
        return Path(root).expanduser(), "the given root"
    if os.environ.get(ENVIRONMENT):
        return Path(os.environ[ENVIRONMENT]).expanduser(), f"from {ENVIRONMENT}"
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "flexconv" / "data", f"the user cache, since neither a root nor {ENVIRONMENT} was given"


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Checksum of a file's bytes, as "sha256:…"."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def missing(root: Path, files: Iterable[DataFile]) -> list[str]:
    """Paths below the root that are not there."""
    return [file.path for file in files if not (root / file.path).is_file()]


def damage(root: Path, files: Iterable[DataFile], *, contents: bool = True) -> list[str]:
    """What is wrong with the files that are there, in words, naming each; empty where all is well.

    contents: also read every file and compare its checksum (published, or written down when it was fetched).
    """
    remembered = read_manifest(root)
    return [
        f"{root / file.path}: {problem}"
        for file in files
        if (root / file.path).is_file()
        and (problem := _problem(root / file.path, file, remembered.get(file.path), contents=contents))
    ]


def _problem(path: Path, file: DataFile, remembered: str | None, *, contents: bool) -> str:
    size = path.stat().st_size
    if file.size is not None and size < file.size:
        return f"truncated, {size:,} of {file.size:,} bytes"
    if file.size is not None and size > file.size:
        return f"{size:,} bytes where the published file has {file.size:,}: another version or another file"
    expected = file.checksum or remembered
    if contents and expected is not None:
        found = checksum(path, expected.split(":")[0])
        if found != expected:
            return f"contents differ from the published file: {found}, expected {expected}"
    return ""


def read_manifest(root: Path) -> dict[str, str]:
    """Checksums written down by earlier fetches into this root: path → "sha256:…"."""
    try:
        entries = json.loads((root / MANIFEST).read_text())
    except (OSError, ValueError):  # absent or unreadable: then nothing is known, which is no error
        return {}
    return {str(k): str(v) for k, v in entries.items()} if isinstance(entries, dict) else {}


def write_manifest(root: Path, entries: dict[str, str]) -> None:
    """Add checksums to those remembered for this root."""
    text = json.dumps(dict(sorted({**read_manifest(root), **entries}.items())), indent=1) + "\n"
    partial = root / f"{MANIFEST}.{os.getpid()}"
    partial.write_text(text)
    partial.replace(root / MANIFEST)
