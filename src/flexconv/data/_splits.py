"""A loaded data set: up to three splits, each with its tensors and the statistics that standardize them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._arguments import per_axis
from ..errors import ArgumentError
from ..models import ImageSeries
from ._layout import Layout


@dataclass(frozen=True, eq=False)
class MappedRows:
    """Rows of a memory-mapped array, which are read on demand. `array` [M, C, *size], `rows` [N] int64."""

    array: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return torch.from_numpy(np.empty(0, self.array.dtype)).dtype

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Read the samples `index` [B] → [B, C, *size], on the CPU."""
        return torch.from_numpy(self.array[self.rows[index.numpy()]])


@dataclass(frozen=True, eq=False)
class Samples:
    """One split of a data set, as it was read.

    Attributes:
        inputs: [N, C, *size], in the dtype of the source.
        labels: [N] int64.
        lengths: [N] int64 if sequences are padded, otherwise None.

    """

    inputs: torch.Tensor | MappedRows
    labels: torch.Tensor
    lengths: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, values in (("labels", self.labels), ("lengths", self.lengths)):
            if values is not None and (values.shape != (len(self.inputs),) or values.dtype != torch.int64):
                raise ArgumentError(
                    f"{name} must be {len(self.inputs)} int64 numbers, one per sample; "
                    f"got {values.dtype} with shape {tuple(values.shape)}"
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        series = "" if self.lengths is None else ", of different lengths"
        return f"{type(self).__name__}({len(self):,} samples {list(self.sample_shape)}{series})"

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape [C, *size] of a sample."""
        return tuple(self.inputs.shape[1:])

    def rows(self, index: torch.Tensor) -> Samples:
        """The samples `index` [n], in this order. Memory-mapped inputs are not read."""
        if isinstance(self.inputs, MappedRows):
            inputs = dataclasses.replace(self.inputs, rows=self.inputs.rows[index.numpy()])
        else:
            inputs = self.inputs[index]
        return Samples(inputs, self.labels[index], None if self.lengths is None else self.lengths[index])


@dataclass(frozen=True, eq=False, repr=False)
class Split(Samples):
    """One split of a data set, and how to turn its samples into the input of a network.

        x = (inputs · scale − mean) / std

    The values after the end of a sequence are then set to 0, and `tail` is appended.

    Attributes:
        scale: factor of the inputs.
        mean: mean of the training set, [C, 1, …] per channel or [1, L] per time index.
        std: standard deviation of the training set, with the shape of `mean`.
        tail: [C, T], a fixed continuation of every sequence (the noise of npCIFAR10).
        layout: the arrangement of images in sequences that were made from images, which augmentation needs.
        mfcc_rate: samples per second of the waves, if the inputs are MFCCs.
        rate: samples per second, if the inputs are waves.
        images: how the sequences were made from images. Predictions for image files need it.
        resize_to: image size to which batches are resized, after augmentation.

    """

    scale: float = 1.0
    mean: torch.Tensor = dataclasses.field(default_factory=lambda: torch.zeros(()))
    std: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(()))
    tail: torch.Tensor | None = None
    layout: Layout | None = None
    mfcc_rate: int | None = None
    rate: int | None = None
    images: ImageSeries | None = None
    resize_to: tuple[int, int] | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape [C, *size] of a sample in a batch."""
        channels, *size = self.inputs.shape[1:]
        if self.tail is not None:
            size[-1] += self.tail.shape[-1]
        return (channels, *(self.resize_to or size))

    def rows(self, index: torch.Tensor) -> Split:
        part = super().rows(index)
        return dataclasses.replace(self, inputs=part.inputs, labels=part.labels, lengths=part.lengths)

    def at_resolution(self, size: int | tuple[int, int]) -> Split:
        """The same images, which are resized to `size` in every batch after augmentation (see `resize_images`).

        The statistics remain those of the native resolution, so that a gray level has the same value at every
        resolution.
        """
        if len(self.inputs.shape) != 4:
            raise ArgumentError(f"at_resolution needs images [N, C, H, W]; got {list(self.inputs.shape)}")
        height, width = per_axis("size", size, 2, minimum=1)
        native = (height, width) == tuple(self.inputs.shape[2:])
        return dataclasses.replace(self, resize_to=None if native else (height, width))


@dataclass(frozen=True, eq=False)
class DataSplits:
    """A loaded data set.

    Attributes:
        name: name of the data set.
        train: the training set.
        validation: the validation set; None if nothing was held out. Under the "paper" protocol, it is the test set for
            most data sets, because the authors selected their epoch there; see `selects_on_test`.
        test: the test set; None if the data set has none.
        class_names: names of the classes.
        protocol: "honest" or "paper".
        note: a remark that must accompany results on this data, such as that the data set is incomplete.

    """

    name: str
    train: Split
    validation: Split | None
    test: Split | None
    class_names: tuple[str, ...]
    protocol: str = "honest"
    note: str = ""

    def __repr__(self) -> str:
        parts = {part: getattr(self, part) for part in ("train", "validation", "test")}
        counts = ", ".join(f"{part} {len(split):,}" for part, split in parts.items() if split is not None)
        names = self.class_names if self.num_classes <= 6 else (*self.class_names[:3], "…", self.class_names[-1])
        classes = f"{self.num_classes} classes: {', '.join(names)}" if names else "no classes"
        return f"DataSplits({self.name}: {counts}; samples {list(self.train.sample_shape)}; {classes})"

    @property
    def in_channels(self) -> int:
        return self.train.sample_shape[0]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_size(self) -> int | tuple[int, int] | None:
        """The side of square images, or (height, width); None for sequences."""
        if len(self.train.sample_shape) != 3:
            return None
        height, width = self.train.sample_shape[1:]
        return height if height == width else (height, width)

    @property
    def length(self) -> int | None:
        """The number of steps of sequences, including padding and tail; None for images."""
        return self.train.sample_shape[1] if len(self.train.sample_shape) == 2 else None

    @property
    def model_arguments(self) -> dict[str, Any]:
        """The arguments of a model that depend on the data: in_channels, num_classes, and image_size or length."""
        size = {"length": self.length} if self.image_size is None else {"image_size": self.image_size}
        return {"in_channels": self.in_channels, "num_classes": self.num_classes, **size}

    @property
    def selects_on_test(self) -> bool:
        """Whether the validation set is the test set."""
        return self.validation is not None and self.validation is self.test

    def at_resolution(self, size: int | tuple[int, int]) -> DataSplits:
        """All splits at another image size; see `Split.at_resolution`."""
        train = self.train.at_resolution(size)
        test = None if self.test is None else self.test.at_resolution(size)
        if self.validation is None or self.selects_on_test:
            validation = test if self.selects_on_test else None
        else:
            validation = self.validation.at_resolution(size)
        return dataclasses.replace(self, train=train, validation=validation, test=test)


def nbytes(inputs: torch.Tensor | MappedRows) -> int:
    """The size of all samples in bytes."""
    return math.prod(inputs.shape) * inputs.dtype.itemsize
