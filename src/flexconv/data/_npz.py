"""Your own images or sequences in one .npz file.

The arrays are train_inputs [N, C, H, W] or [N, C, L] and train_labels [N], optionally the same for test_… and
validation_…, …_lengths [N] for sequences of different lengths, and class_names. If the arrays are called `inputs`,
`labels` and `lengths`, a fixed fifth of the samples becomes the test set. Labels are 0 … n − 1 or strings, and the
training set must contain every class. Other orders of axes need the option `layout`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from ._arrange import arrange, check_layout, reshape_rows
from ._dataset import Dataset, Source
from ._files import DamagedDataError
from ._pickles import load_arrays
from ._splits import Samples
from ._user_data import MAX_LISTED, SPLITS, TEST_SHARE, assemble, find, listed


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    layout: str | None = None,
    shape: Sequence[int] | int | None = None,
    test_share: float = TEST_SHARE,
) -> Source:
    """Read an .npz file.

    Options:
        path: the file, as a path or relative to the data root.
        layout: order of the axes after the first: L, CL, LC, HW, CHW or HWC. Default: the channels come first; arrays
            [N, H, W] of bytes are gray images; shapes that do not look like this are rejected.
        shape: shape of a sample, if samples are flattened: [H, W], [C, H, W] or [L].
        test_share: the share of the samples that becomes the test set, if the file has none.

    """
    file = find(path, root)
    if file.suffix.lower() != ".npz" or file.is_dir():
        raise DamagedDataError(f"{file}: expected a file whose name ends with .npz")
    check_layout(layout)
    arrays = load_arrays(file)
    if "inputs" in arrays:
        arrays = {key if key == "class_names" else f"train_{key}": value for key, value in arrays.items()}
    known = {"class_names"} | {f"{part}_{kind}" for part in SPLITS for kind in ("inputs", "labels", "lengths")}
    if "train_inputs" not in arrays or not set(arrays) <= known:
        raise DamagedDataError(f"{file}: contains {sorted(arrays)}, expected train_inputs and some of {sorted(known)}")
    inputs = {part: _inputs(arrays, part, layout, shape, file) for part in SPLITS if f"{part}_inputs" in arrays}
    kinds = {part: f"{list(each.shape[1:])} {each.dtype}" for part, each in inputs.items()}
    if len(set(kinds.values())) > 1:
        differ = ", ".join(f"{part} {kind}" for part, kind in kinds.items())
        raise DamagedDataError(f"{file}: samples of all splits must have the same shape and dtype; got {differ}")
    labels, names = _labels(arrays, inputs, file)
    parts = {
        part: Samples(torch.from_numpy(each), labels[part], _lengths(arrays, part, each, file))
        for part, each in inputs.items()
    }
    scale = 1 / 255 if parts["train"].inputs.dtype == torch.uint8 else 1.0
    return assemble(parts, names, test_share=test_share, scale=scale, place=file)


def _inputs(
    arrays: dict[str, np.ndarray], part: str, layout: str | None, shape: Sequence[int] | int | None, file: Path
) -> np.ndarray:
    """The samples of a split, [N, C, L] or [N, C, H, W]."""
    inputs, where = arrays[f"{part}_inputs"], f"{file}, {part}_inputs"
    if inputs.ndim == 0 or not inputs.size:
        raise DamagedDataError(f"{where}: shape {inputs.shape}, expected samples [N, C, H, W] or [N, C, L]")
    inputs = arrange(inputs, layout, where) if shape is None else _reshaped(inputs, shape, layout, where)
    inputs = inputs.astype(inputs.dtype.newbyteorder("="), copy=False)  # torch has no other byte order
    if inputs.dtype not in (np.uint8, np.int16, np.float16, np.float32, np.float64):
        raise DamagedDataError(f"{where}: dtype {inputs.dtype}, expected uint8, int16 or a float dtype")
    if inputs.dtype.kind == "f":
        with np.errstate(over="ignore"):
            inputs = inputs.astype(np.float32)
        finite = np.isfinite(inputs)
        if not finite.all():
            index = tuple(map(int, np.argwhere(~finite)[0]))
            raise DamagedDataError(
                f"{where}: sample {index[0]} contains values that are not finite in float32, such as {inputs[index]} "
                f"at {index}"
            )
    return inputs


def _reshaped(inputs: np.ndarray, shape: Sequence[int] | int, layout: str | None, where: str) -> np.ndarray:
    if inputs.ndim != 2:
        raise DamagedDataError(f"{where}: shape {inputs.shape}, but data.shape is for flattened samples [N, values]")
    return reshape_rows(inputs, shape, layout, where)


def _labels(
    arrays: dict[str, np.ndarray], inputs: dict[str, np.ndarray], file: Path
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The labels of every split as class numbers, and the names of the classes."""
    given = {part: _checked_labels(arrays, part, len(each), file) for part, each in inputs.items()}
    names = _class_names(arrays, file)
    if given["train"].dtype.kind in "SU":
        names = names or tuple(sorted(set(_strings(given["train"], f"{file}, train_labels"))))
        numbers = {part: _numbered(each, names, f"{file}, {part}_labels") for part, each in given.items()}
    else:
        numbers = {part: torch.from_numpy(each.astype(np.int64)) for part, each in given.items()}
    count = int(numbers["train"].max()) + 1 if names is None else len(names)
    known = f"the training set has the classes {listed(numbers['train'].unique().tolist())}"
    if names is not None:
        known = f"there are only {len(names)} class_names: {listed(names)}"
    for part, each in numbers.items():
        if (beyond := each >= count).any():
            row = int(beyond.int().argmax())
            raise DamagedDataError(f"{file}, {part}_labels: label {each[row]} of sample {row}, but {known}")
    _check_no_gap(numbers["train"], count, names, file)
    return numbers, names or tuple(map(str, range(count)))


