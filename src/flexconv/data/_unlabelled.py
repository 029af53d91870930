"""Samples without labels in any kind of file, for prediction."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._files import expand_home
from ..errors import ArgumentError
from ._arrange import arrange_for_network, reshape_rows
from ._files import DamagedDataError, MissingDataError
from ._idx import is_idx, read_idx_array
from ._image_files import image_suffixes, read_image
from ._pickles import DAMAGE, load_arrays
from ._table_file import is_table, open_table
from ._table_read import read_table
from ._wav import read_wav


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Samples without labels.

    Attributes:
        inputs: raw values [N, C, *size], as `model.inputs` expects them: pixels up to 255, audio up to 32,768.
        lengths: [N] int64 if series of different lengths are padded, otherwise None.
        names: a name for every sample: the file, and the row or id in it if it contains several samples.
        rate: sampling rate in Hz of a recording, otherwise None.

    """

    inputs: torch.Tensor
    lengths: torch.Tensor | None
    names: tuple[str, ...]
    rate: int | None = None


def read_unlabelled(path: str | os.PathLike[str], *, channels: int, size: Sequence[int], **options: Any) -> Unlabelled:
    """Read the samples of one file: an image, a .wav, .npy, .npz or IDX file, or a table.

    Arguments:
        path: the file. Labels in it are ignored.
        channels: the number of channels that the network expects. Images are read in color if it is 3.
        size: the size of the samples that the network was trained on, (length,) or (height, width). Images and series
            keep their own size. Flattened images are reshaped to it.
        options: arguments of `read_table` for a table, or `layout` for an array.

    """
    file = expand_home(path)
    if not file.is_file():
        found = "is a folder" if file.is_dir() else "is a device or a pipe" if file.exists() else "does not exist"
        raise MissingDataError(f"{file} {found}, expected a file")
    suffix = file.suffix.lower()
    if is_table(file):
        return _from_table(file, channels, size, options)
    if suffix in (".npy", ".npz") or is_idx(file):
        layout = options.pop("layout", None)
        _check_no_options(file, options)
        array, lengths = _array(file)
        inputs = arrange_for_network(array, layout, channels=channels, size=size, where=str(file))
        _check_finite(inputs, file)
        _check_lengths(lengths, inputs, file)
        steps = None if lengths is None else torch.from_numpy(lengths.astype(np.int64))
        return Unlabelled(torch.from_numpy(inputs), steps, _numbered(file, len(inputs)))
    _check_no_options(file, options)
    if suffix == ".wav":
        wave, rate = read_wav(file)
        _check_kind(file, "a recording", len(wave), 1, channels, size)
        return Unlabelled(torch.from_numpy(wave.copy())[None], None, (str(file),), rate)
    if suffix not in image_suffixes():
        raise DamagedDataError(
            f"{file}: unknown kind of file; expected an image, .wav, .npy, .npz, .csv, .tsv or .parquet"
        )
    image = read_image(file, mode="L" if channels == 1 else "RGB")
    _check_kind(file, "an image", len(image), 2, channels, size)
    return Unlabelled(image[None], None, (str(file),))


def _from_table(file: Path, channels: int, size: Sequence[int], options: dict[str, Any]) -> Unlabelled:
    table = read_table(file, **_present(file, options, channels * math.prod(size)))
    inputs, given = table.inputs, options.get("shape") is not None
    series = inputs.ndim == 3
    images = len(size) == 2 and options.get("id") is None
    flattened = len(size) == 1 and channels > 1 and inputs.shape[1] == 1
    if series and not given and (images or flattened):
        inputs = _unflattened(inputs[:, 0], channels, size, file)
    _check_kind(file, "a table", inputs.shape[1], inputs.ndim - 2, channels, size)
    names = tuple(f"{file}:{name}" for name in table.names)
    return Unlabelled(inputs, table.lengths, names)


