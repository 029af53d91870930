"""How pictures lie in series that were made of them: what augmentation needs, which works on pictures."""

from __future__ import annotations

from typing import NamedTuple

import torch


class PixelsAsSteps(NamedTuple):
    """Pictures [N, C, H, W] as series [N, C, H · W]: time runs along the rows, one after the other."""

    width: int

    def series(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.flatten(2)

    def pictures(self, series: torch.Tensor) -> torch.Tensor:
        return series.unflatten(2, (-1, self.width))


class RowsAsSteps(NamedTuple):
    """Pictures [N, C, H, W] as series [N, C · W, H]: time runs down the rows, each of which is one step."""

    channels: int

    def series(self, pictures: torch.Tensor) -> torch.Tensor:
        return pictures.transpose(2, 3).flatten(1, 2).contiguous()

    def pictures(self, series: torch.Tensor) -> torch.Tensor:
        return series.unflatten(1, (self.channels, -1)).transpose(2, 3)


Layout = PixelsAsSteps | RowsAsSteps
