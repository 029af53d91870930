"""A summary of a loaded data set, so that users can check what was understood before they train."""

from __future__ import annotations

import math

import torch

from ._splits import DataSplits, MappedRows, Samples

PARTS = ("train", "validation", "test")
MOST_LISTED = 4  # channels whose statistics are printed
MIN_FLATTENED = 49  # values of a flattened image, at least 7 × 7


def describe(data: DataSplits) -> dict[str, str]:
    """What a data set contains, as lines: samples, lengths, range of values, numbers of samples, and remarks."""
    lines = {"samples": _samples(data), "lengths": _lengths(data), "values": _values(data)}
    counts = {part: len(split) for part in PARTS if (split := getattr(data, part)) is not None}
    lines["splits"] = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    lines["classes"] = f"{data.num_classes}"
    lines["note"] = "; ".join(filter(None, (data.note, _flattened(data), _gray(data))))
    return {name: text for name, text in lines.items() if text}


def class_counts(data: DataSplits) -> list[tuple[str, ...]]:
    """The number of samples of every class in every split: rows of a class name and counts."""
    splits = [split for part in PARTS if (split := getattr(data, part)) is not None]
    counts = [torch.bincount(split.labels, minlength=data.num_classes).tolist() for split in splits]
    return [(name, *(f"{count:,}" for count in row)) for name, *row in zip(data.class_names, *counts, strict=True)]


def _samples(data: DataSplits) -> str:
    channels = f"{data.in_channels} channel{'' if data.in_channels == 1 else 's'}"
    dtype = str(data.train.inputs.dtype).removeprefix("torch.")
    if data.length is not None:
        return f"series of {data.length:,} steps with {channels} ({dtype})"
    height, width = data.train.sample_shape[1:]
    return f"images, {height} pixels high and {width} wide, with {channels} ({dtype})"


def _lengths(data: DataSplits) -> str:
    given = [s.lengths for part in PARTS if (s := getattr(data, part)) is not None and s.lengths is not None]
    if not given:
        return ""
    lengths = torch.cat(given)
    return f"{int(lengths.min()):,} to {int(lengths.max()):,} steps; shorter series are padded"


def _values(data: DataSplits) -> str:
    if isinstance(data.train.inputs, MappedRows):
        return ""
    low, high = _range(data.train)
    line = f"{low:g} to {high:g} in the training set"
    if data.train.mean.numel() > MOST_LISTED:
        return line
    mean, std = (_numbers(values / data.train.scale) for values in (data.train.mean, data.train.std))
    return f"{line}, mean {mean}, standard deviation {std}"


def _numbers(values: torch.Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values.flatten().tolist())


def _range(samples: Samples) -> tuple[float, float]:
    """The smallest and the largest value without padding."""
    inputs = samples.inputs
    assert isinstance(inputs, torch.Tensor)
    if samples.lengths is None:
        return inputs.min().item(), inputs.max().item()
    padding = torch.arange(inputs.shape[-1]) >= samples.lengths[:, None, None]
    values = inputs.float()
    return values.masked_fill(padding, math.inf).min().item(), values.masked_fill(padding, -math.inf).max().item()


def _flattened(data: DataSplits) -> str:
    """A remark on series of one channel that may be flattened square images."""
    side = math.isqrt(data.length or 0)
    if data.name not in ("table", "npz") or data.in_channels != 1 or side**2 != data.length or side**2 < MIN_FLATTENED:
        return ""
    return f"{data.length:,} = {side} × {side}: if the samples are flattened images, set data.shape=[{side},{side}]"


def _gray(data: DataSplits) -> str:
    """A remark on images in a folder that are read in color, although all of them are gray."""
    inputs = data.train.inputs
    if data.name != "folder" or data.length is not None or data.in_channels != 3 or isinstance(inputs, MappedRows):
        return ""
    red, green, blue = inputs.unbind(1)
    gray = torch.equal(red, green) and torch.equal(green, blue)
    return "all training images are gray: set data.mode=gray to read them with one channel" if gray else ""
