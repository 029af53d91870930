"""What a network takes: the size of its samples, and the resolution at which it runs on a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..audio import N_MFCC, hop_length
from ..data import FULL_SCALE
from ..errors import ArgumentError
from ..models import Inputs

TRAINED, NATIVE = "trained", "native"
MAX_RATIO = 8  # of the resolution of a file to that of the training; a larger one costs much and predicts little

Resolution = str | tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sample:
    """One raw sample of a file, as `Inputs` takes it, and how the network must be resampled for it.

    Attributes:
        raw: [C, *size].
        scale: resolution relative to that of the network, per axis.
        row, start, stop: see `Prediction`.

    """

    raw: torch.Tensor
    scale: tuple[float, ...]
    row: str | None = None
    start: float | None = None
    stop: float | None = None


@dataclass(frozen=True)
class Target:
    """What a network takes, and at which resolution it is run.

    Attributes:
        inputs: the preprocessing of the network.
        size: size of the samples of the network, (height, width) or (length,).
        resolution: "trained", "native" or a size.
        hop: seconds between the beginnings of two chunks of a recording. None: chunks do not overlap.

    """

    inputs: Inputs
    size: tuple[int, ...]
    resolution: Resolution = TRAINED
    hop: float | None = None

    @property
    def dims(self) -> int:
        return len(self.size)

    @property
    def channels(self) -> int:
        """Channels of raw samples."""
        return len(self.inputs.mean) // (1 if self.inputs.mfcc_rate is None else N_MFCC)

    @property
    def raw_length(self) -> int:
        """The number of time steps of raw series, at the rate of the training."""
        if self.inputs.mfcc_rate is not None:
            return max(1, self.size[0] - 1) * hop_length(self.inputs.mfcc_rate)  # size counts frames
        return self.size[0] - (0 if self.inputs.images is None else self.inputs.images.noise_steps)

    @property
    def picture_size(self) -> tuple[int, ...] | None:
        """Height and width of pictures for the network; None if it takes no pictures."""
        if self.inputs.images is not None:
            return self.inputs.images.size
        return self.size if self.dims == 2 else None

    @property
    def picture_channels(self) -> int:
        images = self.inputs.images
        return self.channels // images.size[1] if images is not None and images.steps == "rows" else self.channels

    @property
    def takes_recordings(self) -> bool:
        # a network that was saved before `rate` existed was trained on recordings if 16-bit samples are scaled
        known = self.inputs.mfcc_rate or self.inputs.rate
        return (
            self.dims == 1 and self.picture_size is None and (known is not None or self.inputs.scale == 1 / FULL_SCALE)
        )

    def describe(self) -> str:
        """The samples of the network in words, for messages."""
        if self.picture_size is not None:
            kind = {1: "gray ", 3: "color "}.get(self.picture_channels, f"{self.picture_channels}-channel ")
            return f"{kind}pictures of {times(self.picture_size)}"
        if self.takes_recordings:
            rate = self.inputs.mfcc_rate or self.inputs.rate
            return f"recordings with {plural(self.channels, 'channel')}{f' at {rate} Hz' if rate else ''}"
        return f"series of {plural(self.raw_length, 'step')} with {plural(self.channels, 'channel')}"

    def place(self, own: Sequence[int], file: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The size at which samples of size `own` are used, and the resolution of the network for them."""
        if self.resolution == TRAINED:
            return self.size, (1.0,) * self.dims
        size = tuple(own) if isinstance(self.resolution, str) else self.resolution
        scale = tuple(new / old for new, old in zip(size, self.size, strict=True))
        if self.resolution == NATIVE:
            trained = f"{times(self.size)}, the size of the training samples"
            self.check_ratio(scale, f"{file}: {times(own)}", trained)
        return size, scale

    def check_ratio(self, scale: Sequence[float], own: str, trained: str) -> None:
        """Raise an error if the resolution of a file differs too much from that of the training."""
        if all(1 / MAX_RATIO <= each <= MAX_RATIO for each in scale):
            return
        other = f" or a size such as {times([2 * each for each in self.size])}" if self.dims == 2 else ""
        raise ArgumentError(
            f"{own} differs from {trained}, by more than a factor of {MAX_RATIO}, the limit of the resolution "
            f"{NATIVE}; use --resolution {TRAINED}{other}"
        )


def times(sizes: Sequence[int]) -> str:
    """(5, 7) → "5x7", as in options of the command."""
    return "x".join(map(str, sizes))


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
