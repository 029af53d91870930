"""The preprocessing that a network was trained with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..audio import N_MFCC, channelwise_mfcc
from ..errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Converts raw samples [batch, C, *size] to the input of a network, and names its classes.

        x = (raw · scale − mean) / std,    mean and std per channel

    size: size of the training samples, (height, width) or (length,).
    classes: names of the classes, in the order of the logits.
    mfcc_rate: sampling rate in Hz, for a network on MFCCs. Raw samples are then waveforms, `size` counts frames, and

        x = (mfcc(raw · scale, rate=mfcc_rate) − mean) / std
    """

    size: tuple[int, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    mfcc_rate: int | None = None

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Raw samples → the input of the network, in float32.

        Pass values as in the data set: up to 255 for pixels (scale 1 / 255), up to 32,768 for audio (scale 1 / 2¹⁵),
        also if they are floats.
        """
        channels = len(self.mean) if self.mfcc_rate is None else len(self.mean) // N_MFCC
        if raw.ndim != len(self.size) + 2 or raw.shape[1] != channels:
            sizes = {1: "length", 2: "height, width"}[len(self.size)]
            waves = "" if self.mfcc_rate is None else f", waves at {self.mfcc_rate} Hz"
            raise ArgumentError(f"inputs have the shape [batch, {channels}, {sizes}]{waves}; got {tuple(raw.shape)}")
        seen = raw.is_floating_point() and raw.is_cpu and raw.numel() > 0  # reading values from a GPU would wait for it
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
        return (values - mean) / std

    def plain(self) -> dict[str, Any]:
        """As a dict of JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Inputs:
        """The inverse of `plain`. Raises a ValueError if an entry is missing or not a number."""
        try:
            rate = entries.get("mfcc_rate")  # not in older files
            return cls(
                size=tuple(map(int, entries["size"])),
                scale=float(entries["scale"]),
                mean=tuple(map(float, entries["mean"])),
                std=tuple(map(float, entries["std"])),
                classes=tuple(map(str, entries["classes"])),
                mfcc_rate=None if rate is None else int(rate),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(f"inputs must have size, scale, mean, std and classes; got {entries}") from error
