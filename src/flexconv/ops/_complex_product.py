"""Complex matrix products at every frequency, of tensors that keep real and imaginary parts apart.

    c[f] = a[f] · b[f], or a[f] · conj b[f];     a [2, F, groups, M, K], b [2, F, groups, K, N] → c [2, F, groups, M, N]

Part 0 is real, 1 imaginary. Gradients are products of the same kind. Strides may be any, and c is stored in the order
in which a is, or plainly but for parts and frequencies. One of a and b may have more terms than the other, which meet
nothing, and c more columns than b, which are 0: GPUs like some numbers better. Half precision there uses a Triton
kernel, which reads every number once; everything else one real product of blocks twice as large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .._registry import has_fast_version
from ._steps import Steps, step


@has_fast_version("ops.complex_product")
def _product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, plain: bool) -> torch.Tensor:
    c = empty_product(a, columns, plain)
    terms = min(a.shape[-1], b.shape[-2])
    a, b = a[..., :terms], b[..., :terms, :columns]
    c[..., : b.shape[-1]] = _as_blocks(a, b, conjugate)
    c[..., b.shape[-1] :] = 0.0
    return c


def empty_product(a: torch.Tensor, columns: int, plain: bool) -> torch.Tensor:
    """An empty c: its axes are stored from outer to inner as those of a; if `plain`, only parts and frequencies are."""
    shape = [*a.shape[:4], columns]
    order = sorted(range(2 if plain else 5), key=lambda axis: -a.stride(axis)) + ([2, 3, 4] if plain else [])
    where = sorted(range(5), key=order.__getitem__)
    return a.new_empty([shape[axis] for axis in order]).permute(where)


def _as_blocks(a: torch.Tensor, b: torch.Tensor, conjugate: bool) -> torch.Tensor:
    """[re, im] · [[re, im], [−im, re]], as one batch of real products."""
    real, imaginary = b[0], -b[1] if conjugate else b[1]
    block = torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)
    c = torch.cat([a[0], a[1]], -1) @ block
    return torch.stack(c.chunk(2, -1))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    a, b, ctx.conjugate, *_ = inputs
    ctx.save_for_backward(a, b)


def _gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """For c = a b:  ∂a = ∂c b*ᵀ,  ∂bᵀ = ∂cᵀ a*.  For c = a b*:  ∂a = ∂c bᵀ,  ∂b = aᵀ ∂c*."""
    a, b = ctx.saved_tensors
    product = steps["complex_product"]
    terms, columns = b.shape[-2:]
    for_a = product(gradient, b.mT, not ctx.conjugate, a.shape[-1], False) if ctx.needs_input_grad[0] else None
    for_b = None
    if ctx.needs_input_grad[1] and ctx.conjugate:
        for_b = _with_rows(product(a.mT, gradient, True, columns, True), terms)
    elif ctx.needs_input_grad[1]:
        for_b = _with_rows(product(gradient.mT, a, True, terms, True), columns).mT
    return for_a, for_b, None, None, None


def _with_rows(c: torch.Tensor, rows: int) -> torch.Tensor:
    """The first rows of c, and zeros where it has fewer."""
    missing = rows - c.shape[-2]
    return c[..., :rows, :] if missing <= 0 else F.pad(c, (0, 0, 0, missing))


complex_product = step(
    "complex_product",
    "(Tensor a, Tensor b, bool conjugate, int columns, bool plain) -> Tensor",
    _product,
    _keep,
    _gradient,
)
