"""Downsampled ImageNet: 1,281,167 + 50,000 images of 1,000 classes at 8, 16, 32 or 64 pixels.

It is published in batches (pickles or .npz) with `data` [N, 3 · k · k] uint8, channel by channel, and `labels` 1 to
1000. The first load writes one flat file per split, which is memory-mapped from then on.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from ._cifar10 import IMAGENET_STATISTICS
from ._dataset import Dataset, Source, Statistics
from ._files import DamagedDataError, DataError, DataFile
from ._pickles import load_arrays
from ._splits import MappedRows, Samples

COUNTS = {"train": 1_281_167, "val": 50_000}
CLASSES = 1000
PREPARED = "flexconv-v1"
META = "meta.json"
_BATCHES = {"train": tuple(f"train_data_batch_{i}" for i in range(1, 11)), "val": ("val_data",)}


def _files(root: Path, side: int) -> tuple[DataFile, ...]:
    """The prepared files if they exist, otherwise the published batches: .npz files unless there are pickles."""
    prepared = f"{_folder(side)}/{PREPARED}"
    if (root / prepared / META).is_file():
        return (DataFile(f"{prepared}/{META}"), *(DataFile(f"{prepared}/{part}.bin") for part in _BATCHES))
    names = [name for batches in _BATCHES.values() for name in batches]
    npz = not any((root / _folder(side) / name).is_file() for name in names)
    return tuple(DataFile(f"{_folder(side)}/{name}{'.npz' if npz else ''}") for name in names)


def _source(root: Path, side: int, *, protocol: str, verify: bool) -> Source:
    folder = root / _folder(side) / PREPARED
    if not (folder / META).is_file():
        _prepare(root, side, verify=verify)
    counts = json.loads((folder / META).read_text())
    if verify and counts != COUNTS:
        raise DamagedDataError(
            f"{folder}: contains {counts} images, the published data set has {COUNTS}; delete it to prepare it again"
        )
    train, test = (_mapped(folder, part, counts[part], side) for part in _BATCHES)
    statistics: Statistics = IMAGENET_STATISTICS if protocol == "paper" else "channel"
    moments = np.load(folder / "train_moments.npy", mmap_mode="r")
    return Source(train, test, _class_names(root, side), scale=1 / 255, statistics=statistics, moments=moments)


def _mapped(folder: Path, part: str, count: int, side: int) -> Samples:
    path = folder / f"{part}.bin"
    size, expected = path.stat().st_size, count * 3 * side * side
    if size != expected:
        raise DamagedDataError(f"{path}: {size:,} bytes, expected {expected:,}; delete {folder} to prepare it again")
    array = np.memmap(path, np.uint8, mode="r", shape=(count, 3, side, side))
    labels = torch.from_numpy(np.load(folder / f"{part}_labels.npy"))
    return Samples(MappedRows(array, np.arange(count)), labels)


def _prepare(root: Path, side: int, *, verify: bool) -> None:
    """Write flat files and the sums for the statistics. The folder is renamed to its final name when it is complete."""
    home = root / _folder(side)
    needed, free = sum(COUNTS.values()) * 3 * side * side if verify else 0, shutil.disk_usage(home).free
    if needed > free:
        raise DataError(f"{home}: preparing {_folder(side)} needs {needed:,} bytes, but only {free:,} are free")
    temporary = Path(tempfile.mkdtemp(prefix=".prepare-", dir=home))
    try:
        counts = {part: _flatten(home, temporary, part, side) for part in _BATCHES}
        if verify and counts != COUNTS:
            raise DamagedDataError(f"{home}: the batches contain {counts} images, the published data set has {COUNTS}")
        (temporary / META).write_text(json.dumps(counts))
        if not (home / PREPARED / META).is_file():  # another process may have finished first
            os.replace(temporary, home / PREPARED)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flatten(home: Path, temporary: Path, part: str, side: int) -> int:
    labels, moments = [], []
    with (temporary / f"{part}.bin").open("wb") as target:
        for name in _BATCHES[part]:
            path = home / name if (home / name).is_file() else home / f"{name}.npz"
            images, batch_labels = _batch(path, side)
            target.write(images.tobytes())
            labels.append(batch_labels)
            planes = images.reshape(len(images), 3, side * side).astype(np.uint32)
            moments.append(np.stack([planes.sum(2), np.square(planes).sum(2)], axis=2, dtype=np.int64))
    np.save(temporary / f"{part}_labels.npy", np.concatenate(labels))
    np.save(temporary / f"{part}_moments.npy", np.concatenate(moments))
    return sum(map(len, labels))


def _batch(path: Path, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Read one published batch → images [N, 3 · side²] uint8, labels [N] starting at 0."""
    arrays = load_arrays(path)
    if not {"data", "labels"} <= set(arrays):
        raise DamagedDataError(f"{path}: contains {sorted(arrays)}, expected data and labels")
    images, labels = arrays["data"], _labels(path, arrays["labels"])
    if not isinstance(images, np.ndarray):
        raise DamagedDataError(f"{path}: data is a {type(images).__name__}, expected an array")
    if images.dtype != np.uint8 or images.shape != (len(labels), 3 * side * side):
        raise DamagedDataError(
            f"{path}: {images.dtype} images of shape {images.shape} with {len(labels):,} labels, expected uint8 "
            f"({len(labels)}, {3 * side * side}) for {side} × {side} pixels"
        )
    if len(labels) and (labels.min() < 1 or labels.max() > CLASSES):
        raise DamagedDataError(f"{path}: labels from {labels.min()} to {labels.max()}, expected 1 to {CLASSES}")
    return images, labels - 1


def _labels(path: Path, labels: object) -> np.ndarray:
    """Labels [N] of int64 from an array or a list of integers."""
    if isinstance(labels, list) and all(isinstance(label, int | np.integer) for label in labels):
        labels = np.array([int(min(max(label, 0), CLASSES + 1)) for label in labels], np.int64)  # those outside fail
    if not (isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1):
        raise DamagedDataError(f"{path}: labels must be a list or an array [N] of integers")
    return labels.astype(np.int64)


def _class_names(root: Path, side: int) -> tuple[str, ...]:
    """Names from the published map_clsloc.txt ("n02119789 1 kit_fox") if it exists, otherwise numbers."""
    path = root / _folder(side) / "map_clsloc.txt"
    if not path.is_file():
        return tuple(str(number) for number in range(1, CLASSES + 1))
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    names = {int(row[1]): row[2] for row in rows if len(row) >= 3 and row[1].isdigit()}
    if set(names) != set(range(1, CLASSES + 1)):
        raise DamagedDataError(f"{path}: contains names of {len(names)} classes, expected 1 to {CLASSES}")
    return tuple(names[number] for number in range(1, CLASSES + 1))


def _folder(side: int) -> str:
    return f"imagenet{side}"


def _dataset(side: int) -> Dataset:
    def read(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
        return _source(root, side, protocol=protocol, verify=verify)

    return Dataset(
        _folder(side),
        f"ImageNet at {side} × {side} color, 1,000 classes",
        read,
        "images",
        licence="ImageNet terms: research only, after registration",
        citation="Chrabaszcz, Loshchilov and Hutter, A downsampled variant of ImageNet, 2017",
        files=lambda root: _files(root, side),
        instructions=(
            f"Download it after registration at https://image-net.org/download-images.php. Put the unpacked "
            f"train_data_batch_1 … 10 and val_data (pickles or .npz) of {side} × {side} into {_folder(side)}/ "
            "in the data root."
        ),
    )


DATASETS = tuple(_dataset(side) for side in (8, 16, 32, 64))
