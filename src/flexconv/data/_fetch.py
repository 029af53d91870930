"""Download published files. Every file is verified, and the data root never contains incomplete files."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from ._dataset import Dataset, Download
from ._files import DamagedDataError, DataError, MissingDataError, checksum, find_damage, missing_files, write_manifest


def download_missing(dataset: Dataset, root: Path) -> None:
    """Download, verify and unpack the files of a data set that are missing or damaged."""
    if not dataset.downloads:
        raise MissingDataError(f"{dataset.name} cannot be downloaded automatically. {dataset.instructions}")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as temporary:
        for download in dataset.downloads:
            if _is_complete(dataset, download, root):
                continue
            archive = _retrieve(download, Path(temporary))
            unpacked = Path(temporary) / "unpacked"
            _unpack(archive, unpacked, download.members)
            checksums = _move_into(root / download.into, unpacked, flat=download.members is not None)
            shutil.rmtree(unpacked)
            archive.unlink(missing_ok=True)
            if len(checksums) <= 100:  # larger data sets come as one archive, which was verified as a whole
                write_manifest(root, {path.relative_to(root).as_posix(): found for path, found in checksums.items()})


def _is_complete(dataset: Dataset, download: Download, root: Path) -> bool:
    """Whether all files of this download are present and undamaged."""
    names = set(download.members or [download.name.removesuffix(".gz")])
    files = [f for f in dataset.files_in(root) if Path(f.path).name in names]
    return bool(files) and not missing_files(root, files) and not find_damage(root, files)


def _retrieve(download: Download, folder: Path) -> Path:
    """Download the file from the first mirror that provides it with the right checksum."""
    pooch = _pooch()
    reasons = []
    for url in download.urls:
        try:
            return Path(pooch.retrieve(url, known_hash=download.checksum, fname=download.name, path=folder))
        except (OSError, ValueError) as error:  # no connection, an HTTP error, or a wrong checksum
            reasons.append(f"  {url}: {type(error).__name__}: {error}")
    raise DataError(f"{download.name} could not be downloaded from any mirror:\n" + "\n".join(reasons))


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise MissingPackageError("downloading data needs pooch", extra="train") from error
    pooch.get_logger().setLevel("WARNING")
    return pooch


def _unpack(archive: Path, folder: Path, members: tuple[str, ...] | None) -> None:
    """Extract the files of a .tar.gz, .zip or .gz, or move a plain file. Nothing is written outside `folder`."""
    folder.mkdir()
    try:
        if archive.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(archive) as tar:
                chosen = [m for m in tar.getmembers() if m.isfile() and _is_selected(m.name, members)]
                tar.extractall(folder, members=chosen, filter="data")
        elif archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                chosen = [m for m in packed.infolist() if not m.is_dir() and _is_selected(m.filename, members)]
                packed.extractall(folder, members=_without_links(chosen))
        elif archive.suffix == ".gz":
            with gzip.open(archive) as source, (folder / archive.stem).open("wb") as target:
                shutil.copyfileobj(source, target)
        else:
            archive.replace(folder / archive.name)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError) as error:
        raise DamagedDataError(f"{archive.name} cannot be unpacked: {error}") from error


def _is_selected(member: str, members: tuple[str, ...] | None) -> bool:
    return members is None or Path(member).name in members


def _without_links(members: Iterable[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Zip members that are not links. (zipfile itself prevents absolute and parent paths.)"""
    return [m for m in members if not stat.S_ISLNK(m.external_attr >> 16)]


def _move_into(folder: Path, unpacked: Path, *, flat: bool) -> dict[Path, str]:
    """Move every file to its place, atomically → {path: checksum}."""
    checksums = {}
    for source in sorted(p for p in unpacked.rglob("*") if p.is_file()):
        target = folder / (source.name if flat else source.relative_to(unpacked))
        target.parent.mkdir(parents=True, exist_ok=True)
        checksums[target] = checksum(source)
        source.replace(target)
    return checksums
