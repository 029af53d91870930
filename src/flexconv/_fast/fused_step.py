"""What the steps of `_fused_fit.py` share: parameters packed for the kernels, memory, launches."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)

from . import fused_parts as parts
from .fused_parts import CHANNELS

ROOM = 4 << 30  # bytes for what is written for every point, at most; a larger picture goes through it in parts


class LayeredStep(ABC):
    """Loss and gradients of networks on a grid, for targets [pictures, channels, height, width].

    `parameters` are stacked over the pictures. For the kernels all of a picture's are packed into one row, and so are
    their gradients: vectors [depth, hidden, numbers], the maps between layers [depth − 1, hidden, hidden], the output
    map [CHANNELS, hidden] and its bias. `hidden` is a power of two there, padded with zeros.
    """

    kernels: Any  # a module with the kernels `forward` and `back`
    numbers: int  # of a channel of a layer
    cut: tuple[int, int]  # points that a program works on at a time, at most, and how many threads, in 32s, share them

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        targets: torch.Tensor,
        ys: torch.Tensor,
        xs: torch.Tensor,
        *,
        depth: int,
        hidden: int,
    ) -> None:
        self.parameters, self.targets = parameters, targets.contiguous()
        self.ys, self.xs = ys.contiguous(), xs.contiguous()
        self.depth, self.hidden = depth, max(16, triton.next_power_of_2(hidden))
        self.rows = 8 * triton.cdiv(hidden, 8)  # that are written of it; a SIREN of 29 rows took longer than one of 32
        lengths = [self.numbers * depth * self.hidden, (depth - 1) * self.hidden**2, CHANNELS * self.hidden, CHANNELS]
        self.starts = [0, *itertools.accumulate(lengths)]

        pictures, width = len(targets), len(xs)
        self.points = min(self.cut[0], max(16, triton.next_power_of_2(width)))
        self.blocks = len(ys) * triton.cdiv(width, self.points)
        self.programs = max(1, min(self.blocks, parts.PROGRAMS // pictures))
        block_bytes = parts.KEPT.itemsize * pictures * ((depth + 1) * self.rows + CHANNELS) * self.points
        self.at_once = min(self.blocks, max(1, _room(targets.device) // block_bytes))

        like = {"device": targets.device, "dtype": torch.float32}
        self._packed = torch.zeros(pictures, self.starts[-1], **like)
        kept = {"device": targets.device, "dtype": parts.KEPT}
        self._layers = torch.empty(pictures, depth - 1, self.at_once, self.rows, self.points, **kept)  # u_1 … u_n
        self._errors = torch.empty(pictures, self.at_once, CHANNELS, self.points, **kept)
        self._changes = torch.empty(2, pictures, self.at_once, self.rows, self.points, **kept)  # ∂u of two layers
        self._sums = torch.empty(pictures, self.programs, self.starts[-1], **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        for name, place in self._places(self._packed):
            place.copy_(self.parameters[name])
        self._sums.zero_()
        self._losses.zero_()
        for first in range(0, self.blocks, self.at_once):
            self._go(first, min(self.at_once, self.blocks - first))
        for name, gradient in self._gradients(self._sums.sum(1)):
            self.parameters[name].grad = gradient.contiguous()
        return self._losses.sum(1)

    def _go(self, first: int, blocks: int) -> None:
        """Forward and back through all layers, for some blocks of points from the first."""
        _, at_maps, at_out, at_out_bias, total = self.starts
        grid, (channels, height, width) = (self.programs, len(self.targets)), self.targets.shape[1:]
        options = {
            "DEPTH": self.depth,
            "H": self.hidden,
            "ROWS": self.rows,
            "B": self.points,
            "TOTAL": total,
            "PRODUCTS": parts.PRECISION,
            "num_warps": self.cut[1],
            **self._options(),
        }
        tensors = self.ys, self.xs, self.targets, self._packed, self._layers, self._errors, self._sums, self._losses
        numbers = width, height, first, blocks, 1.0 / self.targets[0].numel(), channels
        places = {"AT_MAPS": at_maps, "AT_OUT": at_out, "AT_OUT_BIAS": at_out_bias}
        limit = {"maxnreg": parts.FORWARD_REGISTERS}
        self.kernels.forward[grid](*tensors, *numbers, C=CHANNELS, **places, **options, **limit)
        tensors = self.ys, self.xs, self._packed, self._layers
        after, (change, next_change) = self._errors, self._changes
        for f in reversed(range(self.depth)):
            outermost = f == self.depth - 1
            at_map = at_out if outermost else at_maps + f * self.hidden**2
            sizes = (CHANNELS, CHANNELS) if outermost else (self.hidden, self.rows)
            place = dict(zip(("AFTER", "ROWS_AFTER"), sizes, strict=True)) | {"LAST": f == 0}
            numbers = width, first, blocks, f, at_map
            self.kernels.back[grid](*tensors, after, change, self._sums, *numbers, **place, **options)
            after, change, next_change = change, next_change, change

    def _options(self) -> dict[str, Any]:
        """What else the kernels are compiled for."""
        return {}

    @abstractmethod
    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Where each parameter is in [pictures, total], in its own shape."""

    def _gradients(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The gradient of each parameter from sums [pictures, total]."""
        return self._places(packed)

    def _split(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The vectors, the maps, the output map and its bias of [pictures, total]."""
        vectors, maps, out, bias = (packed[:, start:stop] for start, stop in itertools.pairwise(self.starts))
        return (
            vectors.unflatten(1, (self.depth, self.hidden, self.numbers)),
            maps.unflatten(1, (self.depth - 1, self.hidden, self.hidden)),
            out.unflatten(1, (CHANNELS, self.hidden)),
            bias,
        )


def _room(device: torch.device) -> int:
    """Bytes to use: half of what is free, where that is less."""
    return min(ROOM, torch.cuda.mem_get_info(device)[0] // 2) if device.type == "cuda" else ROOM
