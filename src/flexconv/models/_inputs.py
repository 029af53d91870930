"""The preprocessing that a network was trained with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from .._arguments import as_int, unknown_name
from .._context import exporting
from ..audio import N_MFCC, channelwise_mfcc
from ..errors import ArgumentError, FlexConvError

STEPS = ("pixels", "rows")
LONGEST = 2**31  # samples per axis


@dataclass(frozen=True, kw_only=True)
class ImageSeries:
    """How images [batch, C, *size] become series, for a network that was trained on images as series.

    size: height and width of the images.
    steps: "pixels" for one pixel per time step, row by row: [batch, C, height · width]. "rows" for one row per time
        step: [batch, C · width, height].
    order_seed: the time steps are permuted by `numpy.random.RandomState(order_seed)`. None keeps their order.
    noise_steps: after standardization, this many steps of noise N(0, 1) are appended, the same to all series.
    noise_seed: seed of the noise, for `numpy.random.RandomState`.
    """

    size: tuple[int, int]
    steps: str
    order_seed: int | None = None
    noise_steps: int = 0
    noise_seed: int = 0

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            unknown_name("steps", self.steps, STEPS)
        if len(self.size) != 2 or not all(_is_between(size, 1, LONGEST) for size in self.size):
            raise ArgumentError(f"images.size must be (height, width); got {self.size}")
        for name, most in (("order_seed", 2**32 - 1), ("noise_seed", 2**32 - 1), ("noise_steps", LONGEST)):
            value = getattr(self, name)
            if not _is_between(value, 0, most) and not (name == "order_seed" and value is None):
                raise ArgumentError(f"images.{name} must be an integer from 0 to {most}; got {value!r}")

    def series(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, C, *size] → series, without the noise."""
        if images.ndim != 4 or images.shape[2:] != self.size:
            height, width = self.size
            raise ArgumentError(f"images have the shape [batch, C, {height}, {width}]; got {tuple(images.shape)}")
        series = images.flatten(2) if self.steps == "pixels" else images.transpose(2, 3).flatten(1, 2)
        if self.order_seed is None:
            return series.contiguous()
        order = np.random.RandomState(self.order_seed).permutation(series.shape[2])
        return series[:, :, torch.from_numpy(order).to(series.device)]

    def noise(self, channels: int) -> torch.Tensor:
        """The noise at the end of every series, [channels, noise_steps] float32."""
        draw = np.random.RandomState(self.noise_seed).standard_normal((channels, self.noise_steps))
        return torch.from_numpy(draw.astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Converts raw samples [batch, C, *size] to the input of a network, and names its classes.

        x = (raw · scale − mean) / std,    mean and std per channel

    size: size of the training samples, (height, width) or (length,).
    classes: names of the classes, in the order of the logits.
    mfcc_rate: sampling rate in Hz, for a network on MFCCs. Raw samples are then waveforms, `size` counts frames, and

        x = (mfcc(raw · scale, rate=mfcc_rate) − mean) / std

    rate: sampling rate in Hz, for a network on waveforms. None if it is not known.
    varying: whether the training series had different lengths. None if it is not known.
    images: how images become series, for a network that was trained on images as series. Raw samples may then be images
        [batch, C, height, width] too.
    """

    size: tuple[int, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    mfcc_rate: int | None = None
    rate: int | None = None
    varying: bool | None = None
    images: ImageSeries | None = None

    def __post_init__(self) -> None:
        if len(self.size) not in (1, 2) or not all(_is_between(size, 1, LONGEST) for size in self.size):
            raise ArgumentError(f"inputs.size must be (length,) or (height, width); got {self.size}")
        for name, values in (("scale", (self.scale,)), ("std", self.std)):
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise ArgumentError(f"inputs.{name} must be positive; got {getattr(self, name)}")
        if not all(map(math.isfinite, self.mean)):
            raise ArgumentError(f"inputs.mean must be finite; got {self.mean}")
        if not len(self.mean) == len(self.std) > 0:
            raise ArgumentError(
                f"inputs.mean and inputs.std must have one number per channel; got {len(self.mean)} and {len(self.std)}"
            )
        for name in self.classes:
            if any("\ud800" <= letter <= "\udfff" for letter in name):  # no file could contain it
                raise ArgumentError(f"inputs.classes must be text; got {name!r}, which UTF-8 cannot represent")
        for name, rate in (("mfcc_rate", self.mfcc_rate), ("rate", self.rate)):
            if rate is not None and rate < 1:
                raise ArgumentError(f"inputs.{name} must be a sampling rate in Hz; got {rate}")

    def check_fits(self, *, channels: int, num_classes: int, dims: int) -> None:
        """Raise an error unless these are the inputs of a network with so many channels, classes and axes."""
        if len(self.classes) != num_classes:
            raise ArgumentError(
                f"inputs.classes has {len(self.classes)} names, but the network has {num_classes} classes"
            )
        if len(self.mean) != channels:
            raise ArgumentError(
                f"inputs.mean and inputs.std are of {len(self.mean)} channels, but the network has {channels}"
            )
        if len(self.size) != dims:
            raise ArgumentError(f"inputs.size must have {dims} numbers, one per axis of the network; got {self.size}")

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Raw samples → the input of the network, in float32.

        Pass values as in the data set: up to 255 for pixels (scale 1 / 255), up to 32,768 for audio (scale 1 / 2¹⁵),
        also if they are floats.
        """
        if self.images is not None and raw.ndim == 4:
            raw = self.images.series(raw)
        channels = len(self.mean) if self.mfcc_rate is None else len(self.mean) // N_MFCC
        if raw.ndim != len(self.size) + 2 or raw.shape[1] != channels:
            sizes = {1: "length", 2: "height, width"}[len(self.size)]
            waves = "" if self.mfcc_rate is None else f", waves at {self.mfcc_rate} Hz"
            raise ArgumentError(f"inputs have the shape [batch, {channels}, {sizes}]{waves}; got {tuple(raw.shape)}")
        # reading values from a GPU would wait for it, and a graph has no values
        seen = raw.is_floating_point() and raw.is_cpu and not exporting() and raw.numel() > 0
        if seen and self.scale < 0.01 and raw.abs().max() <= 1:
            warnings.warn(
                f"inputs are multiplied by {self.scale:.3g}, but none of these exceeds 1, so they seem to be scaled "
                f"already. Pass raw values, up to {1 / self.scale:.0f}",
                stacklevel=2,
            )
        shape = (len(self.mean), *(1 for _ in self.size))
        mean, std = (torch.tensor(values, device=raw.device).view(shape) for values in (self.mean, self.std))
        values = raw.float() * self.scale
        if self.mfcc_rate is not None:
            values = channelwise_mfcc(values, rate=self.mfcc_rate)
        x = (values - mean) / std
        if self.images is None or not self.images.noise_steps:
            return x
        noise = self.images.noise(x.shape[1]).to(x.device)
        return torch.cat([x, noise.expand(x.shape[0], -1, -1)], dim=-1)

    def plain(self) -> dict[str, Any]:
        """As a dict of JSON types."""
        entries = asdict(self)
        if entries["images"] is not None:
            entries["images"]["size"] = list(entries["images"]["size"])
        return {name: list(value) if isinstance(value, tuple) else value for name, value in entries.items()}

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Inputs:
        """The inverse of `plain`. Raises an error if an entry is missing or impossible."""
        try:
            mfcc_rate, rate, varying, images = map(entries.get, ("mfcc_rate", "rate", "varying", "images"))
            return cls(
                size=tuple(map(int, entries["size"])),
                scale=float(entries["scale"]),
                mean=tuple(map(float, entries["mean"])),
                std=tuple(map(float, entries["std"])),
                classes=tuple(map(str, entries["classes"])),
                # older files lack these entries
                mfcc_rate=None if mfcc_rate is None else int(mfcc_rate),
                rate=None if rate is None else int(rate),
                varying=None if varying is None else bool(varying),
                images=None if images is None else ImageSeries(**{**images, "size": tuple(images["size"])}),
            )
        except FlexConvError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArgumentError(f"inputs must have size, scale, mean, std and classes; got {entries}") from error


def _is_between(value: object, least: int, most: int) -> bool:
    number = as_int(value)
    return number is not None and least <= number <= most
