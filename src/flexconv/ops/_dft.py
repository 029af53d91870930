"""Convolution by Fourier transforms that are matrix products, y = F⁻¹( F(x) · conj F(w) ): what tensor cores do best.

A transform of a few thousand points is one product with a fixed real matrix, in half precision if wanted; only the
wanted outputs are computed, from the smallest circle on which they are right. Images and volumes too large for one
matrix are transformed one axis at a time, long sequences as rows and columns (Cooley and Tukey's split). Works in the
dtype of its input, or of autocast; float32 products use TF32 where torch is told to.
"""

from __future__ import annotations

import functools
import math
from operator import index
from typing import NamedTuple

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from .._context import autocast_enabled, exporting, no_autocast
from ._complex_product import complex_product
from ._dft_gains import gains_of
from ._dft_matrices import Points, Recipe, cached_matrices, constant_matrices, shapes
from ._dft_transform import analyse, synthesise
from ._direct import direct_conv
from ._factored import FactoredKernel, as_tensor
from ._fft import fft_conv
from ._geometry import Geometry, output_size, skip_unread_samples

LARGEST_WHOLE = 2**20  # entries of a matrix for all axes at once; beyond, an axis at a time is faster
LARGEST_OF_FEW = 2**22  # the same where launches cost more than arithmetic: …
FEW_ROWS = 8192  # … up to so many images × channels
LONGEST_LINE = 4096  # circle of one axis; beyond, sequences are split
LONGEST_SPLIT = 2**17  # beyond, the FFT takes over


class Plan(NamedTuple):
    """Which matrices transform the input, the kernel and, transposed, the output."""

    x: Recipe
    weight: Recipe
    y: Recipe

    @property
    def style(self) -> str:
        return self.x.style


def dft_conv(
    x: torch.Tensor,
    weight: torch.Tensor | FactoredKernel,
    bias: torch.Tensor | None,
    geometry: Geometry,
    *,
    style: str | None = None,
) -> torch.Tensor:
    """x [batch, in, *size], weight [out, in/groups, *taps] → [batch, out, *size'], differentiable to any order.

    `style` overrides how transforms are split: "whole", "axes" or "long" (sequences only). Very long sequences and
    function transforms (`torch.func`) get the FFT, exported graphs a plain convolution.
    """
    used, pads = skip_unread_samples(x, geometry.pads)
    if exporting() or 0 in used.shape:
        return direct_conv(x, as_tensor(weight), bias, geometry)
    outputs = tuple(
        output_size(*each)
        for each in zip(x.shape[2:], weight.shape[2:], geometry.stride, geometry.pads, geometry.dilation, strict=True)
    )
    device = x.device.type
    lowered = autocast_enabled(device) and x.dtype != torch.float64
    dtype = torch.get_autocast_dtype(device) if lowered else x.dtype
    plan = None
    if not _transformed():
        lefts = [left for left, _ in pads]
        # index() makes plain numbers of symbols: every size has matrices of its own, and so a graph of its own
        numbers = used.shape[2:], weight.shape[2:], outputs, lefts, geometry.stride, geometry.dilation
        size, taps, made, lefts, stride, dilation = (tuple(index(n) for n in each) for each in numbers)
        planned = make_plan if torch.compiler.is_compiling() else _remembered_plan
        few = bool(used.shape[0] * used.shape[1] <= FEW_ROWS)  # but one graph for many sizes of a batch
        plan = planned(size, taps, made, lefts, stride, dilation, style, few=few)
    if plan is None:
        return fft_conv(x, weight, bias, geometry)
    with no_autocast(device):
        # transforms in several products round several times: kernels, which are small, are spared that
        fine = dtype if _has_remainders(plan, weight) else torch.promote_types(dtype, torch.float32)
        y = _dft_conv(used.to(dtype), weight.to(fine), outputs, geometry.groups, plan)
        return y if bias is None else y + bias.to(dtype).reshape(-1, *(1,) * (x.ndim - 2))


