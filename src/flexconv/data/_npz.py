"""Your own images or sequences in one .npz file.

The arrays are train_inputs [N, C, H, W] or [N, C, L] and train_labels [N], optionally the same for test_… and
validation_…, …_lengths [N] for sequences of different lengths, and class_names. If the arrays are called `inputs`,
`labels` and `lengths`, a fixed fifth of the samples becomes the test set. Labels are 0 … n − 1, and the training set
must contain every class.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from ._dataset import Dataset, Source
from ._files import DamagedDataError
from ._pickles import load_arrays
from ._splits import Samples
from ._user_data import MAX_LISTED, SPLITS, TEST_SHARE, assemble, find


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    test_share: float = TEST_SHARE,
) -> Source:
    """Read an .npz file.

    Options:
        path: the file, as a path or relative to the data root.
        test_share: the share of the samples that becomes the test set, if the file has none.

    """
    file = find(path, root)
    if file.suffix != ".npz":
        raise DamagedDataError(f"{file}: expected a file name that ends with .npz")
    arrays = load_arrays(file)
    if "inputs" in arrays:
        arrays = {key if key == "class_names" else f"train_{key}": value for key, value in arrays.items()}
    known = {"class_names"} | {f"{part}_{kind}" for part in SPLITS for kind in ("inputs", "labels", "lengths")}
    if "train_inputs" not in arrays or not set(arrays) <= known:
        raise DamagedDataError(f"{file}: contains {sorted(arrays)}, expected train_inputs and some of {sorted(known)}")
    parts = {part: _part(arrays, part, file) for part in SPLITS if f"{part}_inputs" in arrays}
    if len({(part.inputs.shape[1:], part.inputs.dtype) for part in parts.values()}) > 1:
        raise DamagedDataError(f"{file}: the shape or dtype of samples differs between the splits")
    top = max(int(part.labels.max()) for part in parts.values())
    given = arrays.get("class_names")
    if given is not None and given.ndim != 1:
        raise DamagedDataError(f"{file}, class_names: shape {given.shape}, expected a one-dimensional array of names")
    if given is not None and top >= len(given):
        raise DamagedDataError(f"{file}: label {top}, but there are only {len(given)} class_names")
    count = top + 1 if given is None else len(given)
    _check_no_gap(parts["train"].labels, count, file)
    names = tuple(str(name) for name in (range(count) if given is None else given))
    scale = 1 / 255 if parts["train"].inputs.dtype == torch.uint8 else 1.0
    return assemble(parts, names, test_share=test_share, scale=scale, place=file)


def _part(arrays: dict[str, np.ndarray], part: str, file: Path) -> Samples:
    inputs, labels = arrays[f"{part}_inputs"], arrays.get(f"{part}_labels")
    where = f"{file}, {part}_inputs"
    if inputs.ndim not in (3, 4) or not len(inputs):
        raise DamagedDataError(
            f"{where}: shape {inputs.shape}, expected [N, C, H, W] or [N, C, L] (C = 1 for a single channel)"
        )
    if inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] > 4:
        raise DamagedDataError(f"{where}: shape {inputs.shape} has the channels last; use numpy.moveaxis(x, -1, 1)")
    if inputs.dtype not in (np.uint8, np.int16, np.float16, np.float32, np.float64):
        raise DamagedDataError(f"{where}: dtype {inputs.dtype}, expected uint8, int16 or a float dtype")
    if inputs.dtype.kind == "f":
        inputs = inputs.astype(np.float32)
        if not np.isfinite(inputs).all():
            raise DamagedDataError(
                f"{where}: sample {int(np.argwhere(~np.isfinite(inputs))[0, 0])} contains values that are not finite"
            )
    if labels is None or labels.shape != (len(inputs),) or labels.dtype.kind not in "iu" or labels.min() < 0:
        found = "missing" if labels is None else f"{labels.dtype} of shape {labels.shape}"
        raise DamagedDataError(f"{file}, {part}_labels: {found}, expected {len(inputs):,} integers of at least 0")
    return Samples(
        torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64)), _lengths(arrays, part, inputs, file)
    )


def _check_no_gap(labels: torch.Tensor, count: int, file: Path) -> None:
    """Raise an error unless the training labels [N] contain every class 0 … count − 1."""
    found = labels.unique().tolist()
    present = set(found)
    missing = list(islice((label for label in range(count) if label not in present), MAX_LISTED + 1))
    if missing:
        raise DamagedDataError(
            f"{file}, train_labels: no samples of class {_listed(missing)} (found {_listed(found)}), expected "
            f"all of 0 … {count - 1}; numpy.unique(labels, return_inverse=True)[1] renumbers labels without gaps"
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:MAX_LISTED])) + (", …" if len(numbers) > MAX_LISTED else "")


def _lengths(arrays: dict[str, np.ndarray], part: str, inputs: np.ndarray, file: Path) -> torch.Tensor | None:
    lengths = arrays.get(f"{part}_lengths")
    if lengths is None:
        return None
    fits = lengths.shape == (len(inputs),) and lengths.dtype.kind in "iu" and inputs.ndim == 3
    if not fits or lengths.min() < 1 or lengths.max() > inputs.shape[-1]:
        raise DamagedDataError(
            f"{file}, {part}_lengths: expected {len(inputs):,} integers from 1 to {inputs.shape[-1]}, for sequences"
        )
    return torch.from_numpy(lengths.astype(np.int64))


DATASETS = (
    Dataset(
        "npz",
        "Your own images or sequences in one .npz file",
        _read,
        "own",
        licence="",
        citation="",
        protocols=("honest",),
        needs_files=False,
    ),
)
