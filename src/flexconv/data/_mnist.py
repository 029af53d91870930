"""MNIST: 60,000 + 10,000 gray images of handwritten digits, 28 × 28, as images and as two kinds of sequences.

sMNIST:  the pixels row by row, [1, 784].
pMNIST:  the same pixels in a fixed random order.
"""

from __future__ import annotations

from pathlib import Path

from ..models import ImageSeries
from ._dataset import Dataset, Download, Source, Statistics
from ._files import DamagedDataError, DataFile
from ._idx import read_idx
from ._layout import PixelsAsSteps
from ._splits import Samples

FOLDER = "MNIST/raw"
AUTHORS_STATISTICS = ((0.1307,), (0.3081,))
# name: size in bytes and SHA-256 of the unpacked file, published md5 of the .gz
_FILES = {
    "train-images-idx3-ubyte": (
        47040016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    "train-labels-idx1-ubyte": (
        60008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    "t10k-images-idx3-ubyte": (
        7840016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    "t10k-labels-idx1-ubyte": (
        10008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
}
_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)


def _read(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    return _source(root, protocol)


def _read_sequential(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    return _source(root, protocol, layout=PixelsAsSteps(width=28), series=ImageSeries(size=(28, 28), steps="pixels"))


def _read_permuted(root: Path, *, protocol: str, seed: int, verify: bool, permutation_seed: int = 0) -> Source:  # noqa: ARG001
    """Under the "paper" protocol, the order is drawn from `seed`, because the authors drew it for every run.

    Options:
        permutation_seed: seed of the order of the pixels.

    """
    seed = seed if protocol == "paper" else permutation_seed
    return _source(root, protocol, series=ImageSeries(size=(28, 28), steps="pixels", order_seed=seed))


def _source(
    root: Path, protocol: str, *, layout: PixelsAsSteps | None = None, series: ImageSeries | None = None
) -> Source:
    parts = []
    for prefix in ("train", "t10k"):
        paths = [root / FOLDER / f"{prefix}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        images, labels = read_idx(paths[0], dims=3).unsqueeze(1), read_idx(paths[1], dims=1)
        if len(images) != len(labels) or (len(labels) and int(labels.max()) > 9):
            raise DamagedDataError(
                f"{paths[1]}: {len(labels):,} labels up to {int(labels.max())} for {len(images):,} images of digits"
            )
        if series is not None:
            if images.shape[2:] != series.size:
                raise DamagedDataError(f"{paths[0]}: images of {list(images.shape[2:])} pixels, expected 28 × 28")
            images = series.series(images)
        parts.append(Samples(images, labels.long()))
    statistics: Statistics = AUTHORS_STATISTICS if protocol == "paper" else "channel"
    names = tuple(str(digit) for digit in range(10))
    return Source(parts[0], parts[1], names, scale=1 / 255, statistics=statistics, layout=layout, images=series)


_ABOUT = {
    "licence": "CC BY-SA 3.0",
    "citation": "LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
    "files": tuple(DataFile(f"{FOLDER}/{name}", size, f"sha256:{sha}") for name, (size, sha, _) in _FILES.items()),
    "downloads": tuple(
        Download(f"{name}.gz", tuple(f"{mirror}{name}.gz" for mirror in _MIRRORS), f"md5:{md5}", into=FOLDER)
        for name, (_, _, md5) in _FILES.items()
    ),
}
DATASETS = (
    Dataset("mnist", "MNIST, 28 × 28 gray", _read, "images", **_ABOUT),
    Dataset("smnist", "MNIST as sequences of 784 pixels", _read_sequential, "series", **_ABOUT),
    Dataset("pmnist", "MNIST as sequences of 784 pixels in a fixed random order", _read_permuted, "series", **_ABOUT),
)
