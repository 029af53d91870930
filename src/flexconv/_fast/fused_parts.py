"""What the kernels for fitting share (`_fused_fit_kernels.py`, `_fused_siren_kernels.py`): sizes, waves, sums, loss.

Values at points are tiles [hidden, points], of points in one row of the picture: products with a layer's map need no
transpose then, and a sum over points is mostly one that each thread makes by itself.
"""

from __future__ import annotations

import os

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)
import triton.language as tl  # pyright: ignore[reportMissingImports]

# from results/bench/tune_fit_h200.txt; `python -m benchmarks.tune_fit` tries more
PROGRAMS = 1056  # for all pictures together: eight for each multiprocessor of an H200
FORWARD_REGISTERS = 128  # of a thread: then eight of `forward` run at a time there
PRECISION = "tf32"  # of products; there, three times as many for those of float32 gave no better pictures
KEPT = torch.bfloat16  # type of what is written for every point to be read on the way back; y and E do not depend on it
WIDEST = 64  # hidden layer
CHANNELS = 16  # of the output: the smallest matrix that Triton multiplies

# for tests without a GPU; as Triton reads it
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"))


@triton.jit
def wave(angle, e):
    """e sin and e cos of an angle, by the units for such functions: exact to 10⁻⁶, and what turns lose in float32."""
    if INTERPRETED:
        return e * tl.sin(angle), e * tl.cos(angle)
    sine = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
    cosine = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
    return e * sine, e * cosine


@triton.jit
def find(block, width, ys, xs, B: tl.constexpr):
    """Where a block of points lies → its row, columns [points] and which of them exist, its y, and x [points]."""
    blocks = tl.cdiv(width, B)  # of a row
    row, column = block // blocks, block % blocks * B + tl.arange(0, B)
    inside = column < width
    return row, column, inside, tl.load(ys + row), tl.load(xs + column, mask=inside, other=0.0)


@triton.jit
def gather(values, H: tl.constexpr, B: tl.constexpr):
    """Sums [hidden, 4] over points [hidden, points]: those that a thread has of a matrix product, no others."""
    return tl.sum(tl.sum(tl.reshape(values, (H, B // 8, 4, 2)), 3), 1)


@triton.jit
def keep(tiles, number, values, ROWS: tl.constexpr):
    """Write the first rows of [hidden, points] to the tile of that number; those after them are padding."""
    H: tl.constexpr = values.shape[0]
    B: tl.constexpr = values.shape[1]
    row, point = tl.arange(0, H)[:, None], tl.arange(0, B)[None, :]
    tl.store(tiles + number * (ROWS * B) + row * B + point, values, mask=row < ROWS)


@triton.jit
def recall(tiles, number, H: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr):
    """What `keep` has written, and zeros below it, as float32 [hidden, points]."""
    row, point = tl.arange(0, H)[:, None], tl.arange(0, B)[None, :]
    return tl.load(tiles + number * (ROWS * B) + row * B + point, mask=row < ROWS, other=0.0).to(tl.float32)


@triton.jit
def add(place, value):
    """Add to what is there, in a place of this program alone."""
    tl.store(place, tl.load(place) + value)


@triton.jit
def compare(
    h, last_map, last_bias, targets, point, inside, points, channels, share, errors, number,
    C: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """The output map at a block of points. Writes ∂y → the squared error, and sums [C, 4] of ∂y."""
    colour = tl.arange(0, C)
    drawn = tl.dot(last_map, h, input_precision=PRODUCTS) + last_bias[:, None]
    wanted = inside[None, :] & (colour[:, None] < channels)
    target = tl.load(targets + colour[:, None] * points + point[None, :], mask=wanted, other=0.0)
    error = tl.where(wanted, drawn - target, 0.0)
    d = error * (2.0 * share)
    keep(errors, number, d, C)
    return tl.sum(error * error), gather(d, C, h.shape[1])
