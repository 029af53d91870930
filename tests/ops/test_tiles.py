"""Depthwise convolutions as products of tiles with Toeplitz matrices: the equations of `_tiles.py`, in plain loops."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from flexconv.ops import conv1d
from flexconv.ops._tiles import SHAPES, TILE, Tiles, cut_into_tiles, tiles_of_shape

CASES = [  # size, taps, (left, right) padding
    ((130,), (65,), ((64, 0),)),
    ((64,), (1,), ((0, 0),)),
    ((50,), (7,), ((0, 0),)),
    ((9,), (4,), ((6, 5),)),
    ((20, 17), (5, 9), ((2, 2), (4, 4))),
    ((9, 33), (9, 3), ((0, 0), (5, 1))),
    ((5, 6, 9), (3, 5, 4), ((1, 1), (4, 0), (0, 2))),
]


def outputs_of(size, taps, pads):
    return tuple(n + sum(pair) - k + 1 for n, k, pair in zip(size, taps, pads, strict=True))


def product_of_tiles(x: torch.Tensor, w: torch.Tensor, left: tuple[int, ...], tiles: Tiles, outputs) -> torch.Tensor:
    """Σ_o x[τ + o] T_o for x [batch, *size] and w [*taps], one offset at a time."""
    pad = [
        amount
        for t, n, size in zip(tiles.shape, tiles.inputs, x.shape[1:], strict=True)
        for amount in (n * t - size, 0)
    ]
    x = F.pad(x, pad[::-1])
    y = x.new_zeros(len(x), *(n * t for n, t in zip(tiles.outputs, tiles.shape, strict=True)))
    positions = list(itertools.product(*map(range, tiles.shape)))
    for index in itertools.product(*map(range, tiles.offsets)):
        offset = [i + first for i, first in zip(index, tiles.first, strict=True)]
        matrix = x.new_zeros(TILE, TILE)
        for (row, q), (column, p) in itertools.product(enumerate(positions), enumerate(positions)):
            axes = zip(offset, tiles.shape, q, p, left, strict=True)
            tap = tuple(o * t + a - b + pad for o, t, a, b, pad in axes)
            if all(0 <= k < n for k, n in zip(tap, w.shape, strict=True)):
                matrix[row, column] = w[tap]
        for tile in itertools.product(*map(range, tiles.outputs)):
            source = [a + b for a, b in zip(tile, offset, strict=True)]
            if all(0 <= s < n for s, n in zip(source, tiles.inputs, strict=True)):
                block = x[(slice(None), *(slice(s * t, (s + 1) * t) for s, t in zip(source, tiles.shape, strict=True)))]
                place = (slice(None), *(slice(s * t, (s + 1) * t) for s, t in zip(tile, tiles.shape, strict=True)))
                y[place] += (block.flatten(1) @ matrix).unflatten(1, tiles.shape)
    return y[(slice(None), *map(slice, outputs))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_of_tiles_equal_convolution(case):
    size, taps, pads = case
    left, outputs = tuple(pair[0] for pair in pads), outputs_of(size, taps, pads)
    x, w = torch.randn(2, *size, dtype=torch.float64), torch.randn(*taps, dtype=torch.float64)
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(size)]
    expected = conv(F.pad(x, [a for pair in reversed(pads) for a in pair]).unsqueeze(1), w[None, None]).squeeze(1)
    found = product_of_tiles(x, w, left, cut_into_tiles(size, taps, left, outputs), outputs)
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tiles_have_64_positions_and_the_fewest_pairs(case):
    size, taps, pads = case
    left, outputs = tuple(pair[0] for pair in pads), outputs_of(size, taps, pads)
    tiles = cut_into_tiles(size, taps, left, outputs)
    assert math.prod(tiles.shape) == TILE
    assert tiles.pairs == min(tiles_of_shape(s, size, taps, left, outputs).pairs for s in SHAPES[len(size)])
    axes = list(zip(tiles.inputs, tiles.first, tiles.offsets, strict=True))
    pairs = 0
    for tile in itertools.product(*map(range, tiles.outputs)):
        found = (
            sum(0 <= t + first + i < n for i in range(many)) for t, (n, first, many) in zip(tile, axes, strict=True)
        )
        pairs += math.prod(found)
    assert tiles.pairs == pairs


def test_causal_convolutions_skip_tiles_of_the_future():
    tiles = cut_into_tiles((1024,), (1024,), (1023,), (1024,))
    assert tiles.first == (-16,)
    assert tiles.offsets == (17,)
    assert tiles.pairs == 16 * 17 // 2


def test_toeplitz_is_direct_on_a_cpu():
    x, w = torch.randn(2, 3, 20), torch.randn(3, 1, 5)
    assert torch.equal(conv1d(x, w, groups=3, algorithm="toeplitz"), conv1d(x, w, groups=3, algorithm="direct"))