def _dft_conv(
    x: torch.Tensor, weight: torch.Tensor | FactoredKernel, outputs: tuple[int, ...], groups: int, plan: Plan
) -> torch.Tensor:
    batch, (out, fan_in) = x.shape[0], weight.shape[:2]
    spectra = analyse(x, _matrices(plan.x, x, x.dtype), plan.style)
    gains = gains_of(weight, plan.weight, _matrices(plan.weight, x, weight.dtype), x.dtype)
    if fan_in == 1 and out == groups:
        y = _scaled(spectra, gains.transpose(2, 3))
    else:
        split = spectra.view(2, -1, batch, groups, fan_in).transpose(2, 3)
        blocks = gains.unflatten(2, (groups, out // groups)).mT
        y = complex_product(split, blocks, False, out // groups, False).transpose(2, 3).reshape(2, -1, batch, out)
    return synthesise(y, _matrices(plan.y, x, x.dtype), list(outputs), plan.style)


def _has_remainders(plan: Plan, weight: torch.Tensor | FactoredKernel) -> bool:
    """Whether the kernel's spectra are good enough from half precision: its matrices come with what rounding took.

    Not where every pair of channels of a long sequence has a kernel of its own: in bfloat16 errors pass 0.6 % there.
    """
    return plan.style == "whole" or (plan.style == "long" and isinstance(weight, FactoredKernel))


def _scaled(spectra: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
    """Depthwise: nothing to sum but real and imaginary parts."""
    real = spectra[0] * gains[0] - spectra[1] * gains[1]
    return torch.stack([real, spectra[0] * gains[1] + spectra[1] * gains[0]])


def _matrices(recipe: Recipe, like: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """The matrices of a recipe on the device of a tensor; only their shapes where that has no data."""
    if torch.compiler.is_compiling():
        points = tuple((each.number, each.start, each.step) for each in recipe.points)
        return constant_matrices(recipe.style, recipe.circles, points, recipe.kernel, dtype, like.device)
    if like.is_meta or isinstance(like, FakeTensor):
        return [like.new_empty(shape, dtype=dtype) for shape in shapes(recipe)]
    return cached_matrices(recipe, dtype, like.device)


def _transformed() -> bool:
    """Whether `torch.func` (vmap, grad, jvp) is at work."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None


def make_plan(
    size: tuple[int, ...],
    taps: tuple[int, ...],
    outputs: tuple[int, ...],
    lefts: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    style: str | None = None,
    *,
    few: bool = False,
) -> Plan | None:
    """How to transform these shapes, and whether images × channels are few; None where the FFT should."""
    points = (
        tuple(Points(n, 0, 1) for n in size),  # padding moves the taps, so that all kernels share the data's matrices
        tuple(Points(k, -left, d) for k, left, d in zip(taps, lefts, dilation, strict=True)),
        tuple(Points(m, 0, s) for m, s in zip(outputs, stride, strict=True)),
    )
    least = [shortest_circle(*each) for each in zip(*points, strict=True)]
    circles = tuple(_rounded(n, last=axis == len(least) - 1, alone=len(least) == 1) for axis, n in enumerate(least))
    style = style or _style(circles, size, few)
    if style == "fft":
        return None
    if style == "long":
        return _long_plan(*(each[0] for each in points))
    x, weight, y = (
        Recipe(style, circles, each, kernel=kernel) for each, kernel in zip(points, (False, True, False), strict=True)
    )
    return Plan(x, weight, y)


_remembered_plan = functools.lru_cache(maxsize=4096)(make_plan)


def _style(circles: tuple[int, ...], size: tuple[int, ...], few: bool) -> str:
    if len(circles) == 1:
        return "whole" if circles[0] <= LONGEST_LINE else "long" if circles[0] <= LONGEST_SPLIT else "fft"
    if max(circles) > LONGEST_LINE:
        return "fft"
    return "whole" if math.prod(circles) * math.prod(size) <= (LARGEST_OF_FEW if few else LARGEST_WHOLE) else "axes"


def shortest_circle(x: Points, weight: Points, y: Points) -> int:
    """The smallest circle on which no output meets a sample from another turn.

    Output n reads sample m through tap j where n·stride + j·dilation − left − m = 0. On a circle, multiples of N do as
    well: N must be larger than anything the left side can be, of either sign.
    """
    first, last = weight.start - x.start, weight.start - x.start + (weight.number - 1) * weight.step
    return max(last + (y.number - 1) * y.step + 1, x.number - first, 1)


def _rounded(least: int, *, last: bool, alone: bool) -> int:
    """A circle of at least so many, even on the last axis, so that matrices have a multiple of 8 rows."""
    if least == 1 and not last:
        return 1
    step = 2 if least <= 8 else 8 if alone else 4
    return -(-least // step) * step


def _long_plan(x: Points, weight: Points, y: Points) -> Plan:
    """The split with the fewest multiplications, in tiles as tensor cores do them."""
    least = shortest_circle(x, weight, y)

    def cost(inner: int) -> int:
        outer, rows = _outer(least, inner), -(-max(x.number, y.number) // inner)
        return _tiles(outer) * _tiles(rows) * 128 * math.ceil(inner / 128) + 2 * outer * inner**2

    inner = min(range(8, 8 * math.isqrt(least // 64) + 16, 8), key=cost)
    circles = _outer(least, inner), inner
    first, second, third = (each._replace(number=-(-each.number // inner) * inner) for each in (x, weight, y))
    return Plan(
        Recipe("long", circles, (first,), kernel=False),
        Recipe("long", circles, (second,), kernel=True),
        Recipe("long", circles, (third,), kernel=False),
    )


def _tiles(number: int) -> int:
    """Up to a multiple of 64, where that is not much more."""
    return -(-number // 64) * 64 if number > 64 else number


def _outer(least: int, inner: int) -> int:
    return 2 * max(1, -(-least // (2 * inner)))
