"""CIFAR-10: 50,000 + 10,000 color images of 32 × 32, as images and as two kinds of sequences.

    sCIFAR10:   the pixels row by row, [3, 1024].
    npCIFAR10:  each image row is one time step of 96 features (channel · 32 + column), followed by 968 steps of noise
                N(0, 1). The noise is drawn once and is the same for all samples, so it only adds distance.

The binary version consists of rows of one label byte and 3,072 values, channel by channel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..models import ImageSeries
from ._dataset import Dataset, Download, Source, Statistics
from ._files import DamagedDataError, DataFile
from ._layout import Layout, PixelsAsSteps, RowsAsSteps
from ._splits import Samples

FOLDER = "cifar-10-batches-bin"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGENET_STATISTICS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # which the authors used for CIFAR-10
SIDE, ROW_BYTES, NOISE_STEPS = 32, 1 + 3 * 32 * 32, 968
_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"


def _read(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    train, test = _images(root)
    return Source(train, test, CLASSES, scale=1 / 255, statistics=_statistics(protocol))


def _read_sequential(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    images = ImageSeries(size=(SIDE, SIDE), steps="pixels")
    return _series(root, PixelsAsSteps(width=SIDE), images, statistics=_statistics(protocol))


def _read_noise_padded(root: Path, *, protocol: str, seed: int, verify: bool, noise_seed: int = 0) -> Source:  # noqa: ARG001
    """Under the "paper" protocol, the noise is drawn from `seed`, because the authors drew it for every run.

    Options:
        noise_seed: seed of the noise.

    """
    seed = seed if protocol == "paper" else noise_seed
    images = ImageSeries(size=(SIDE, SIDE), steps="rows", noise_steps=NOISE_STEPS, noise_seed=seed)
    return _series(root, RowsAsSteps(channels=3), images, statistics=_statistics(protocol, repeat=SIDE))


def _series(root: Path, layout: Layout, images: ImageSeries, *, statistics: Statistics) -> Source:
    train, test = (Samples(layout.series(part.inputs), part.labels) for part in _images(root))
    tail = images.noise(train.inputs.shape[1]) if images.noise_steps else None
    return Source(train, test, CLASSES, scale=1 / 255, statistics=statistics, tail=tail, layout=layout, images=images)


class _Images(Samples):
    inputs: torch.Tensor


def _images(root: Path) -> tuple[_Images, _Images]:
    folder = root / FOLDER
    batches = [_batch(folder / name) for name in _TRAIN]
    return _samples(np.concatenate(batches)), _samples(_batch(folder / "test_batch.bin"))


def _batch(path: Path) -> np.ndarray:
    """Rows of one binary batch, [N, 3073] uint8."""
    raw = np.fromfile(path, np.uint8)
    if not len(raw) or len(raw) % ROW_BYTES:
        raise DamagedDataError(
            f"{path}: {len(raw):,} bytes are not a multiple of {ROW_BYTES} (one label and 3 × 32 × 32 values); "
            "the file is truncated or not the binary version"
        )
    rows = raw.reshape(-1, ROW_BYTES)
    if rows[:, 0].max() >= len(CLASSES):
        raise DamagedDataError(f"{path}: label {rows[:, 0].max()}, expected 0 to 9; this may not be the binary version")
    return rows


def _samples(rows: np.ndarray) -> _Images:
    images = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, SIDE, SIDE)
    return _Images(torch.from_numpy(images), torch.from_numpy(rows[:, 0].astype(np.int64)))


def _statistics(protocol: str, *, repeat: int = 1) -> Statistics:
    if protocol != "paper":
        return "channel"
    mean, std = (tuple(value for value in numbers for _ in range(repeat)) for numbers in IMAGENET_STATISTICS)
    return mean, std


_ABOUT = {
    "licence": "none stated; free for research",
    "citation": "Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    "files": tuple(DataFile(f"{FOLDER}/{n}", 10_000 * ROW_BYTES, f"sha256:{sha}") for n, sha in _SHA256.items()),
    "downloads": (
        Download(
            "cifar-10-binary.tar.gz",
            (_ARCHIVE, f"https://web.archive.org/web/2020id_/{_ARCHIVE}"),
            "md5:c32a1d4ab5d03f1284b67883e8d87530",  # only an md5 is published
            into=FOLDER,
            members=(*_SHA256, "batches.meta.txt"),
        ),
    ),
}
DATASETS = (
    Dataset("cifar10", "CIFAR-10, 32 × 32 color", _read, "images", **_ABOUT),
    Dataset("scifar10", "CIFAR-10 as sequences of 1,024 pixels", _read_sequential, "series", **_ABOUT),
    Dataset("npcifar10", "CIFAR-10 rows followed by 968 steps of noise", _read_noise_padded, "series", **_ABOUT),
)
