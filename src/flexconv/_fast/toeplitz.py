"""Launches of the kernels in `toeplitz_triton.py`: a depthwise convolution and its two gradients.

`ops/_tiles.py` has the equations. Every tap is multiplied with every sample that it meets, in the precision of the
input, and products are summed in float32. Only the order differs from that of `torch.nn.functional.conv2d`.
"""

# Triton kernels are launched by subscripts.
# pyright: reportIndexIssue=false
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ..ops._geometry import Geometry, Pads, output_sizes
from ..ops._tiles import TILE, Tiles, cached_tiles

MATRIX_BYTES = 2**28  # largest memory for Toeplitz matrices; with more, channels are processed in parts
PROGRAMS = 512  # a weight gradient is split into at least this many programs, to occupy all multiprocessors
SAMPLES = 64  # sequences are read in place if the batch is a multiple of this number, so that rows fill whole blocks
ROWS = 64  # of a program that packs
TAPS = 128  # of a program that adds diagonals


class Launch(NamedTuple):
    """How a kernel is launched."""

    rows: int  # of a block of inputs
    warps: int
    stages: int  # depth of the software pipeline


MULTIPLY = {2: Launch(64, 4, 3), 4: Launch(64, 4, 3)}  # by the bytes of a number
CORRELATE = {2: Launch(64, 4, 3), 4: Launch(32, 4, 4)}

#: launches of the kernel for whole rows of tiles, by the number of tiles in a row and the largest distance between two
#: of them that have common taps (`python -m benchmarks.tune_depthwise rows`). Others use the kernel for single tiles.
MULTIPLY_ROWS = {(4, 1): Launch(64, 4, 3), (4, 2): Launch(64, 4, 3)}


class Blocks(NamedTuple):
    """A tensor cut into tiles: `data` has 64 contiguous numbers per channel, tile and sample, at these strides."""

    data: torch.Tensor
    channel: int
    tile: int
    sample: int


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Pads) -> torch.Tensor:
    """The convolution of x [batch, channels, *size] and weight [channels, *taps]."""
    tiles = _cut(x.shape[2:], weight.shape[1:], pads)
    y = x.new_empty(*x.shape[:2], *output_size(x.shape[2:], weight.shape[1:], pads))
    _multiply(make_blocks(x, tiles.shape), weight, bias, y, tiles, [left for left, _ in pads], flip=False)
    return y


def input_gradient(
    grad: torch.Tensor, weight: torch.Tensor, pads: Pads, size: Sequence[int], blocks: Blocks | None = None
) -> torch.Tensor:
    """The gradient of x: a convolution with the flipped kernel."""
    taps = weight.shape[1:]
    left = [k - 1 - pad for k, (pad, _) in zip(taps, pads, strict=True)]
    tiles = _flipped(_cut(size, taps, pads), taps, left)
    found = grad.new_empty(*grad.shape[:2], *size)
    _multiply(blocks or make_blocks(grad, tiles.shape), weight, None, found, tiles, left, flip=True)
    return found


