"""The kernels of `fused_sampler_triton.py` and `fused_mask_triton.py` for many layers at once.

The second index of a program is the number of a layer. The parameters of a layer are one row of a packed tensor: those
of its features in the order of `fused_sampler.plain_features`, or those of its mask.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

from .fused_mask_triton import mask_backward, mask_finish, mask_forward
from .fused_sampler_triton import SIZES, features_backward, features_forward


@triton.jit
def _feature_tensors(
    packed, D: tl.constexpr, HIDDEN: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr, NUMBERS: tl.constexpr
):  # fmt: skip
    """Where the parameters of this program's layer begin."""
    filters: tl.constexpr = LAYERS + 1
    frequency = packed + tl.program_id(1) * NUMBERS
    phase = frequency + filters * HIDDEN * D
    mix_weight = phase + filters * HIDDEN
    mix_bias = mix_weight + LAYERS * HIDDEN * HIDDEN
    mu = mix_bias + LAYERS * HIDDEN
    gamma = mu + filters * HIDDEN * D
    theta = gamma + filters * HIDDEN * GAMMAS
    return frequency, phase, mix_weight, mix_bias, mu, gamma, theta


@triton.jit(do_not_specialize=SIZES)
def many_features_forward(
    lines, packed, kept, features, taps, n1, n2, o1, o2,
    D: tl.constexpr, HIDDEN: tl.constexpr, RANK: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill features [layers, taps, RANK] and kept [layers, LAYERS, taps, HIDDEN]."""
    number = tl.program_id(1)
    frequency, phase, mix_weight, mix_bias, mu, gamma, theta = _feature_tensors(
        packed, D, HIDDEN, LAYERS, GAMMAS, NUMBERS
    )
    kept += number * LAYERS * taps * HIDDEN
    features += number * taps * RANK
    features_forward(
        lines, frequency, phase, mix_weight, mix_bias, mu, gamma, theta, kept, features, taps, n1, n2, o1, o2,
        D, HIDDEN, RANK, LAYERS, GAMMAS, STEERABLE, True, TILE, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def many_features_backward(
    lines, packed, kept, grad, sums, taps, n1, n2, o1, o2,
    D: tl.constexpr, HIDDEN: tl.constexpr, RANK: tl.constexpr, LAYERS: tl.constexpr, GAMMAS: tl.constexpr,
    STEERABLE: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill sums [layers, programs, NUMBERS] with the gradients of the packed parameters."""
    number = tl.program_id(1)
    frequency, phase, mix_weight, mix_bias, mu, gamma, theta = _feature_tensors(
        packed, D, HIDDEN, LAYERS, GAMMAS, NUMBERS
    )
    kept += number * LAYERS * taps * HIDDEN
    grad += number * taps * RANK
    sums += number * tl.num_programs(0) * NUMBERS
    features_backward(
        lines, frequency, phase, mix_weight, mix_bias, mu, gamma, theta, kept, grad, sums, taps, n1, n2, o1, o2,
        D, HIDDEN, RANK, LAYERS, GAMMAS, STEERABLE, NUMBERS, TILE, BLOCK,
    )  # fmt: skip


@triton.jit
def _mask_tensors(packed, number, D: tl.constexpr, SCALED: tl.constexpr, NUMBERS: tl.constexpr):
    """Where the parameters of a layer's mask begin: three tensors and the angle. Not all of them may exist."""
    first = packed + number * NUMBERS
    second = first + (2 * D if SCALED else D)
    return first, second, second + D, first + NUMBERS - 1


@triton.jit(do_not_specialize=(*SIZES, "rank"))
def many_masks_forward(
    features, lines, packed, limits, basis, taps, rank, n1, n2, o1, o2, reach, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    NUMBERS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill basis [layers, taps, rank] with features times the masks."""
    number = tl.program_id(1)
    first, second, third, angle = _mask_tensors(packed, number, D, SCALED, NUMBERS)
    features += number * taps * rank
    basis += number * taps * rank
    mask_forward(
        features, lines, first, second, third, angle, limits, basis, taps, rank, n1, n2, o1, o2, reach, rate,
        D, SCALED, AUTHORS, CROPPED, ROTATED, TILE, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=(*SIZES, "rank"))
def many_masks_backward(
    grad, features, lines, packed, limits, d_features, sums, taps, rank, n1, n2, o1, o2, reach, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, CROPPED: tl.constexpr, ROTATED: tl.constexpr,
    COLUMNS: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill d_features [layers, taps, rank] and sums [layers, programs, COLUMNS]."""
    number = tl.program_id(1)
    first, second, third, angle = _mask_tensors(packed, number, D, SCALED, NUMBERS)
    grad += number * taps * rank
    features += number * taps * rank
    d_features += number * taps * rank
    sums += number * tl.num_programs(0) * COLUMNS
    mask_backward(
        grad, features, lines, first, second, third, angle, limits, d_features, sums, sums,
        taps, rank, n1, n2, o1, o2, reach, rate, 1.0,
        D, SCALED, AUTHORS, CROPPED, ROTATED, True, True, False, COLUMNS, 1, TILE, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=("programs",))
def many_masks_finish(
    sums, packed, damping, limits, out, programs, rate,
    D: tl.constexpr, SCALED: tl.constexpr, AUTHORS: tl.constexpr, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Fill out [layers, COLUMNS] with the gradients of the masks. Each layer has its own damping."""
    number = tl.program_id(0)
    first, second, third, _ = _mask_tensors(packed, number, D, SCALED, NUMBERS)
    sums += number * programs * COLUMNS
    out += number * COLUMNS
    mask_finish(
        sums, first, second, third, limits, out, programs, rate, tl.load(damping + number),
        D, SCALED, AUTHORS, COLUMNS, PROGRAMS,
    )  # fmt: skip
