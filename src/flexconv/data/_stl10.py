"""STL-10: 5,000 + 8,000 labelled color images of 96 × 96. The unlabelled images are not read.

In the binary version, images are stored channel by channel, and channels column by column; labels are 1 to 10.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ._dataset import Dataset, Download, Source, Statistics
from ._files import DamagedDataError, DataFile
from ._splits import Samples

FOLDER = "stl10_binary"
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SIDE = 96
AUTHORS_STATISTICS = ((0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713))
# size in bytes and md5 of the unpacked files, from torchvision; no SHA-256 is published
_FILES = {
    "train_X.bin": (5_000 * 3 * SIDE**2, "918c2871b30a85fa023e0c44e0bee87f"),
    "train_y.bin": (5_000, "5a34089d4802c674881badbb80307741"),
    "test_X.bin": (8_000 * 3 * SIDE**2, "7f263ba9f9e0b06b93213547f721ac82"),
    "test_y.bin": (8_000, "36f9794fa4beb8a2c72628de14fa638e"),
}
_ARCHIVE = "ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz"


def _read(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    statistics: Statistics = AUTHORS_STATISTICS if protocol == "paper" else "channel"
    train, test = (_part(root / FOLDER, part) for part in ("train", "test"))
    return Source(train, test, CLASSES, scale=1 / 255, statistics=statistics)


def _part(folder: Path, part: str) -> Samples:
    path = folder / f"{part}_X.bin"
    raw, labels = np.fromfile(path, np.uint8), np.fromfile(folder / f"{part}_y.bin", np.uint8)
    if not len(labels) or len(raw) != len(labels) * 3 * SIDE**2:
        raise DamagedDataError(
            f"{path}: {len(raw):,} bytes for {len(labels):,} labels, expected {len(labels) * 3 * SIDE**2:,}"
        )
    if labels.min() < 1 or labels.max() > len(CLASSES):
        raise DamagedDataError(
            f"{folder / f'{part}_y.bin'}: labels from {labels.min()} to {labels.max()}, expected 1 to 10"
        )
    images = np.ascontiguousarray(raw.reshape(-1, 3, SIDE, SIDE).transpose(0, 1, 3, 2))
    return Samples(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64) - 1))


DATASETS = (
    Dataset(
        "stl10",
        "STL-10, 96 × 96 color",
        _read,
        "images",
        licence="none stated; images from ImageNet, free for research",
        citation="Coates, Lee and Ng, An analysis of single-layer networks in unsupervised feature learning, 2011",
        files=tuple(DataFile(f"{FOLDER}/{name}", size, f"md5:{md5}") for name, (size, md5) in _FILES.items()),
        downloads=(
            Download(
                "stl10_binary.tar.gz",
                (f"https://{_ARCHIVE}", f"http://{_ARCHIVE}", f"https://web.archive.org/web/2020id_/http://{_ARCHIVE}"),
                "md5:91f7769df0f17e558f3565bffb0c7dfb",
                into=FOLDER,
                members=tuple(_FILES),
            ),
        ),
    ),
)
