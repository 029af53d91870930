"""Digits: 1,797 gray images of 8 × 8 that are part of scikit-learn and need no download."""

from __future__ import annotations

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
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackageError("the digits data set needs scikit-learn", extra="train") from error
    pixels, digits = load_digits(return_X_y=True)
    images = torch.from_numpy(np.asarray(pixels, np.uint8)).reshape(-1, 1, 8, 8)  # 0 … 16
    inputs = images if layout is None else layout.series(images)
    samples = Samples(inputs, torch.from_numpy(np.asarray(digits, np.int64)))
    kept, held = stratified_holdout(samples.labels, TEST_SHARE, seed=TEST_SEED)
    names = tuple(str(digit) for digit in range(10))
    series = None if layout is None else ImageSeries(size=(8, 8), steps="pixels")
    return Source(samples.rows(kept), samples.rows(held), names, scale=1 / MAX_VALUE, layout=layout, images=series)


_ABOUT = {
    "licence": "CC BY 4.0",
    "citation": "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (the copy in scikit-learn)",
    "protocols": ("honest",),
    "needs_files": False,
}
DATASETS = (
    Dataset("digits", "Digits, 8 × 8 grey", _read, "images", **_ABOUT),
    Dataset("sdigits", "Digits as sequences of 64 pixels", _read_sequential, "series", **_ABOUT),
)
