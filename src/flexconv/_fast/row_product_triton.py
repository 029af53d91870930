"""The GPU form of `_row_product.py`: a program takes a tile of one sequence after another."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Cut(NamedTuple):
    """How much a program takes at once."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int  # loads on their way
    crowd: int  # programs per multiprocessor, each for many sequences; 0: one for every sequence


WHOLE = Cut(rows=256, columns=64, terms=256, warps=8, stages=4, crowd=1)  # a program keeps its rows of the matrix
KEPT = 2**15  # numbers of a matrix that a program keeps, at most
WHOLE_NEEDS = 225 * 1024  # bytes of shared memory: GPUs from Hopper on
IN_PIECES = Cut(rows=64, columns=128, terms=64, warps=4, stages=2, crowd=0)


def launch(matrix: torch.Tensor, x: torch.Tensor, y: torch.Tensor, width: int, *, cut: Cut | None = None) -> None:
    """Fill y [sequences, length'] with matrix [m, k] · x [sequences, length] in rows of `width`.

    The matrix is stored by rows or by columns, sequences one number after another.
    """
    rows, terms = matrix.shape
    card = torch.cuda.get_device_properties(x.device) if x.is_cuda else None  # None: Triton's interpreter
    roomy = getattr(card, "shared_memory_per_block_optin", 0) >= WHOLE_NEEDS
    cut = cut or (WHOLE if terms <= WHOLE.terms and roomy else IN_PIECES)
    tile_terms = _tile(terms, cut.terms)
    tile = _tile(rows, min(cut.rows, KEPT // tile_terms)), _tile(width, cut.columns), tile_terms
    tiles = triton.cdiv(rows, tile[0]) * triton.cdiv(width, tile[1])
    crowd = cut.crowd * (card.multi_processor_count if card else 1)
    programs = min(len(x), max(1, crowd // tiles)) if crowd else len(x)
    by_columns = matrix.stride(1) != 1
    stride = matrix.stride(1 if by_columns else 0)
    unit = math.gcd(8, stride)
    with torch.cuda.device_of(x):
        _row_product[(programs * tiles,)](  # pyright: ignore[reportIndexIssue]
            matrix, x, y, rows, terms, len(x), programs, x.shape[1], y.shape[1],
            stride // unit, x.stride(0), y.stride(0), unit, by_columns, width, terms <= tile_terms, *tile,
            num_warps=cut.warps, num_stages=cut.stages,
        )  # fmt: skip


def _tile(number: int, most: int) -> int:
    """A power of 2 that holds a number, or the most there is room for."""
    return min(most, max(16, triton.next_power_of_2(number)))


# What is learned, and so changes, is no constant: one compilation serves kernels of many sizes.
@triton.jit
def _row_product(
    matrix, x, y, rows, terms, sequences, programs, x_length, y_length,
    matrix_stride,  # in units
    x_stride, y_stride,
    UNIT: tl.constexpr, BY_COLUMNS: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, TILE_TERMS: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (WIDTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS * across
    tile = tl.program_id(0) % tiles
    row = tile // across * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tile % across * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    term = tl.arange(0, TILE_TERMS)
    first = tl.program_id(0) // tiles
    x += first.to(tl.int64) * x_stride
    y += first.to(tl.int64) * y_stride
    to_y = row * WIDTH + column
    wanted = (row < rows) & (column < WIDTH) & (to_y < y_length)
    if BY_COLUMNS:
        matrix += row + term[None, :] * (matrix_stride * UNIT)
    else:
        matrix += row * (matrix_stride * UNIT) + term[None, :]
    kept = tl.load(matrix, (row < rows) & (term[None, :] < terms), 0.0)
    for _ in range(first, sequences, programs):
        total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
        if AT_ONCE:
            from_x = term[:, None] * WIDTH + column
            total = tl.dot(kept, tl.load(x + from_x, (column < WIDTH) & (from_x < x_length), 0.0), total)
        else:
            for done in range(0, terms, TILE_TERMS):
                ahead = done * (matrix_stride * UNIT) if BY_COLUMNS else done
                some = tl.load(matrix + ahead, (row < rows) & (done + term[None, :] < terms), 0.0)
                from_x = (done + term[:, None]) * WIDTH + column
                total = tl.dot(some, tl.load(x + from_x, (column < WIDTH) & (from_x < x_length), 0.0), total)
        tl.store(y + to_y, total.to(y.dtype.element_ty), wanted)
        x += programs * x_stride
        y += programs * y_stride
