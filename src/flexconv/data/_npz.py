"""Your own images or series in one .npz file.

train_inputs [N, C, H, W] or [N, C, L], train_labels [N]; test_… and validation_… likewise, or neither;
…_lengths [N] for series of unequal length; class_names. `inputs`, `labels`, `lengths` alone are one part, of which
a fixed fifth becomes the test part. Labels are 0 … n − 1, and the training part has samples of each.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from ._dataset import Dataset, Source
from ._files import DamagedDataError
from ._own import PARTS, SHOWN, TEST_SHARE, assemble, find
from ._pickles import load_arrays
from ._splits import Samples


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    test_share: float = TEST_SHARE,
) -> Source:
    """path: the file, as it is or below the data root. test_share: of a file without a test part."""
    file = find(path, root)
    if file.suffix != ".npz":
        raise DamagedDataError(f"{file}: expected a file that ends with .npz")
    arrays = load_arrays(file)
    if "inputs" in arrays:
        arrays = {key if key == "class_names" else f"train_{key}": value for key, value in arrays.items()}
    known = {"class_names"} | {f"{part}_{kind}" for part in PARTS for kind in ("inputs", "labels", "lengths")}
    if "train_inputs" not in arrays or not set(arrays) <= known:
        raise DamagedDataError(f"{file}: holds {sorted(arrays)}, expected train_inputs and some of {sorted(known)}")
    parts = {part: _part(arrays, part, file) for part in PARTS if f"{part}_inputs" in arrays}
    if len({(part.inputs.shape[1:], part.inputs.dtype) for part in parts.values()}) > 1:
        raise DamagedDataError(f"{file}: the parts differ in the shape or type of a sample")
    top = max(int(part.labels.max()) for part in parts.values())
    given = arrays.get("class_names")
    if given is not None and given.ndim != 1:
        raise DamagedDataError(f"{file}, class_names: shape {given.shape}, expected a list of names")
    if given is not None and top >= len(given):
        raise DamagedDataError(f"{file}: label {top} for {len(given)} class_names")
    count = top + 1 if given is None else len(given)
    _check_no_gap(parts["train"].labels, count, file)
    names = tuple(str(name) for name in (range(count) if given is None else given))
    scale = 1 / 255 if parts["train"].inputs.dtype == torch.uint8 else 1.0
    return assemble(parts, names, test_share=test_share, scale=scale)


def _part(arrays: dict[str, np.ndarray], part: str, file: Path) -> Samples:
    inputs, labels = arrays[f"{part}_inputs"], arrays.get(f"{part}_labels")
    where = f"{file}, {part}_inputs"
    if inputs.ndim not in (3, 4) or not len(inputs):
        raise DamagedDataError(
            f"{where}: shape {inputs.shape}, expected [N, C, H, W] or [N, C, L]; a single channel is an axis of 1"
        )
    if inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] > 4:
        raise DamagedDataError(f"{where}: shape {inputs.shape} has its channels last; use numpy.moveaxis(x, -1, 1)")
    if inputs.dtype not in (np.uint8, np.int16, np.float16, np.float32, np.float64):
        raise DamagedDataError(f"{where}: {inputs.dtype}, expected uint8, int16 or floats")
    if inputs.dtype.kind == "f":
        inputs = inputs.astype(np.float32)
        if not np.isfinite(inputs).all():
            raise DamagedDataError(f"{where}: sample {int(np.argwhere(~np.isfinite(inputs))[0, 0])} is not finite")
    if labels is None or labels.shape != (len(inputs),) or labels.dtype.kind not in "iu" or labels.min() < 0:
        found = "none" if labels is None else f"{labels.dtype} of shape {labels.shape}"
        raise DamagedDataError(f"{file}, {part}_labels: {found}, expected {len(inputs):,} integers from 0")
    return Samples(
        torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64)), _lengths(arrays, part, inputs, file)
    )


def _check_no_gap(labels: torch.Tensor, count: int, file: Path) -> None:
    """Refuse training labels [N] of which one of 0 … count − 1 is missing."""
    found = labels.unique().tolist()
    there = set(found)
    missing = list(islice((label for label in range(count) if label not in there), SHOWN + 1))
    if missing:
        raise DamagedDataError(
            f"{file}, train_labels: no sample of class {_listed(missing)} (found {_listed(found)}); expected all of "
            f"0 … {count - 1}; numpy.unique(labels, return_inverse=True)[1] numbers labels from 0 without gaps"
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:SHOWN])) + (", …" if len(numbers) > SHOWN else "")


def _lengths(arrays: dict[str, np.ndarray], part: str, inputs: np.ndarray, file: Path) -> torch.Tensor | None:
    lengths = arrays.get(f"{part}_lengths")
    if lengths is None:
        return None
    fits = lengths.shape == (len(inputs),) and lengths.dtype.kind in "iu" and inputs.ndim == 3
    if not fits or lengths.min() < 1 or lengths.max() > inputs.shape[-1]:
        raise DamagedDataError(
            f"{file}, {part}_lengths: expected {len(inputs):,} integers from 1 to {inputs.shape[-1]}, for series"
        )
    return torch.from_numpy(lengths.astype(np.int64))


DATASETS = (
    Dataset(
        "npz",
        "Your own images or series in one .npz file",
        _read,
        "own",
        licence="",
        citation="",
        protocols=("honest",),
        needs_files=False,
    ),
)
