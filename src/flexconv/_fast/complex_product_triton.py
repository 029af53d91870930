"""The Triton kernel of `ops._complex_product`: one program computes one tile of c at one frequency."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from .launches import Launch

MAX_TILE = 64


def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, conjugate: bool) -> None:
    """Fill c [2, F, groups, M, N] with a [2, F, groups, M, K] · b [2, F, groups, K, N], or with a · conj(b)."""
    make_launch(a.shape, a.stride(), b.shape, b.stride(), c.shape, c.stride(), conjugate)(a, b, c)


def make_launch(
    a_shape: Sequence[int],
    a_strides: Sequence[int],
    b_shape: Sequence[int],
    b_strides: Sequence[int],
    c_shape: Sequence[int],
    c_strides: Sequence[int],
    conjugate: bool,
) -> Launch:
    """The launch for tensors of these shapes and strides."""
    _, frequencies, groups, rows, columns = c_shape
    sizes = rows, columns, min(a_shape[-1], b_shape[-2]), b_shape[-1]
    tiles = [min(MAX_TILE, max(16, triton.next_power_of_2(size))) for size in sizes[:3]]
    grid = frequencies * groups, triton.cdiv(rows, tiles[0]), triton.cdiv(columns, tiles[1])
    strides = a_strides, b_strides, c_strides
    outer_strides = [stride for each in strides for stride in each[:3]]
    unit = math.gcd(8, *outer_strides)
    inner_strides = [stride for each in strides for stride in each[3:]]
    constants: dict[str, int] = dict(zip(CONSTANTS, (unit, *inner_strides, *sizes, *tiles, conjugate), strict=True))
    numbers = groups, *(stride // unit for stride in outer_strides)
    return Launch(_complex_product, grid, numbers, constants, num_warps=4 if tiles[0] * tiles[1] >= MAX_TILE**2 else 2)


CONSTANTS = (
    "UNIT", "A_ROW", "A_TERM", "B_TERM", "B_COLUMN", "C_ROW", "C_COLUMN", "ROWS", "COLUMNS", "TERMS", "COLUMNS_OF_B",
    "TILE_ROWS", "TILE_COLUMNS", "TILE_TERMS", "CONJUGATE",
)  # fmt: skip


@triton.jit
def _complex_product(
    a, b, c, groups,
    # strides in multiples of UNIT
    a_part, a_frequency, a_group, b_part, b_frequency, b_group, c_part, c_frequency, c_group,
    UNIT: tl.constexpr,  # a constant, so that the compiler knows the alignment and can vectorise loads
    A_ROW: tl.constexpr, A_TERM: tl.constexpr,
    B_TERM: tl.constexpr, B_COLUMN: tl.constexpr,
    C_ROW: tl.constexpr, C_COLUMN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, COLUMNS_OF_B: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, TILE_TERMS: tl.constexpr,
    CONJUGATE: tl.constexpr,
):  # fmt: skip
    frequency = (tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    row = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tl.program_id(2) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    a += (frequency * a_frequency + group * a_group) * UNIT
    b += (frequency * b_frequency + group * b_group) * UNIT
    c += (frequency * c_frequency + group * c_group) * UNIT
    real = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    imaginary = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    for start in range(0, TERMS, TILE_TERMS):
        term = start + tl.arange(0, TILE_TERMS)
        a_offset = row * A_ROW + term[None, :] * A_TERM
        b_offset = term[:, None] * B_TERM + column * B_COLUMN
        a_mask = (row < ROWS) & (term[None, :] < TERMS)
        b_mask = (term[:, None] < TERMS) & (column < COLUMNS_OF_B)
        a_real = tl.load(a + a_offset, a_mask, 0.0)
        a_imaginary = tl.load(a + a_part * UNIT + a_offset, a_mask, 0.0)
        b_real = tl.load(b + b_offset, b_mask, 0.0)
        b_imaginary = tl.load(b + b_part * UNIT + b_offset, b_mask, 0.0)
        if CONJUGATE:
            b_imaginary = -b_imaginary
        real = tl.dot(a_real, b_real, real)
        real = tl.dot(-a_imaginary, b_imaginary, real)
        imaginary = tl.dot(a_imaginary, b_real, imaginary)
        imaginary = tl.dot(a_real, b_imaginary, imaginary)
    c_offset = row * C_ROW + column * C_COLUMN
    c_mask = (row < ROWS) & (column < COLUMNS)
    tl.store(c + c_offset, real.to(c.dtype.element_ty), c_mask)
    tl.store(c + c_part * UNIT + c_offset, imaginary.to(c.dtype.element_ty), c_mask)
