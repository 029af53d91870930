"""What a network was trained on, in numbers: with this others can feed it."""

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
    """How raw samples [batch, C, *size] become the input of a network, and what its logits stand for.

        x = (raw · scale − mean) / std,    mean and std per channel

    size: of the samples it was trained on, (height, width) or (length,).
    classes: their names, in the order of the logits.
    mfcc_rate: of a network for MFCCs. Raw samples are waves then, so many per second, size counts frames, and

        x = (mfcc(raw · scale, rate=mfcc_rate) − mean) / std
    """

    size: tuple[int, ...]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    mfcc_rate: int | None = None

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Samples as the data set has them → what the network wants, in float32.

        Where scale is 1 / 255 that is up to 255 (pixels), where it is 1 / 2¹⁵ up to 32,768 (sound), also as floats.
        """
        channels = len(self.mean) if self.mfcc_rate is None else len(self.mean) // N_MFCC
        if raw.ndim != len(self.size) + 2 or raw.shape[1] != channels:
            sizes = {1: "length", 2: "height, width"}[len(self.size)]
            waves = "" if self.mfcc_rate is None else f", waves at {self.mfcc_rate} Hz"
            raise ArgumentError(f"inputs have the shape [batch, {channels}, {sizes}]{waves}; got {tuple(raw.shape)}")
        seen = raw.is_floating_point() and raw.is_cpu and raw.numel() > 0  # a GPU would have to be waited for
        if seen and self.scale < 0.01 and raw.abs().max() <= 1:
            warnings.warn(
                f"inputs are multiplied by {self.scale:.3g}, but none of these exceeds 1: they look as if they were "
                f"already. Give them as the data set has them, up to {1 / self.scale:.0f}",
                stacklevel=2,
            )
        shape = (len(self.mean), *(1 for _ in self.size))
        mean, std = (torch.tensor(values, device=raw.device).view(shape) for values in (self.mean, self.std))
        values = raw.float() * self.scale
        if self.mfcc_rate is not None:
            values = channelwise_mfcc(values, rate=self.mfcc_rate)
        return (values - mean) / std

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Inputs:
        """What `plain` gave; ValueError where something is missing or not a number."""
        try:
            rate = entries.get("mfcc_rate")  # unknown to older files
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