def _unflattened(rows: torch.Tensor, channels: int, size: Sequence[int], file: Path) -> torch.Tensor:
    """The rows [N, n] of a table as samples [N, C, *size]."""
    needed = (channels, *size)
    if rows.shape[1] != math.prod(needed):
        raise DamagedDataError(
            f"{file}: {rows.shape[1]:,} values per row, but the network expects samples of "
            f"{' × '.join(map(str, needed))} = {math.prod(needed):,} values"
        )
    return torch.from_numpy(reshape_rows(rows.numpy(), needed, "CHW" if len(size) == 2 else "CL", str(file)))


def _present(file: Path, options: dict[str, Any], values: int) -> dict[str, Any]:
    """The options without columns that only labelled tables have: the label, and columns to ignore.

    A table without column names has no labels if it has as many columns as a sample has `values`.
    """
    opened = open_table(file, delimiter=options.get("delimiter"), header=options.get("header"))

    def exists(column: object) -> bool:
        return not opened.has_header or not isinstance(column, str) or column in opened.names

    given = {name: value for name, value in options.items() if name != "label" or exists(value)}
    wide = all(given.get(name) is None for name in ("id", "columns", "ignore"))
    if wide and not opened.has_header and len(opened.names) == values:
        given.pop("label", None)
    if "ignore" in given:
        given["ignore"] = [column for column in given["ignore"] if exists(column)]
    return given


def _array(file: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The array of samples of a file, and their lengths if an .npz file contains them."""
    if is_idx(file):
        return read_idx_array(file), None
    lengths = None
    if file.suffix.lower() == ".npy":
        try:
            array = np.load(file, allow_pickle=False)
        except DAMAGE as error:
            raise DamagedDataError(f"{file}: cannot be read: {error}") from error
    else:
        arrays = load_arrays(file)
        named = [name for name in ("inputs", "test_inputs") if name in arrays] or list(arrays)
        if len(named) != 1:
            raise DamagedDataError(f"{file}: contains {sorted(arrays)}, expected one array, or one called inputs")
        array, lengths = arrays[named[0]], arrays.get(named[0].replace("inputs", "lengths"))
        lengths = None if lengths is array else lengths
    if array.dtype.kind not in "iuf" or array.ndim == 0 or not len(array):
        raise DamagedDataError(f"{file}: {array.dtype} of shape {array.shape}, expected an array of numbers")
    if array.dtype not in (np.uint8, np.int16):
        array = array.astype(np.float32)
    return array, lengths


def _check_finite(inputs: np.ndarray, file: Path) -> None:
    finite = np.isfinite(inputs).all(axis=tuple(range(1, inputs.ndim)))
    if not finite.all():
        row = "" if len(inputs) == 1 else f", row {finite.argmin() + 1}"
        raise DamagedDataError(f"{file}{row}: the sample contains values that are not finite")


def _check_lengths(lengths: np.ndarray | None, inputs: np.ndarray, file: Path) -> None:
    if lengths is None:
        return
    fits = lengths.shape == (len(inputs),) and lengths.dtype.kind in "iu" and inputs.ndim == 3
    if not fits or lengths.min() < 1 or lengths.max() > inputs.shape[2]:
        raise DamagedDataError(
            f"{file}, lengths: expected {len(inputs):,} integers from 1 to {inputs.shape[-1]:,}, for sequences"
        )


def _check_kind(file: Path, what: str, found: int, dims: int, channels: int, size: Sequence[int]) -> None:
    kinds = {1: "series", 2: "images"}
    if dims != len(size) or found != channels:
        raise DamagedDataError(
            f"{file}: {what} gives {kinds[dims]} with {found} channels, but the network expects {kinds[len(size)]} "
            f"with {channels}"
        )


def _check_no_options(file: Path, options: dict[str, Any]) -> None:
    if options:
        raise ArgumentError(f"{next(iter(options))} is not an option for {file}")


def _numbered(file: Path, count: int) -> tuple[str, ...]:
    return (str(file),) if count == 1 else tuple(f"{file}:{row}" for row in range(1, count + 1))