def _checked_labels(arrays: dict[str, np.ndarray], part: str, count: int, file: Path) -> np.ndarray:
    labels, where = arrays.get(f"{part}_labels"), f"{file}, {part}_labels"
    expected = f"expected {count:,} integers (0, 1, 2, …) or strings"
    if labels is None:
        raise DamagedDataError(f"{where}: missing, {expected}")
    if labels.shape != (count,) or labels.dtype.kind not in "iuSU":
        raise DamagedDataError(f"{where}: {labels.dtype} of shape {labels.shape}, {expected}")
    if labels.dtype.kind in "iu":
        wrong = (labels < 0) | (labels > np.iinfo(np.int64).max)  # the second would wrap around to negative labels
        if wrong.any():
            row = int(wrong.argmax())
            raise DamagedDataError(f"{where}: label {labels[row]} of sample {row}, {expected}")
    if labels.dtype.kind != arrays["train_labels"].dtype.kind:
        raise DamagedDataError(f"{where}: {labels.dtype}, but train_labels are {arrays['train_labels'].dtype}")
    return labels


def _strings(values: np.ndarray, where: str) -> list[str]:
    """An array of strings, or of bytes in UTF-8, as strings. Empty ones are an error."""
    strings = [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values.tolist()
    ]
    if "" in strings:
        raise DamagedDataError(f"{where}: the string of entry {strings.index('')} is empty")
    return strings


def _numbered(labels: np.ndarray, names: tuple[str, ...], where: str) -> torch.Tensor:
    """Labels that are strings as class numbers."""
    numbers = {name: number for number, name in enumerate(names)}
    strings = _strings(labels, where)
    for row, label in enumerate(strings):
        if label not in numbers:
            raise DamagedDataError(f"{where}: label {label!r} of sample {row}, expected one of {listed(names)}")
    return torch.tensor([numbers[label] for label in strings])


def _class_names(arrays: dict[str, np.ndarray], file: Path) -> tuple[str, ...] | None:
    given = arrays.get("class_names")
    if given is None:
        return None
    if given.ndim != 1:
        raise DamagedDataError(f"{file}, class_names: shape {given.shape}, expected a one-dimensional array of names")
    names = _strings(given, f"{file}, class_names")
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise DamagedDataError(f"{file}, class_names: {twice[0]!r} occurs twice, but every class needs its own name")
    return tuple(names)


def _check_no_gap(labels: torch.Tensor, count: int, names: tuple[str, ...] | None, file: Path) -> None:
    """Raise an error unless the training labels [N] contain every class 0 … count − 1."""
    found = labels.unique().tolist()
    present = set(found)
    missing = list(islice((label for label in range(count) if label not in present), MAX_LISTED + 1))
    if missing:
        problem = f"{file}, train_labels: no samples of class {listed(missing)} (found {listed(found)})"
        if names is not None:
            raise DamagedDataError(f"{problem}, but class_names has {count:,} names: {listed(names)}")
        raise DamagedDataError(
            f"{problem}, expected all of 0 … {count - 1}; numpy.unique(labels, return_inverse=True)[1] renumbers "
            "labels without gaps"
        )


def _lengths(arrays: dict[str, np.ndarray], part: str, inputs: np.ndarray, file: Path) -> torch.Tensor | None:
    lengths = arrays.get(f"{part}_lengths")
    if lengths is None:
        return None
    where, expected = f"{file}, {part}_lengths", f"expected {len(inputs):,} integers from 1 to {inputs.shape[-1]}"
    if inputs.ndim != 3:
        raise DamagedDataError(f"{where}: only series have lengths, but {part}_inputs are images")
    if lengths.shape != (len(inputs),) or lengths.dtype.kind not in "iu":
        raise DamagedDataError(f"{where}: {lengths.dtype} of shape {lengths.shape}, {expected}")
    wrong = (lengths < 1) | (lengths > inputs.shape[-1])
    if wrong.any():
        row = int(wrong.argmax())
        raise DamagedDataError(f"{where}: length {lengths[row]} of sample {row}, {expected}")
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
