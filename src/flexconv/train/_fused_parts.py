"""What the kernels for fitting share (`_fused_fit.py`, `_fused_siren.py`): sizes, sine and cosine, the output map.

Values at points are [hidden, points]: products with a layer's map need no transpose then, and a sum over points is
mostly one that each thread makes by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)
import triton.language as tl  # pyright: ignore[reportMissingImports]

PRECISION = "tf32"  # of products; there, three times as many for those of float32 gave no better pictures
WIDEST = 64  # hidden layer
CHANNELS = 16  # of the output: the smallest matrix that Triton multiplies


class Cut(NamedTuple):
    """How the work is cut up."""

    points: int  # that a program works on at a time, at most
    warps: int  # how many threads, in 32s, share them
    programs: int  # for all pictures together


# chosen among those of results/bench/tune_fit_h200.txt; `python -m benchmarks.tune_fit` tries others
FILTER_CUT = Cut(64, 2, 528)
SIREN_CUT = Cut(128, 4, 264)


def share_out(width: int, height: int, pictures: int, cut: Cut) -> tuple[int, int]:
    """How many points, all in one row, a program takes at a time, and how many programs share a picture."""
    points = min(cut.points, max(16, triton.next_power_of_2(width)))
    return points, max(1, min(height * triton.cdiv(width, points), cut.programs // pictures))


@triton.jit
def sine_and_cosine(x):
    """Both of them, for |x| up to some 10⁴, by polynomials around the nearest multiple of π/2; exact to float32.

    The library's have a way for any x at all, whose code and memory cost more than everything else here.
    """
    quarter = tl.floor(x * 0.6366197723675814 + 0.5)
    # π/2 in three parts, of which the first two have so few digits that their products are exact
    r = ((x - quarter * 1.5703125) - quarter * 4.837512969970703e-4) - quarter * 7.549789954891882e-8
    z = r * r
    s = r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    c = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    turn = quarter.to(tl.int32) & 3
    odd = (turn & 1) == 1
    sine, cosine = tl.where(odd, c, s), tl.where(odd, s, c)
    return tl.where(turn >= 2, -sine, sine), tl.where((turn == 1) | (turn == 2), -cosine, cosine)


@triton.jit
def find(block, width, ys, xs, B: tl.constexpr):
    """Where a block of points lies → its row, columns [points] and which of them exist, its y, and x [points]."""
    blocks = tl.cdiv(width, B)  # of a row
    row, column = block // blocks, block % blocks * B + tl.arange(0, B)
    inside = column < width
    return row, column, inside, tl.load(ys + row), tl.load(xs + column, mask=inside, other=0.0)


@triton.jit
def add(place, value):
    """Add to what is there, in a place that no other program uses. Atomic, so that nobody waits for what was there."""
    tl.atomic_add(place, value, sem="relaxed")


@triton.jit
def compare(
    h, last_map, last_bias, targets, point, inside, points, channels, share, sums,
    H: tl.constexpr, C: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """The output map and its gradients → the squared error of a block of points, and ∂h [hidden, points]."""
    channel, colour = tl.arange(0, H), tl.arange(0, C)
    drawn = tl.dot(last_map, h, input_precision=PRODUCTS) + last_bias[:, None]
    wanted = inside[None, :] & (colour[:, None] < channels)
    target = tl.load(targets + colour[:, None] * points + point[None, :], mask=wanted, other=0.0)
    error = tl.where(wanted, drawn - target, 0.0)
    d = error * (2.0 * share)
    add(sums + AT_OUT + colour[:, None] * H + channel[None, :], tl.dot(d, tl.trans(h), input_precision=PRODUCTS))
    add(sums + AT_OUT_BIAS + colour, tl.sum(d, 1))
    return tl.sum(error * error), tl.dot(tl.trans(last_map), d, input_precision=PRODUCTS)
