"""Triton kernels that sample the features of a multiplicative filter network.

`fused_sampler.py` has the equations. Taps of a window are numbered in row-major order. All arithmetic is in float32,
without TF32, and without fused multiply-adds outside of matrix products, so that a tap is kept by the same comparison
as in the plain version. Sums over taps have a fixed order: every program writes its own, and they are added afterwards.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

MANY_TAPS = 4096  # from here on, tiles of features have more taps

# the window changes while a size is learned, which must not cause another compilation
SIZES = ("taps", "n1", "n2", "o1", "o2")


def padded_width(hidden: int) -> int:
    """The width of a tile: a power of two, and at least 16 for matrix products."""
    return max(16, triton.next_power_of_2(hidden))


def taps_per_program(hidden: int, taps: int) -> int:
    """The number of taps in a tile of features: as few as matrix products allow, unless there are very many taps.

    A kernel of 33 × 33 taps then has a program for every second processor of a large GPU. Every program writes sums of
    all gradients, which would need much memory for very many taps.
    """
    few = hidden > 64 or taps <= MANY_TAPS
    return 16 if few else 32 if hidden > 32 else 64


# --- coordinates ------------------------------------------------------------------------------------------------------


@triton.jit
def axis_coordinates(lines, tap, inside, n1, n2, o1, o2, AXIS: tl.constexpr):
    """Coordinates of taps along one of three axes. The last axis is number 2; an image has the axes 1 and 2."""
    if AXIS == 0:
        x = tl.load(lines + tap // (n1 * n2), mask=inside, other=0.0)
    elif AXIS == 1:
        x = tl.load(lines + o1 + tap // n2 % n1, mask=inside, other=0.0)
    else:
        x = tl.load(lines + o2 + tap % n2, mask=inside, other=0.0)
    return x


# --- features ---------------------------------------------------------------------------------------------------------


@triton.jit
def _angles(
    f, tap, inside, lines, n1, n2, o1, o2, frequency, phase,
    D: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """W x + b of filter f → [taps, TILE]."""
    channel = tl.arange(0, TILE)
    live = channel < HIDDEN
    row = f * HIDDEN + channel
    angle = tl.load(phase + row, mask=live, other=0.0)[None, :]
    for d in tl.static_range(D):
        x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
        angle = angle + x[:, None] * tl.load(frequency + row * D + d, mask=live, other=0.0)[None, :]
    return angle


@triton.jit
def _offset(
    f, tap, inside, lines, n1, n2, o1, o2, mu, theta,
    d: tl.constexpr, D: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, STEERABLE: tl.constexpr,
):  # fmt: skip
    """x − μ along axis d, turned if the envelope is → [taps, TILE]."""
    channel = tl.arange(0, TILE)
    live = channel < HIDDEN
    row = f * HIDDEN + channel
    x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
    offset = x[:, None] - tl.load(mu + row * D + d, mask=live, other=0.0)[None, :]
    if STEERABLE:
        other: tl.constexpr = 1 - d
        y = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 1 + other)
        across = y[:, None] - tl.load(mu + row * D + other, mask=live, other=0.0)[None, :]
        turn = 6.283185307179586 * tl.load(theta + row, mask=live, other=0.0)
        if d == 0:
            offset = tl.cos(turn)[None, :] * offset + tl.sin(turn)[None, :] * across
        else:
            offset = tl.cos(turn)[None, :] * offset - tl.sin(turn)[None, :] * across
    return offset


@triton.jit
def _width(
    f, gamma, d: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, GAMMAS: tl.constexpr
):  # fmt: skip
    """γ of filter f along axis d → [1, TILE]."""
    channel = tl.arange(0, TILE)
    place = gamma + (f * HIDDEN + channel) * GAMMAS
    if GAMMAS > 1:
        place += d
    return tl.load(place, mask=channel < HIDDEN, other=0.0)[None, :]


@triton.jit
def _envelope(
    f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta,
    D: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr,
):  # fmt: skip
    """exp(−½ Σ_d (γ_d (x_d − μ_d))²) → [taps, TILE]; 1 without envelopes (GAMMAS is 0)."""
    total = tl.zeros((BLOCK, TILE), tl.float32)
    if GAMMAS > 0:
        for d in tl.static_range(D):
            offset = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, d, D, HIDDEN, TILE, STEERABLE)
            scaled = _width(f, gamma, d, HIDDEN, TILE, GAMMAS) * offset
            total += scaled * scaled
    return tl.exp(-0.5 * total)


@triton.jit
def _map_hidden(h, layer, mix_weight, mix_bias, HIDDEN: tl.constexpr, TILE: tl.constexpr):
    """A h + a of a hidden map: h [taps, TILE] → [taps, TILE]."""
    column, row = tl.arange(0, TILE)[None, :], tl.arange(0, TILE)[:, None]
    live = (column < HIDDEN) & (row < HIDDEN)
    transposed = tl.load(mix_weight + layer * (HIDDEN * HIDDEN) + column * HIDDEN + row, mask=live, other=0.0)
    bias = tl.load(mix_bias + layer * HIDDEN + column, mask=column < HIDDEN, other=0.0)
    return tl.dot(h, transposed, input_precision="ieee") + bias


@triton.jit(do_not_specialize=SIZES)
def features_forward(
    lines, frequency, phase, mix_weight, mix_bias, mu, gamma, theta, kept, features, taps, n1, n2, o1, o2,
    D: tl.constexpr, HIDDEN: tl.constexpr, RANK: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill features [taps, RANK]: hidden values, then 1. Keep the inputs of all hidden maps."""
    tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tap < taps
    column = tl.arange(0, TILE)[None, :]
    place = tap[:, None] * HIDDEN + column
    stored = inside[:, None] & (column < HIDDEN)
    angle = _angles(0, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
    e = _envelope(0, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE)
    h = e * tl.sin(angle)
    for layer in range(LAYERS):
        if KEEP:
            tl.store(kept + layer * taps * HIDDEN + place, h, mask=stored)
        u = _map_hidden(h, layer, mix_weight, mix_bias, HIDDEN, TILE)
        f = layer + 1
        angle = _angles(f, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
        e = _envelope(
            f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE
        )
        h = e * tl.sin(angle) * u
    tl.store(features + tap[:, None] * RANK + column, h, mask=stored)
    tl.store(features + tap * RANK + HIDDEN, tl.full((BLOCK,), 1.0, tl.float32), mask=inside)


@triton.jit
def _filter_gradients(
    f, dg, tap, inside, lines, n1, n2, o1, o2, frequency, phase, mu, gamma, theta,
    d_frequency, d_phase, d_mu, d_gamma, d_theta,
    D: tl.constexpr, HIDDEN: tl.constexpr, GAMMAS: tl.constexpr, STEERABLE: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the sums of one program of the gradients of filter f, from those of its values, dg [taps, TILE]."""
    channel = tl.arange(0, TILE)
    live = channel < HIDDEN
    row = f * HIDDEN + channel
    angle = _angles(f, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
    e = _envelope(f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE)
    turned = dg * e * tl.cos(angle)  # gradient of the angle
    for d in tl.static_range(D):
        x = axis_coordinates(lines, tap, inside, n1, n2, o1, o2, 3 - D + d)
        tl.store(d_frequency + row * D + d, tl.sum(turned * x[:, None], 0), mask=live)
    tl.store(d_phase + row, tl.sum(turned, 0), mask=live)
    if GAMMAS > 0:
        shrunk = dg * e * tl.sin(angle)  # gradient of the exponent
        d_width = tl.zeros((TILE,), tl.float32)
        for d in tl.static_range(D):
            offset = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, d, D, HIDDEN, TILE, STEERABLE)
            width = _width(f, gamma, d, HIDDEN, TILE, GAMMAS)
            part = -tl.sum(shrunk * width * offset * offset, 0)
            if GAMMAS > 1:
                tl.store(d_gamma + row * GAMMAS + d, part, mask=live)
            else:
                d_width += part
            if not STEERABLE:
                tl.store(d_mu + row * D + d, tl.sum(shrunk * width * width * offset, 0), mask=live)
        if GAMMAS == 1:
            tl.store(d_gamma + row, d_width, mask=live)
        if STEERABLE:
            turn = 6.283185307179586 * tl.load(theta + row, mask=live, other=0.0)
            cos, sin = tl.cos(turn), tl.sin(turn)
            u = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, 0, D, HIDDEN, TILE, STEERABLE)
            v = _offset(f, tap, inside, lines, n1, n2, o1, o2, mu, theta, 1, D, HIDDEN, TILE, STEERABLE)
            width_u, width_v = _width(f, gamma, 0, HIDDEN, TILE, GAMMAS), _width(f, gamma, 1, HIDDEN, TILE, GAMMAS)
            du, dv = shrunk * width_u * width_u * u, shrunk * width_v * width_v * v  # minus the gradients of u and v
            sum_u, sum_v = tl.sum(du, 0), tl.sum(dv, 0)
            tl.store(d_mu + row * D, cos * sum_u - sin * sum_v, mask=live)
            tl.store(d_mu + row * D + 1, sin * sum_u + cos * sum_v, mask=live)
            tl.store(d_theta + row, 6.283185307179586 * tl.sum(dv * u - du * v, 0), mask=live)


@triton.jit(do_not_specialize=SIZES)
def features_backward(
    lines, frequency, phase, mix_weight, mix_bias, mu, gamma, theta, kept, grad, sums, taps, n1, n2, o1, o2,
    D: tl.constexpr, HIDDEN: tl.constexpr, RANK: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill sums [programs, NUMBERS] with the gradients of all parameters, in the order of the arguments."""
    tap = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tap < taps
    channel = tl.arange(0, TILE)
    column, row = channel[None, :], channel[:, None]
    stored = inside[:, None] & (column < HIDDEN)
    square = (column < HIDDEN) & (row < HIDDEN)
    filters: tl.constexpr = LAYERS + 1
    d_frequency = sums + tl.program_id(0) * NUMBERS
    d_phase = d_frequency + filters * HIDDEN * D
    d_mix_weight = d_phase + filters * HIDDEN
    d_mix_bias = d_mix_weight + LAYERS * HIDDEN * HIDDEN
    d_mu = d_mix_bias + LAYERS * HIDDEN
    d_gamma = d_mu + filters * HIDDEN * D
    d_theta = d_gamma + filters * HIDDEN * GAMMAS
    dh = tl.load(grad + tap[:, None] * RANK + column, mask=stored, other=0.0)
    for step in range(LAYERS):
        layer = LAYERS - 1 - step
        f = layer + 1
        h = tl.load(kept + layer * taps * HIDDEN + tap[:, None] * HIDDEN + column, mask=stored, other=0.0)
        u = _map_hidden(h, layer, mix_weight, mix_bias, HIDDEN, TILE)
        _filter_gradients(
            f, dh * u, tap, inside, lines, n1, n2, o1, o2, frequency, phase, mu, gamma, theta,
            d_frequency, d_phase, d_mu, d_gamma, d_theta, D, HIDDEN, GAMMAS, STEERABLE, TILE, BLOCK,
        )  # fmt: skip
        angle = _angles(f, tap, inside, lines, n1, n2, o1, o2, frequency, phase, D, HIDDEN, TILE)
        e = _envelope(
            f, tap, inside, lines, n1, n2, o1, o2, mu, gamma, theta, D, HIDDEN, TILE, BLOCK, GAMMAS, STEERABLE
        )
        du = dh * e * tl.sin(angle)
        tl.store(d_mix_bias + layer * HIDDEN + channel, tl.sum(du, 0), mask=channel < HIDDEN)
        d_weight = tl.dot(tl.trans(du), h, input_precision="ieee")
        place = layer * (HIDDEN * HIDDEN) + row * HIDDEN + column
        tl.store(d_mix_weight + place, d_weight, mask=square)
        dh = tl.dot(du, tl.load(mix_weight + place, mask=square, other=0.0), input_precision="ieee")
    _filter_gradients(
        0, dh, tap, inside, lines, n1, n2, o1, o2, frequency, phase, mu, gamma, theta,
        d_frequency, d_phase, d_mu, d_gamma, d_theta, D, HIDDEN, GAMMAS, STEERABLE, TILE, BLOCK,
    )  # fmt: skip