def weight_gradient(
    x: torch.Tensor, grad: torch.Tensor, pads: Pads, taps: Sequence[int], blocks: Blocks | None = None
) -> torch.Tensor:
    """The gradient of weight: correlations of x and grad, of which the diagonals are added."""
    from . import toeplitz_triton as kernels

    tiles = _cut(x.shape[2:], tuple(taps), pads)
    of_x, of_grad = make_blocks(x, tiles.shape), blocks or make_blocks(grad, tiles.shape)
    batch, channels = x.shape[:2]
    found = x.new_empty(channels, *taps)
    rows, warps, stages = CORRELATE[x.element_size()]
    if not _is_packed(of_x) or not _is_packed(of_grad):
        rows = math.gcd(rows, batch)
    offsets = math.prod(tiles.offsets)
    steps = -(-batch * math.prod(tiles.outputs) // rows)
    splits = max(1, min(-(-PROGRAMS // (offsets * channels)), steps // 8))
    shape, inputs, outputs, first, count = _three_axes(tiles)
    number = math.prod(taps)
    three = (*(1,) * (3 - len(taps)), *taps)
    left = (*(0,) * (3 - len(taps)), *(pad for pad, _ in pads))
    dims = len(taps)
    sums = x.new_empty(splits, channels, offsets, 2**dims, TILE, dtype=torch.float32)
    with torch.cuda.device_of(x):
        kernels.correlate[(offsets, channels, splits)](
            of_x.data, of_grad.data, sums, batch, channels, *outputs, *inputs, *first, *count, splits,
            of_x.channel, of_x.tile, of_x.sample, of_grad.channel, of_grad.tile, of_grad.sample,
            dims, *shape, ROWS=rows, PRECISION=_precision(x), num_warps=warps, num_stages=stages,
        )  # fmt: skip
        kernels.add_diagonals[(-(-number // TAPS), channels)](
            sums, found, channels, number, three[1], three[2], *first, *count, *left, splits,
            dims, *shape, TAPS=TAPS, num_warps=4,
        )  # fmt: skip
    return found


def gradients(
    x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, pads: Pads
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of weight together. The gradient of y is cut into tiles once."""
    size, taps = x.shape[2:], weight.shape[1:]
    blocks = make_blocks(grad, _cut(size, taps, pads).shape)
    return input_gradient(grad, weight, pads, size, blocks), weight_gradient(x, grad, pads, taps, blocks)


def output_size(size: Sequence[int], taps: Sequence[int], pads: Pads) -> tuple[int, ...]:
    """The number of outputs along each axis."""
    ones = (1,) * len(pads)
    return output_sizes(size, taps, Geometry(ones, pads, ones, 1))


def make_blocks(x: torch.Tensor, shape: tuple[int, ...]) -> Blocks:
    """Cut x [batch, channels, *size] into tiles. Sequences of whole tiles need no copy if the batch is large."""
    from . import toeplitz_triton as kernels

    x = x.contiguous()
    batch, channels, *size = x.shape
    if len(size) == 1 and size[0] % TILE == 0 and batch % SAMPLES == 0:
        return Blocks(x.view(-1), size[0], TILE, channels * size[0])
    number = [-(-n // t) for n, t in zip(size, shape, strict=True)]
    rows = batch * math.prod(number)
    packed = x.new_empty(channels * rows * TILE)
    ones = (1,) * (3 - len(size))
    _, tiles1, tiles2 = (*ones, *number)
    with torch.cuda.device_of(x):
        kernels.pack[(-(-rows // ROWS), channels)](
            x, packed, batch, rows, channels, tiles1, tiles2, *_units(size), *ones, *shape, _unit(size), ROWS=ROWS,
            num_warps=4,
        )  # fmt: skip
    return Blocks(packed, rows * TILE, batch * TILE, TILE)


def _multiply(
    blocks: Blocks,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    tiles: Tiles,
    left: Sequence[int],
    *,
    flip: bool,
) -> None:
    """Fill y with products of blocks and Toeplitz matrices."""
    from . import toeplitz_triton as kernels

    batch, channels, *size = y.shape
    weight = weight.contiguous()
    launch = MULTIPLY[y.element_size()]
    shape, inputs, outputs, first, count = _three_axes(tiles)
    rows = batch * math.prod(outputs)
    ones = 3 - len(size)
    lefts, taps = (*(0,) * ones, *left), (*(1,) * ones, *weight.shape[1:])
    offsets = math.prod(tiles.offsets)
    wide = _launch_for_rows(tiles, y)
    for start, stop in _parts(channels, offsets * TILE * TILE * y.element_size()):
        matrices = y.new_empty(stop - start, offsets, TILE, TILE)
        with torch.cuda.device_of(y):
            kernels.build_matrices[(offsets, stop - start)](
                weight[start:stop], matrices, *first, *count[1:], *lefts, *taps, *shape, FLIP=flip, num_warps=4
            )
            if wide is not None:
                _multiply_rows(
                    blocks._replace(data=blocks.data[start * blocks.channel :]), matrices,
                    None if bias is None else bias[start:stop], y[:, start:], channels, tiles, wide,
                )  # fmt: skip
                continue
            kernels.multiply[(-(-rows // launch.rows), stop - start)](
                blocks.data[start * blocks.channel :], matrices, y if bias is None else bias[start:stop], y[:, start:],
                batch, rows, channels, *outputs[1:], *inputs, *first, *count, *_units(size),
                blocks.channel, blocks.tile, blocks.sample, len(size), *shape, _unit(size),
                ROWS=launch.rows, SINGLE=batch % launch.rows == 0, BIAS=bias is not None, PRECISION=_precision(y),
                num_warps=launch.warps, num_stages=launch.stages,
            )  # fmt: skip


def _launch_for_rows(tiles: Tiles, y: torch.Tensor) -> Launch | None:
    """How to launch the kernel for whole rows of tiles, or None if that for single tiles should be used."""
    if len(tiles.shape) != 2 or y.element_size() != 2 or tiles.inputs[1] != tiles.outputs[1]:
        return None
    return MULTIPLY_ROWS.get((tiles.inputs[1], _reach(tiles)))


def _reach(tiles: Tiles) -> int:
    """The largest distance between two tiles of a row for which there are taps."""
    first, last = tiles.first[1], tiles.first[1] + tiles.offsets[1] - 1
    return min(max(-first, last), tiles.inputs[1] - 1)


def _multiply_rows(
    blocks: Blocks,
    matrices: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    channels: int,
    tiles: Tiles,
    launch: Launch,
) -> None:
    """Fill the channels of y for which there are matrices. There are `channels` in total."""
    from . import toeplitz_rows_triton as kernels

    batch, _, *size = y.shape
    parts = -(-batch // launch.rows)
    kernels.multiply_rows[(tiles.outputs[0] * parts, len(matrices))](
        blocks.data, matrices, y if bias is None else bias, y, batch, channels, tiles.inputs[0], *tiles.first,
        *tiles.offsets, *_units(size)[1:], blocks.channel, blocks.tile, parts, *tiles.shape, _unit(size),
        N=tiles.inputs[1], REACH=_reach(tiles), ROWS=launch.rows, WHOLE=batch % launch.rows == 0, BIAS=bias is not None,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


def _is_packed(blocks: Blocks) -> bool:
    return blocks.sample == TILE


def _unit(size: Sequence[int]) -> int:
    """The largest power of two up to 8 that divides the last size. Triton has to know it to load several numbers."""
    return math.gcd(8, size[-1])


def _units(size: Sequence[int]) -> tuple[int, ...]:
    """The size along three axes, of which the last is in multiples of `_unit`."""
    return (*(1,) * (3 - len(size)), *size[:-1], size[-1] // _unit(size))


def _parts(channels: int, bytes_per_channel: int) -> Iterator[tuple[int, int]]:
    """Ranges of channels whose matrices fit into `MATRIX_BYTES`."""
    step = max(1, min(channels, MATRIX_BYTES // bytes_per_channel))
    return ((start, min(start + step, channels)) for start in range(0, channels, step))


def _cut(size: Sequence[int], taps: Sequence[int], pads: Pads) -> Tiles:
    left = tuple(pad for pad, _ in pads)
    return cached_tiles(tuple(size), tuple(taps), left, output_size(size, taps, pads))


def _flipped(tiles: Tiles, taps: Sequence[int], left: Sequence[int]) -> Tiles:
    """The tiles of the gradient: inputs and outputs change places, and the kernel is flipped."""
    first = tuple(-pad // t for t, pad in zip(tiles.shape, left, strict=True))
    last = ((k - 1 - pad + t - 1) // t for t, k, pad in zip(tiles.shape, taps, left, strict=True))
    return Tiles(
        tiles.shape, tiles.outputs, tiles.inputs, first, tuple(b - a + 1 for a, b in zip(first, last, strict=True))
    )


def _three_axes(tiles: Tiles) -> tuple[tuple[int, ...], ...]:
    """The numbers of `tiles` for three axes, of which the first have a single tile of length 1."""
    missing = 3 - len(tiles.shape)
    return tuple((*(0 if name == "first" else 1,) * missing, *getattr(tiles, name)) for name in Tiles._fields)


def _precision(x: torch.Tensor) -> str:
    """Three products in TF32 are as accurate as one in float32."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"
