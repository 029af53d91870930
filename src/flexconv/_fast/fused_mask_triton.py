"""Triton kernels that multiply sampled features by a mask, and compute the gradients of its center and width.

A mask has three small tensors: "guarded" and "authors" masks the mean, σ and nothing; "scaled" ones the start [2, D],
shift and growth. `limits` [D, 4] has constants of each axis: the smallest σ; half the smallest width; the largest
center of that width; and 1 if the axis is causal.

Arithmetic and sums are as in `fused_sampler_triton.py`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

from .fused_sampler_triton import SIZES, axis_coordinates

COLUMNS = 8  # sums of the backward pass of a mask: 3 of the mean, 3 of σ, 1 of the angle
MASK_TAPS = 64  # of a block of the kernels for masks
TAPS_OF_ONE_PROGRAM = 256  # up to here, one program adds all taps of a mask, which saves a launch


@triton.jit
def _mean_sigma(first, second, third, d, rate, D: tl.constexpr, SCALED: tl.constexpr):
    """Mean and σ along axis d, before clamping."""
    if SCALED:
        start = tl.load(first + D + d)
        mean = tl.load(first + d) + rate * start * tl.load(second + d)
        sigma = start * tl.exp(rate * tl.load(third + d))
    else:
        mean, sigma = tl.load(first + d), tl.load(second + d)
    return mean, sigma


@triton.jit
def _clamped(mean, sigma, floor, AUTHORS: tl.constexpr):
    """Mean and σ as the mask uses them. NaN stays NaN."""
    if not AUTHORS:
        mean = tl.where(mean < -1.0, -1.0, tl.where(mean > 1.0, 1.0, mean))
        sigma = tl.abs(sigma)
        sigma = tl.where(sigma < floor, floor, sigma)
    return mean, sigma


@triton.jit
def _kept_taps(x, mean, width, limits, d, reach, AUTHORS: tl.constexpr, CROPPED: tl.constexpr):
    """Whether taps at x are kept along axis d. `width` is σ along this axis, `reach` where the threshold is, in σ."""
    if CROPPED:
        reached = reach * tl.abs(width)
        if AUTHORS:
            below, above = mean - reached, mean + reached
            causal = tl.load(limits + d * 4 + 3) > 0.0
            farther = tl.where(tl.abs(above) > tl.abs(below), tl.abs(above), tl.abs(below))
            root = tl.where(causal, below, -farther)
            low = tl.where(tl.abs(root) < 1.0, root, -float("inf"))
            high = tl.where(causal, float("inf"), -low)
        else:
            half, inner = tl.load(limits + d * 4 + 1), tl.load(limits + d * 4 + 2)
            center = tl.where(mean < -inner, -inner, tl.where(mean > inner, inner, mean))
            low, high = mean - reached, mean + reached
            low = tl.where(low > center - half, center - half, low)  # NaN stays NaN and keeps everything
            high = tl.where(high < center + half, center + half, high)
        keep = ~((x <= low) | (x >= high))
    else:
        keep = x == x  # everything
    return keep


@triton.jit
def _mask_values(
    tap, inside, lines, n1, n2, o1, o2, first, second, third, angle, limits, reach, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The mask at taps [taps]: 0 where it is cropped."""
    if ROTATED:
        mean_x, sigma_x = _mean_sigma(first, second, third, 0, rate, D, SCALED)
        mean_y, sigma_y = _mean_sigma(first, second, third, 1, rate, D, SCALED)
        mean_x, sigma_x = _clamped(mean_x, sigma_x, tl.load(limits), AUTHORS)
        mean_y, sigma_y = _clamped(mean_y, sigma_y, tl.load(limits + 4), AUTHORS)
        phi = tl.load(angle)
        cos, sin = tl.cos(phi), tl.sin(phi)
        x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 1)
        y = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 2)
        keep = _kept_taps(x, mean_x, _hypot(cos * sigma_x, sin * sigma_y), limits, 0, reach, AUTHORS, CROPPED)
        keep &= _kept_taps(y, mean_y, _hypot(cos * sigma_y, sin * sigma_x), limits, 1, reach, AUTHORS, CROPPED)
        x, y = x - mean_x, y - mean_y
        u, v = (cos * x + sin * y) / sigma_x, (cos * y - sin * x) / sigma_y
        total = u * u + v * v
    else:
        total = tl.zeros((BLOCK,), tl.float32)
        keep = inside
        for d in tl.static_range(D):
            mean, sigma = _mean_sigma(first, second, third, d, rate, D, SCALED)
            mean, sigma = _clamped(mean, sigma, tl.load(limits + d * 4), AUTHORS)
            x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
            keep &= _kept_taps(x, mean, sigma, limits, d, reach, AUTHORS, CROPPED)
            z = (x - mean) / sigma
            total += z * z
    return tl.exp(-0.5 * total) * (keep & inside).to(tl.float32)  # NaN stays NaN, as in the plain version


@triton.jit
def _hypot(a, b):
    a, b = tl.abs(a), tl.abs(b)
    larger, smaller = tl.where(a > b, a, b), tl.where(a > b, b, a)
    ratio = smaller / larger  # the square of a huge σ would overflow
    return larger * tl.sqrt(1.0 + ratio * ratio)


