"""Where data sets are stored, and whether their files are complete.

The data root is the `root` argument, or the environment variable FLEXCONV_DATA, or a folder in the user's cache.
Inside it, every data set has its published layout.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .._files import expand_home
from ..errors import FlexConvError

ENVIRONMENT = "FLEXCONV_DATA"
GZIP_MARK = b"\x1f\x8b"  # the first two bytes of a gzip file
MANIFEST = "flexconv-checksums.json"  # SHA-256 of downloaded files, for files without a published checksum


class DataError(FlexConvError):
    """There is a problem with the files of a data set."""


class MissingDataError(DataError, FileNotFoundError):
    """A data set, or a file of it, is not in the data root."""


class DamagedDataError(DataError, ValueError):
    """A file is truncated, corrupted, or not the published version."""


@dataclass(frozen=True)
class DataFile:
    """One file of a published layout.

    Attributes:
        path: path in the data root.
        size: size in bytes, if known.
        checksum: "sha256:…" or "md5:…", if known.

    """

    path: str
    size: int | None = None
    checksum: str | None = None


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that contains data sets: `root`, $FLEXCONV_DATA, or the user's cache. It may not exist."""
    return _root_and_reason(root)[0]


def describe_root(root: str | os.PathLike[str] | None) -> str:
    """The data root and where it comes from, for messages."""
    return "{} ({})".format(*_root_and_reason(root))


def _root_and_reason(root: str | os.PathLike[str] | None) -> tuple[Path, str]:
    if root is not None:
        return expand_home(root), "the given root"
    if os.environ.get(ENVIRONMENT):
        return expand_home(os.environ[ENVIRONMENT]), f"from {ENVIRONMENT}"
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "flexconv" / "data", f"the user's cache, because neither root nor {ENVIRONMENT} is set"


def read_contents(path: Path) -> bytes:
    """The contents of a file, decompressed if it is a gzip file, whatever its name."""
    raw = path.read_bytes()
    if raw[:2] != GZIP_MARK:
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError) as error:
        raise DamagedDataError(f"{path}: cannot be decompressed: {error}") from error


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, as "sha256:…"."""
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def missing_files(root: Path, files: Iterable[DataFile]) -> list[str]:
    """Paths of files that do not exist in the root."""
    return [file.path for file in files if not (root / file.path).is_file()]


def find_damage(root: Path, files: Iterable[DataFile], *, contents: bool = True) -> list[str]:
    """Describe the problems of the files that exist; an empty list means that there are none.

    Sizes are always compared. With `contents`, every file is also read and compared with its checksum, which is
    published or was recorded when the file was downloaded.
    """
    recorded = read_manifest(root)
    return [
        f"{root / file.path}: {problem}"
        for file in files
        if (root / file.path).is_file()
        and (problem := _problem(root / file.path, file, recorded.get(file.path), contents=contents))
    ]


def _problem(path: Path, file: DataFile, recorded: str | None, *, contents: bool) -> str:
    size = path.stat().st_size
    if file.size is not None and size < file.size:
        return f"truncated, {size:,} of {file.size:,} bytes"
    if file.size is not None and size > file.size:
        return f"{size:,} bytes, but the published file has {file.size:,}: this is another version or another file"
    expected = file.checksum or recorded
    if contents and expected is not None:
        found = checksum(path, expected.split(":")[0])
        if found != expected:
            return f"the contents differ from the published file: {found}, expected {expected}"
    return ""


def read_manifest(root: Path) -> dict[str, str]:
    """Checksums that earlier downloads recorded in this root: path → "sha256:…"."""
    try:
        entries = json.loads((root / MANIFEST).read_text())
    except (OSError, ValueError):  # a missing or unreadable manifest means that no checksums are known
        return {}
    return {str(k): str(v) for k, v in entries.items()} if isinstance(entries, dict) else {}


def write_manifest(root: Path, entries: dict[str, str]) -> None:
    """Add checksums to the manifest of this root."""
    text = json.dumps(dict(sorted({**read_manifest(root), **entries}.items())), indent=1) + "\n"
    partial = root / f"{MANIFEST}.{os.getpid()}"
    partial.write_text(text)
    partial.replace(root / MANIFEST)
