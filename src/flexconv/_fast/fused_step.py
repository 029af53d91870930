"""The common part of the steps in `fused_fit.py`: packed parameters, memory, launches."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)

from . import fused_parts as parts
from .fused_parts import CHANNELS

ROOM = 4 << 30  # maximum number of bytes for the values at all points; a larger image is processed in parts


class LayeredStep(ABC):
    """Loss and gradients of networks on a grid, for targets [images, channels, height, width].

    `parameters` are stacked over the images. For the kernels, all parameters of an image are packed into one row, and
    so are their gradients: vectors [depth, hidden, numbers], the maps between layers [depth − 1, hidden, hidden], the
    output map [CHANNELS, hidden] and its bias. In them `hidden` is a power of two, padded with zeros.
    """

    kernels: Any  # the module of the kernels `forward` and `back`
    numbers: int  # per channel of a layer
    cut: tuple[int, int]  # maximum number of points that a program processes at a time, and its number of warps

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
        self.rows = 8 * triton.cdiv(hidden, 8)  # that are stored; a SIREN with 29 rows took longer than one with 32
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
        """Set `.grad` of every parameter. Returns the mean squared error of every image [images]."""
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
        """Run forward and backward through all layers for `blocks` blocks of points, from number `first` on."""
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
        """Return further compile-time arguments of the kernels."""
        return {}

    @abstractmethod
    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the place of each parameter in [images, total], as a view in the shape of the parameter."""

    def _gradients(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the gradient of each parameter from sums [images, total]."""
        return self._places(packed)

    def _split(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split [images, total] into the vectors, the maps, the output map and its bias."""
        vectors, maps, out, bias = (packed[:, start:stop] for start, stop in itertools.pairwise(self.starts))
        return (
            vectors.unflatten(1, (self.depth, self.hidden, self.numbers)),
            maps.unflatten(1, (self.depth - 1, self.hidden, self.hidden)),
            out.unflatten(1, (CHANNELS, self.hidden)),
            bias,
        )


def _room(device: torch.device) -> int:
    """Return the number of bytes to use: `ROOM`, or half of the free memory if that is less."""
    return min(ROOM, torch.cuda.mem_get_info(device)[0] // 2) if device.type == "cuda" else ROOM
