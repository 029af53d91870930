"""Files with one or several samples: arrays, IDX files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..data import DamagedDataError, is_table, read_unlabelled, resize_images
from ..models import ImageSeries
from ._target import NATIVE, Sample, Target, plural


def read_rows(file: Path, target: Target, options: Mapping[str, Any]) -> list[Sample]:
    """Read the samples of a file. They have the values of the training data, before standardization.

    `options` are arguments of `flexconv.data.read_table`. For an array, only `layout` is used.
    """
    used = {name: value for name, value in options.items() if is_table(file) or name == "layout"}
    images = None if target.inputs.images is None else _images_of_series(file, target.inputs.images, target, used)
    if images is not None:
        return [Sample(image, (1.0,), row=_row(name, file)) for image, name in images]
    size = target.size if target.dims == 2 else (target.raw_length,)
    found = read_unlabelled(file, channels=target.channels, size=size, **used)
    names = [_row(name, file) for name in found.names]
    if target.dims == 2:
        resized, scale = _resized(found.inputs, target, file)
        return [Sample(image, scale, row=name) for image, name in zip(resized, names, strict=True)]
    ends = [found.inputs.shape[2]] * len(names) if found.lengths is None else found.lengths.tolist()
    return [
        Sample(series[:, :end], _series_scale(end, target, file, name), row=name)
        for series, end, name in zip(found.inputs, ends, names, strict=True)
    ]


def _images_of_series(
    file: Path, series: ImageSeries, target: Target, options: Mapping[str, Any]
) -> list[tuple[torch.Tensor, str]] | None:
    """Images and their names, for a network on images as series; None if the file has no such images."""
    try:
        found = read_unlabelled(file, channels=target.picture_channels, size=series.size, **options)
    except DamagedDataError:
        return None
    return list(zip(found.inputs, found.names, strict=True)) if found.inputs.shape[2:] == series.size else None


def _row(name: str, file: Path) -> str | None:
    """The part of a name behind the file: a row or an id; None if the file has only one sample."""
    return None if name == str(file) else name.removeprefix(f"{file}:")


def _resized(images: torch.Tensor, target: Target, file: Path) -> tuple[torch.Tensor, tuple[float, ...]]:
    size, scale = target.place(images.shape[2:], file)
    if tuple(images.shape[2:]) == size:
        return images, scale
    values = images if images.dtype == torch.uint8 else images.float()
    return resize_images(values, (size[0], size[1])), scale


def _series_scale(length: int, target: Target, file: Path, row: str | None) -> tuple[float]:
    """The resolution of the network for a series. Other lengths are allowed if the training series had several."""
    if target.resolution == NATIVE:
        return (target.place((length,), file)[1][0],)
    if length != target.raw_length and (target.inputs.varying is False or target.inputs.images is not None):
        where = f"{file}" if row is None else f"{file}, row {row}"
        raise DamagedDataError(
            f"{where}: {plural(length, 'step')}, but the network takes {target.describe()}; if the same time was "
            f"sampled at another rate, use --resolution {NATIVE} (resolution={NATIVE!r})"
        )
    return (1.0,)
