"""The GPU form of `_row_product.py`: a program takes a tile of one sequence after another."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Cut(NamedTuple):
    """How much a program takes at once."""

    rows: int
    terms: int
    warps: int
    stages: int  # loads on their way
    crowd: int  # programs per multiprocessor, each for many sequences; 0: one for every sequence


COLUMNS = 128
WHOLE = Cut(rows=128, terms=256, warps=8, stages=2, crowd=1)  # a program keeps its rows of the matrix
WHOLE_NEEDS = 225 * 1024  # bytes of shared memory: GPUs from Hopper on
IN_PIECES = Cut(rows=64, terms=64, warps=4, stages=2, crowd=0)


def launch(matrix: torch.Tensor, x: torch.Tensor, y: torch.Tensor, width: int, *, cut: Cut | None = None) -> None:
    """Fill y [sequences, length'] with matrix [m, k] · x [sequences, length] in rows of `width`."""
    rows, terms = matrix.shape
    card = torch.cuda.get_device_properties(x.device)
    shared = getattr(card, "shared_memory_per_block_optin", 0)
    cut = cut or (WHOLE if terms <= WHOLE.terms and shared >= WHOLE_NEEDS else IN_PIECES)
    limits = zip((rows, width, terms), (cut.rows, COLUMNS, cut.terms), strict=True)
    tile = [min(most, max(16, triton.next_power_of_2(number))) for number, most in limits]
    tiles = triton.cdiv(rows, tile[0]) * triton.cdiv(width, tile[1])
    programs = min(len(x), max(1, card.multi_processor_count * cut.crowd // tiles)) if cut.crowd else len(x)
    with torch.cuda.device_of(x):
        _row_product[(programs * tiles,)](  # pyright: ignore[reportIndexIssue]
            matrix, x, y, len(x), programs, x.shape[1], y.shape[1], x.stride(0), y.stride(0),
            rows, terms, width, *matrix.stride(), *tile, num_warps=cut.warps, num_stages=cut.stages,
        )  # fmt: skip


@triton.jit
def _row_product(
    matrix, x, y, sequences, programs, x_length, y_length, x_stride, y_stride,
    ROWS: tl.constexpr, TERMS: tl.constexpr, WIDTH: tl.constexpr,
    MATRIX_ROW: tl.constexpr, MATRIX_TERM: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, TILE_TERMS: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (WIDTH + TILE_COLUMNS - 1) // TILE_COLUMNS
    tiles: tl.constexpr = (ROWS + TILE_ROWS - 1) // TILE_ROWS * across
    tile = tl.program_id(0) % tiles
    row = tile // across * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tile % across * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    terms = tl.arange(0, TILE_TERMS)
    first = tl.program_id(0) // tiles
    x += first.to(tl.int64) * x_stride
    y += first.to(tl.int64) * y_stride
    to_y = row * WIDTH + column
    wanted = (row < ROWS) & (column < WIDTH) & (to_y < y_length)
    matrix += row * MATRIX_ROW + terms[None, :] * MATRIX_TERM
    kept = tl.load(matrix, (row < ROWS) & (terms[None, :] < TERMS), 0.0)
    for _ in range(first, sequences, programs):
        total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
        if TERMS <= TILE_TERMS:
            from_x = terms[:, None] * WIDTH + column
            total = tl.dot(kept, tl.load(x + from_x, (column < WIDTH) & (from_x < x_length), 0.0), total)
        else:
            for done in range(0, TERMS, TILE_TERMS):
                some = tl.load(matrix + done * MATRIX_TERM, (row < ROWS) & (done + terms[None, :] < TERMS), 0.0)
                from_x = (done + terms[:, None]) * WIDTH + column
                total = tl.dot(some, tl.load(x + from_x, (column < WIDTH) & (from_x < x_length), 0.0), total)
        tl.store(y + to_y, total.to(y.dtype.element_ty), wanted)
        x += programs * x_stride
        y += programs * y_stride