@triton.jit(do_not_specialize=(*SIZES, "rank"))
def mask_forward(
    features, lines, first, second, third, angle, limits, basis, taps, rank, n1, n2, o1, o2, reach, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill basis [taps, rank] with features times the mask."""
    tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tap < taps
    mask = _mask_values(
        tap, inside, lines, n1, n2, o1, o2, first, second, third, angle, limits, reach, rate,
        D, SCALED, AUTHORS, CROPPED, ROTATED, BLOCK,
    )  # fmt: skip
    column = tl.arange(0, TILE)[None, :]
    place = tap[:, None] * rank + column
    stored = inside[:, None] & (column < rank)
    tl.store(basis + place, tl.load(features + place, mask=stored, other=0.0) * mask[:, None], mask=stored)


@triton.jit(do_not_specialize=(*SIZES, "rank"))
def mask_backward(
    grad, features, lines, first, second, third, angle, limits, d_features, sums, out,
    taps, rank, n1, n2, o1, o2, reach, rate, damping,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    OF_FEATURES: tl.constexpr, OF_MASK: tl.constexpr, FINISH: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill d_features [taps, rank] and sums [programs, COLUMNS]. A single program finishes the latter itself."""
    column = tl.arange(0, TILE)[None, :]
    kind = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for block in range(BLOCKS):
        tap = (tl.program_id(0) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = tap < taps
        place = tap[:, None] * rank + column
        stored = inside[:, None] & (column < rank)
        g = tl.load(grad + place, mask=stored, other=0.0)
        mask = _mask_values(
            tap, inside, lines, n1, n2, o1, o2, first, second, third, angle, limits, reach, rate,
            D, SCALED, AUTHORS, CROPPED, ROTATED, BLOCK,
        )  # fmt: skip
        if OF_FEATURES:
            tl.store(d_features + place, g * mask[:, None], mask=stored)
        if OF_MASK:
            exponent = mask * tl.sum(g * tl.load(features + place, mask=stored, other=0.0), 1)  # minus its gradient
            if ROTATED:
                mean_x, sigma_x = _mean_sigma(first, second, third, 0, rate, D, SCALED)
                mean_y, sigma_y = _mean_sigma(first, second, third, 1, rate, D, SCALED)
                mean_x, sigma_x = _clamped(mean_x, sigma_x, tl.load(limits), AUTHORS)
                mean_y, sigma_y = _clamped(mean_y, sigma_y, tl.load(limits + 4), AUTHORS)
                phi = tl.load(angle)
                cos, sin = tl.cos(phi), tl.sin(phi)
                x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 1) - mean_x
                y = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 2) - mean_y
                u, v = (cos * x + sin * y) / sigma_x, (cos * y - sin * x) / sigma_y
                total += tl.where(kind == 0, (exponent * (u * cos / sigma_x - v * sin / sigma_y))[:, None], 0.0)
                total += tl.where(kind == 1, (exponent * (u * sin / sigma_x + v * cos / sigma_y))[:, None], 0.0)
                total += tl.where(kind == 3, (exponent * u * u / sigma_x)[:, None], 0.0)
                total += tl.where(kind == 4, (exponent * v * v / sigma_y)[:, None], 0.0)
                turned = exponent * u * v * (sigma_x / sigma_y - sigma_y / sigma_x)
                total += tl.where(kind == 6, turned[:, None], 0.0)
            else:
                for d in tl.static_range(D):
                    mean, sigma = _mean_sigma(first, second, third, d, rate, D, SCALED)
                    mean, sigma = _clamped(mean, sigma, tl.load(limits + d * 4), AUTHORS)
                    x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
                    z = (x - mean) / sigma
                    total += tl.where(kind == d, (exponent * z / sigma)[:, None], 0.0)
                    total += tl.where(kind == 3 + d, (exponent * z * z / sigma)[:, None], 0.0)
    if OF_MASK:
        if FINISH:
            _finish(tl.sum(total, 0), first, second, third, limits, out, rate, damping, D, SCALED, AUTHORS, COLUMNS)
        else:
            tl.store(sums + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.sum(total, 0))


@triton.jit(do_not_specialize=("programs",))
def mask_finish(
    sums, first, second, third, limits, out, programs, rate, damping,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Add the sums of all programs and finish them. PROGRAMS is at least their number."""
    program, kind = tl.arange(0, PROGRAMS)[:, None], tl.arange(0, COLUMNS)[None, :]
    total = tl.sum(tl.load(sums + program * COLUMNS + kind, mask=program < programs, other=0.0), 0)
    _finish(total, first, second, third, limits, out, rate, damping, D, SCALED, AUTHORS, COLUMNS)


@triton.jit
def _finish(
    total, first, second, third, limits, out, rate, damping,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of the parameters from those of the clamped mean and σ → out: 3 numbers, 3 numbers, the angle.

    Beyond the limits only gradients that lead back are kept, as in `nn._guard`.
    """
    kind = tl.arange(0, COLUMNS)
    of_sigma = (kind >= 3) & (kind < 6)
    d = tl.where(of_sigma, kind - 3, kind)
    live = d < D
    d = tl.where(live, d, 0)
    mean, sigma = _mean_sigma(first, second, third, d, rate, D, SCALED)
    if not AUTHORS:
        floor = tl.load(limits + d * 4)
        sign = tl.where(sigma < 0.0, -1.0, 1.0)
        inner_mean, inner_sigma = _clamped(mean, sigma, floor, AUTHORS)
        beyond = tl.where(of_sigma, sign * sigma - inner_sigma, mean - inner_mean)
        outward = live & (((beyond > 0.0) & (total < 0.0)) | ((beyond < 0.0) & (total > 0.0)))
        total = tl.where(outward, 0.0, total)
        total = tl.where(of_sigma, sign * total, total)
    if SCALED:
        start = tl.load(first + D + d)
        total *= tl.where(live, damping * rate * tl.where(of_sigma, sigma, start), 1.0)
    tl.store(out + kind, total)
