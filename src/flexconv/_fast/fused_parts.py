"""Common parts of the kernels in `fused_fit_kernels.py` and `fused_siren_kernels.py`: sizes, waves, sums, loss.

Values at points are tiles [hidden, points], with points in one row of the image. Products with the map of a layer then
need no transpose, and most of a sum over points is computed within a thread.
"""

from __future__ import annotations

import os

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)
import triton.language as tl  # pyright: ignore[reportMissingImports]

# from results/bench/tune_fit_h200.txt; `python -m benchmarks.tune_fit` tries more
PROGRAMS = 1056  # over all images: eight per multiprocessor of an H200
FORWARD_REGISTERS = 128  # per thread, so that eight programs of `forward` run at a time on a multiprocessor
PRECISION = "tf32"  # of products; in those measurements, tf32x3 (float32 accuracy) gave no better images
KEPT = torch.bfloat16  # dtype of the values that are stored for the backward pass; y and E do not depend on it
WIDEST = 64  # maximum width of a hidden layer
CHANNELS = 16  # of the padded output: the smallest matrix size that Triton multiplies

# for tests without a GPU; parsed as by Triton
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"))


@triton.jit
def wave(angle, e):
    """Return e sin and e cos of an angle. Uses hardware sin/cos; error about 1e-6 plus range reduction."""
    if INTERPRETED:
        return e * tl.sin(angle), e * tl.cos(angle)
    sine = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
    cosine = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], tl.float32, is_pure=True, pack=1)
    return e * sine, e * cosine


@triton.jit
def find(block, width, ys, xs, B: tl.constexpr):
    """Locate a block of points → its row, columns [points], which of them are inside the image, y, and x [points]."""
    blocks = tl.cdiv(width, B)  # of a row
    row, column = block // blocks, block % blocks * B + tl.arange(0, B)
    inside = column < width
    return row, column, inside, tl.load(ys + row), tl.load(xs + column, mask=inside, other=0.0)


@triton.jit
def gather(values, H: tl.constexpr, B: tl.constexpr):
    """Sum [hidden, points] to [hidden, 4]: only over the points of a matrix product that are in the same thread."""
    return tl.sum(tl.sum(tl.reshape(values, (H, B // 8, 4, 2)), 3), 1)


@triton.jit
def keep(tiles, number, values, ROWS: tl.constexpr):
    """Write the first ROWS rows of [hidden, points] to a tile. The other rows are padding."""
    H: tl.constexpr = values.shape[0]
    B: tl.constexpr = values.shape[1]
    row, point = tl.arange(0, H)[:, None], tl.arange(0, B)[None, :]
    tl.store(tiles + number * (ROWS * B) + row * B + point, values, mask=row < ROWS)


@triton.jit
def recall(tiles, number, H: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr):
    """Read a tile that `keep` has written, padded with zeros, as float32 [hidden, points]."""
    row, point = tl.arange(0, H)[:, None], tl.arange(0, B)[None, :]
    return tl.load(tiles + number * (ROWS * B) + row * B + point, mask=row < ROWS, other=0.0).to(tl.float32)


@triton.jit
def add(place, value):
    """Add to memory that only this program uses."""
    tl.store(place, tl.load(place) + value)


@triton.jit
def compare(
    h, last_map, last_bias, targets, point, inside, points, channels, share, errors, number,
    C: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Apply the output map to a block of points and write ∂y → the squared error, and sums [C, 4] of ∂y."""
    colour = tl.arange(0, C)
    drawn = tl.dot(last_map, h, input_precision=PRODUCTS) + last_bias[:, None]
    wanted = inside[None, :] & (colour[:, None] < channels)
    target = tl.load(targets + colour[:, None] * points + point[None, :], mask=wanted, other=0.0)
    error = tl.where(wanted, drawn - target, 0.0)
    d = error * (2.0 * share)
    keep(errors, number, d, C)
    return tl.sum(error * error), gather(d, C, h.shape[1])
