"""Getting published files: mirrors in turn, checksums always, nothing half-written in the data root."""

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
from ._files import DamagedDataError, DataError, MissingDataError, checksum, damage, missing, write_manifest


def download_missing(dataset: Dataset, root: Path) -> None:
    """Download, check and unpack the files of a set that are not whole under the root."""
    if not dataset.downloads:
        raise MissingDataError(f"{dataset.name} cannot be downloaded by a program. {dataset.instructions}")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as workshop:
        for download in dataset.downloads:
            if _already_there(dataset, download, root):
                continue
            archive = _retrieve(download, Path(workshop))
            unpacked = Path(workshop) / "unpacked"
            _unpack(archive, unpacked, download.members)
            remembered = _move_into(root / download.into, unpacked, flat=download.members is not None)
            shutil.rmtree(unpacked)
            archive.unlink(missing_ok=True)
            if len(remembered) <= 100:  # a set of many small files came in one archive that was checked whole
                write_manifest(root, {path.relative_to(root).as_posix(): found for path, found in remembered.items()})


def _already_there(dataset: Dataset, download: Download, root: Path) -> bool:
    """Whether all files that this download would bring are here and whole."""
    brings = set(download.members or [download.name.removesuffix(".gz")])
    files = [f for f in dataset.files_in(root) if Path(f.path).name in brings]
    return bool(files) and not missing(root, files) and not damage(root, files)


def _retrieve(download: Download, folder: Path) -> Path:
    """The file from the first mirror that has it whole."""
    pooch = _pooch()
    reasons = []
    for url in download.urls:
        try:
            return Path(pooch.retrieve(url, known_hash=download.checksum, fname=download.name, path=folder))
        except (OSError, ValueError) as error:  # no connection, refused, or another checksum
            reasons.append(f"  {url}: {type(error).__name__}: {error}")
    raise DataError(f"{download.name} could not be downloaded. What was tried:\n" + "\n".join(reasons))


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise MissingPackageError('downloading data needs pooch: pip install "flexconv[train]"') from error
    pooch.get_logger().setLevel("WARNING")
    return pooch


def _unpack(archive: Path, folder: Path, members: tuple[str, ...] | None) -> None:
    """Regular files of a .tar.gz, .zip or .gz; a plain file as it is. No member leaves the folder."""
    folder.mkdir()
    try:
        if archive.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(archive) as tar:
                chosen = [m for m in tar.getmembers() if m.isfile() and _wanted(m.name, members)]
                tar.extractall(folder, members=chosen, filter="data")
        elif archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                chosen = [m for m in packed.infolist() if not m.is_dir() and _wanted(m.filename, members)]
                packed.extractall(folder, members=_plain(chosen))
        elif archive.suffix == ".gz":
            with gzip.open(archive) as source, (folder / archive.stem).open("wb") as target:
                shutil.copyfileobj(source, target)
        else:
            archive.replace(folder / archive.name)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError) as error:
        raise DamagedDataError(f"{archive.name} cannot be unpacked: {error}") from error


def _wanted(member: str, members: tuple[str, ...] | None) -> bool:
    return members is None or Path(member).name in members


def _plain(members: Iterable[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Zip members without links; zipfile itself keeps absolute and parent paths inside."""
    return [m for m in members if not stat.S_ISLNK(m.external_attr >> 16)]


def _move_into(folder: Path, unpacked: Path, *, flat: bool) -> dict[Path, str]:
    """Put every file in its place, each at once → where it is now and its SHA-256."""
    sums = {}
    for source in sorted(p for p in unpacked.rglob("*") if p.is_file()):
        target = folder / (source.name if flat else source.relative_to(unpacked))
        target.parent.mkdir(parents=True, exist_ok=True)
        sums[target] = checksum(source)
        source.replace(target)
    return sums
