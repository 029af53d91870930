"""A depthwise convolution as matrix products: inputs and outputs are cut into tiles of 64 neighboring positions.

Let τ number the tiles and let p, q be positions inside a tile. With o = σ − τ, the offset between an input tile σ and
an output tile τ, the convolution of one channel is

    y[τ, p] = Σ_o Σ_q x[τ + o, q] · T_o[q, p],        T_o[q, p] = w[o·t + q − p + left]

along every axis, where t is the length of a tile and w is zero outside of its taps. The matrix T_o is the same for all
tiles and all samples of a batch, so the sum over q is a product of matrices, for which GPUs have special units. It
takes 64 · 64 multiplications per pair of tiles, whether or not the taps fill T_o.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

TILE = 64  # positions in a tile
SHAPES = {
    1: ((64,),),
    2: ((8, 8), (4, 16), (2, 32), (1, 64), (16, 4)),
    3: ((4, 4, 4), (2, 4, 8), (1, 8, 8), (2, 2, 16), (1, 4, 16), (1, 2, 32)),
}


class Tiles(NamedTuple):
    """How a convolution is cut into tiles. Tuples have one entry per axis."""

    shape: tuple[int, ...]  # positions in a tile
    inputs: tuple[int, ...]  # number of tiles of the input
    outputs: tuple[int, ...]  # number of tiles of the output
    first: tuple[int, ...]  # smallest offset between an input tile and an output tile
    offsets: tuple[int, ...]  # number of offsets

    @property
    def pairs(self) -> int:
        """The number of pairs of an output tile and an input tile that contributes to it."""
        total = 1
        for inputs, outputs, first, offsets in zip(self.inputs, self.outputs, self.first, self.offsets, strict=True):
            total *= _pairs(inputs, outputs, first, first + offsets - 1)
        return total


def cut_into_tiles(
    size: tuple[int, ...], taps: tuple[int, ...], left: tuple[int, ...], outputs: tuple[int, ...]
) -> Tiles:
    """The tiles with the fewest pairs for a convolution with stride 1, dilation 1 and `left` padding."""
    found = [tiles_of_shape(shape, size, taps, left, outputs) for shape in SHAPES[len(size)]]
    best = found[0]
    for tiles in found[1:]:  # a loop, because torch.compile does not support min() here
        best = tiles if tiles.pairs < best.pairs else best
    return best


cached_tiles = functools.lru_cache(maxsize=4096)(cut_into_tiles)


def tiles_of_shape(
    shape: tuple[int, ...],
    size: tuple[int, ...],
    taps: tuple[int, ...],
    left: tuple[int, ...],
    outputs: tuple[int, ...],
) -> Tiles:
    """The tiles of a given shape. Arguments as in `cut_into_tiles`."""
    first = tuple(-pad // t for t, pad in zip(shape, left, strict=True))
    last = tuple((k - 1 - pad + t - 1) // t for t, k, pad in zip(shape, taps, left, strict=True))
    return Tiles(
        shape,
        tuple(-(-n // t) for t, n in zip(shape, size, strict=True)),
        tuple(-(-n // t) for t, n in zip(shape, outputs, strict=True)),
        first,
        tuple(b - a + 1 for a, b in zip(first, last, strict=True)),
    )


def _pairs(inputs: int, outputs: int, first: int, last: int) -> int:
    """The number of (σ, τ) with 0 ≤ σ < inputs, 0 ≤ τ < outputs and first ≤ σ − τ ≤ last."""
    return _pairs_up_to(inputs, outputs, last) - _pairs_up_to(inputs, outputs, first - 1)


def _pairs_up_to(inputs: int, outputs: int, last: int) -> int:
    """The number of (σ, τ) with σ − τ ≤ last: the sum over τ of τ + last + 1, clamped between 0 and inputs."""
    return _clamped_sum(inputs, last + 1 + outputs) - _clamped_sum(inputs, last + 1)


def _clamped_sum(limit: int, stop: int) -> int:
    """Σ min(u, limit) for 0 ≤ u < stop."""
    if stop <= 0:
        return 0
    ramp = min(stop, limit + 1)
    return ramp * (ramp - 1) // 2 + (stop - ramp) * limit
