"""The Triton kernel of `ops._row_product`: every program multiplies one tile of several sequences."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .launches import Launch


class TileConfig(NamedTuple):
    """The tile of one program, and how programs are launched."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int  # depth of the software pipeline
    programs_per_multiprocessor: int  # each program handles many sequences; 0: one program per sequence


RESIDENT = TileConfig(rows=256, columns=64, terms=256, warps=8, stages=4, programs_per_multiprocessor=1)
"""The tile of the matrix stays in shared memory while the program handles one sequence after another."""

RESIDENT_ELEMENTS = 2**15  # largest tile of a matrix that stays in shared memory
RESIDENT_SHARED_MEMORY = 225 * 1024  # bytes that `RESIDENT` needs: available since the Hopper generation

STREAMED = TileConfig(rows=64, columns=128, terms=64, warps=4, stages=2, programs_per_multiprocessor=0)
"""The matrix is loaded in blocks of terms for every sequence."""


def launch(
    matrix: torch.Tensor, x: torch.Tensor, y: torch.Tensor, width: int, *, config: TileConfig | None = None
) -> None:
    """Fill y [sequences, length'] with matrix [M, K] · x [sequences, length], laid out in rows of `width`.

    The matrix must be contiguous or the transpose of a contiguous matrix, apart from padding between its rows. The
    elements of a sequence must be contiguous.
    """
    make_launch(
        matrix.shape, matrix.stride(), x.shape, x.stride(0), y.shape[1], y.stride(0), width, x.dtype, x.device, config
    )(matrix, x, y)


@functools.lru_cache(maxsize=1024)
def make_launch(
    matrix_shape: tuple[int, int],
    matrix_strides: tuple[int, int],
    x_shape: tuple[int, int],
    x_stride: int,
    y_length: int,
    y_stride: int,
    width: int,
    dtype: torch.dtype,  # noqa: ARG001  (every dtype needs its own launch)
    device: torch.device,
    config: TileConfig | None,
) -> Launch:
    """The launch for tensors of these shapes and strides."""
    (rows, terms), (sequences, x_length) = matrix_shape, x_shape
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None  # None in Triton's interpreter
    large_memory = getattr(gpu, "shared_memory_per_block_optin", 0) >= RESIDENT_SHARED_MEMORY
    config = config or (RESIDENT if terms <= RESIDENT.terms and large_memory else STREAMED)
    tile_terms = _tile_size(terms, config.terms)
    tile_rows = _tile_size(rows, min(config.rows, RESIDENT_ELEMENTS // tile_terms))
    tile_columns = _tile_size(width, config.columns)
    tiles = triton.cdiv(rows, tile_rows) * triton.cdiv(width, tile_columns)
    limit = config.programs_per_multiprocessor * (gpu.multi_processor_count if gpu else 1)
    programs = min(sequences, max(1, limit // tiles)) if limit else sequences
    by_columns = matrix_strides[1] != 1
    stride = matrix_strides[1 if by_columns else 0]
    unit = math.gcd(8, stride)
    numbers = rows, terms, sequences, programs, x_length, y_length, stride // unit, x_stride, y_stride
    constants = {
        "UNIT": unit,
        "BY_COLUMNS": by_columns,
        "WIDTH": width,
        "SINGLE_BLOCK": terms <= tile_terms,
        "TILE_ROWS": tile_rows,
        "TILE_COLUMNS": tile_columns,
        "TILE_TERMS": tile_terms,
    }
    grid = (programs * tiles,)
    return Launch(_row_product, grid, numbers, constants, num_warps=config.warps, num_stages=config.stages)


def _tile_size(number: int, limit: int) -> int:
    """Return the smallest power of two that is at least `number` and 16, or `limit` if that is smaller."""
    return min(limit, max(16, triton.next_power_of_2(number)))


# Sizes that change while kernels are learned are not constexpr, so they do not cause a new compilation.
@triton.jit
def _row_product(
    matrix, x, y, rows, terms, sequences, programs, x_length, y_length,
    matrix_stride,  # in multiples of UNIT
    x_stride, y_stride,
    UNIT: tl.constexpr, BY_COLUMNS: tl.constexpr, WIDTH: tl.constexpr, SINGLE_BLOCK: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, TILE_TERMS: tl.constexpr,
):  # fmt: skip
    column_tiles: tl.constexpr = (WIDTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS * column_tiles
    tile = tl.program_id(0) % tiles
    row = tile // column_tiles * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tile % column_tiles * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    term = tl.arange(0, TILE_TERMS)
    first = tl.program_id(0) // tiles
    x += first.to(tl.int64) * x_stride
    y += first.to(tl.int64) * y_stride
    y_offset = row * WIDTH + column
    y_mask = (row < rows) & (column < WIDTH) & (y_offset < y_length)
    if BY_COLUMNS:
        matrix += row + term[None, :] * (matrix_stride * UNIT)
    else:
        matrix += row * (matrix_stride * UNIT) + term[None, :]
    resident = tl.load(matrix, (row < rows) & (term[None, :] < terms), 0.0)
    for _ in range(first, sequences, programs):
        total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
        if SINGLE_BLOCK:
            x_offset = term[:, None] * WIDTH + column
            total = tl.dot(resident, tl.load(x + x_offset, (column < WIDTH) & (x_offset < x_length), 0.0), total)
        else:
            for start in range(0, terms, TILE_TERMS):
                skipped = start * (matrix_stride * UNIT) if BY_COLUMNS else start
                block = tl.load(matrix + skipped, (row < rows) & (start + term[None, :] < terms), 0.0)
                x_offset = (start + term[:, None]) * WIDTH + column
                total = tl.dot(block, tl.load(x + x_offset, (column < WIDTH) & (x_offset < x_length), 0.0), total)
        tl.store(y + y_offset, total.to(y.dtype.element_ty), y_mask)
        x += programs * x_stride
        y += programs * y_stride
