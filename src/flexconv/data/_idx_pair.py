"""Your own images or series in IDX files like those of MNIST: one file of samples and one of labels per split.

The files have the names of MNIST: NAME-images-idx3-ubyte and NAME-labels-idx1-ubyte, where NAME is train or test (also
t10k). They may be compressed (.gz).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch

from ._arrange import arrange, check_layout
from ._dataset import Dataset, Source
from ._files import DamagedDataError, MissingDataError
from ._idx import read_idx_array
from ._splits import Samples
from ._user_data import SPLIT_NAMES, TEST_SHARE, assemble, find, listed

PART_NAMES = {**SPLIT_NAMES, "t10k": "test"}


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    labels_path: str | os.PathLike[str] | None = None,
    layout: str | None = None,
    test_share: float = TEST_SHARE,
) -> Source:
    """Read IDX files.

    Options:
        path: the file of the training samples, such as train-images-idx3-ubyte.gz, as a path or relative to the data
            root. Files with test, t10k or val in place of train are the other splits.
        labels_path: the file of the training labels. Default: the file with labels in place of images.
        layout: order of the axes after the first: L, CL, LC, HW, CHW or HWC. Default: gray images HW for three axes.
        test_share: the share of the samples that becomes the test set, if there is no other file.

    """
    check_layout(layout)
    file = find(path, root)
    labels = None if labels_path is None else find(labels_path, root, option="labels_path")
    pairs = {"train": (file, labels or _labels_of(file))}
    for part, other in _other_splits(file).items():
        pairs[part] = (other, _labels_of(other))
    arrays = {part: _pair(*files, layout) for part, files in pairs.items()}
    values = sorted({int(label) for label in np.unique(arrays["train"][1])})
    samples = {}
    for part, (inputs, given) in arrays.items():
        if inputs.shape[1:] != arrays["train"][0].shape[1:]:
            ours, theirs = (list(each.shape[1:]) for each in (inputs, arrays["train"][0]))
            raise DamagedDataError(f"{pairs[part][0]}: samples of shape {ours}, but {file} has {theirs}")
        samples[part] = Samples(torch.from_numpy(inputs), _numbered(given, values, pairs[part][1]))
    scale = 1 / 255 if samples["train"].inputs.dtype == torch.uint8 else 1.0
    return assemble(samples, tuple(map(str, values)), test_share=test_share, scale=scale, place=file)


def _labels_of(samples: Path) -> Path:
    """The file of the labels that belong to a file of samples."""
    wanted = re.sub("images|inputs|samples", "labels", samples.name, flags=re.IGNORECASE)
    wanted = re.sub(r"idx\d", "idx1", wanted)
    for name in (wanted, wanted.removesuffix(".gz"), f"{wanted}.gz"):
        if name != samples.name and (samples.parent / name).is_file():
            return samples.parent / name
    raise MissingDataError(f"{samples}: there is no {wanted} with its labels beside it; set data.labels_path")


def _other_splits(train: Path) -> dict[str, Path]:
    """Files of the other splits beside the one of the training samples."""
    found: dict[str, Path] = {}
    if not re.match("train", train.name, re.IGNORECASE):
        return found
    rest = re.sub("^train(ing)?", "", train.name, flags=re.IGNORECASE).removesuffix(".gz")
    for name, part in PART_NAMES.items():
        for candidate in (f"{name}{rest}", f"{name}{rest}.gz"):
            if part != "train" and part not in found and (train.parent / candidate).is_file():
                found[part] = train.parent / candidate
    return found


def _pair(file: Path, labels_file: Path, layout: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Samples [N, C, *size] and their labels [N]."""
    inputs, labels = read_idx_array(file), read_idx_array(labels_file)
    if inputs.ndim < 2 or not inputs.size:
        raise DamagedDataError(f"{file}: shape {list(inputs.shape)}, expected samples such as [N, H, W]")
    if layout is None and inputs.ndim < 4:
        layout = ("L", "HW")[inputs.ndim - 2]
    inputs = arrange(inputs, layout, str(file))
    if labels.shape != (len(inputs),) or labels.dtype.kind not in "iu":
        raise DamagedDataError(
            f"{labels_file}: {labels.dtype} of shape {list(labels.shape)}, expected {len(inputs):,} integers, one for "
            f"each sample of {file}"
        )
    if inputs.dtype != np.uint8:
        inputs = inputs.astype(np.float32)
        finite = np.isfinite(inputs).all(axis=tuple(range(1, inputs.ndim)))
        if not finite.all():
            raise DamagedDataError(f"{file}: sample {finite.argmin()} contains values that are not finite")
    return inputs, labels


def _numbered(labels: np.ndarray, values: list[int], file: Path) -> torch.Tensor:
    """Labels as class numbers, the position of each in the sorted `values` of the training set."""
    unknown = ~np.isin(labels, values)
    if unknown.any():
        sample = int(unknown.argmax())
        raise DamagedDataError(
            f"{file}: label {labels[sample]} of sample {sample}, but the training set has {listed(values)}"
        )
    return torch.from_numpy(np.searchsorted(values, labels).astype(np.int64))


DATASETS = (
    Dataset(
        "idx",
        "Your own images or series in IDX files, as MNIST has them",
        _read,
        "own",
        licence="",
        citation="",
        protocols=("honest",),
        needs_files=False,
    ),
)
