"""How images are arranged in sequences, so that augmentation can be applied to the images."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PixelsAsSteps(NamedTuple):
    """Images [N, C, H, W] as sequences [N, C, H · W]: one pixel per time step, row by row."""

    width: int

    def series(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(2)

    def images(self, series: torch.Tensor) -> torch.Tensor:
        return series.unflatten(2, (-1, self.width))


class RowsAsSteps(NamedTuple):
    """Images [N, C, H, W] as sequences [N, C · W, H]: one row per time step."""

    channels: int

    def series(self, images: torch.Tensor) -> torch.Tensor:
        return images.transpose(2, 3).flatten(1, 2).contiguous()

    def images(self, series: torch.Tensor) -> torch.Tensor:
        return series.unflatten(1, (self.channels, -1)).transpose(2, 3)


Layout = PixelsAsSteps | RowsAsSteps
