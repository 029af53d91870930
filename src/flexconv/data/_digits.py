"""Digits: 1,797 gray images of 8 × 8 that are part of scikit-learn and need no download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from ..errors import MissingPackageError
from ..models import ImageSeries
from ._dataset import Dataset, Source
from ._holdout import stratified_holdout
from ._layout import PixelsAsSteps
from ._splits import Samples

TEST_SHARE, TEST_SEED = 0.2, 0  # fixed, because there is no published split
MAX_VALUE = 16


def _read(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    return _source(layout=None)


def _read_sequential(root: Path, *, protocol: str, seed: int, verify: bool) -> Source:  # noqa: ARG001
    return _source(layout=PixelsAsSteps(width=8))


def _source(*, layout: PixelsAsSteps | None) -> Source:
    table = torch.from_numpy(_table())
    images = table[:, :64].reshape(-1, 1, 8, 8)  # 0 … 16
    inputs = images if layout is None else layout.series(images)
    samples = Samples(inputs, table[:, 64].long())
    kept, held = stratified_holdout(samples.labels, TEST_SHARE, seed=TEST_SEED)
    names = tuple(str(digit) for digit in range(10))
    series = None if layout is None else ImageSeries(size=(8, 8), steps="pixels")
    return Source(samples.rows(kept), samples.rows(held), names, scale=1 / MAX_VALUE, layout=layout, images=series)


def _table() -> np.ndarray:
    """Return the file of scikit-learn [image, 64 pixels and the digit], without importing scikit-learn if possible.

    The import would take longer than the evaluation of a small network.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None:
        raise MissingPackageError("the digits data set needs scikit-learn", extra="train")
    for folder in found.submodule_search_locations or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, np.uint8, delimiter=",")
    from sklearn.datasets import load_digits  # a version that keeps the file elsewhere

    pixels, digits = load_digits(return_X_y=True)
    return np.column_stack((pixels, digits)).astype(np.uint8)


_ABOUT = {
    "licence": "CC BY 4.0",
    "citation": "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (the copy in scikit-learn)",
    "protocols": ("honest",),
    "needs_files": False,
}
DATASETS = (
    Dataset("digits", "Digits, 8 × 8 gray", _read, "images", **_ABOUT),
    Dataset("sdigits", "Digits as sequences of 64 pixels", _read_sequential, "series", **_ABOUT),
)
