"""Complex matrix products, one per frequency, with real and imaginary parts in separate slices.

    c[f] = a[f] · b[f]    or    c[f] = a[f] · conj(b[f])

Shapes: a [2, frequencies, groups, M, K], b [2, frequencies, groups, K, N] → c [2, frequencies, groups, M, N]. Index 0
of the first axis is the real part, index 1 the imaginary part. The gradients are products of the same form.

The operands may be padded to sizes that GPUs handle faster. If `a` and `b` differ in K, the surplus terms are ignored.
If more columns are requested than `b` has, they are filled with zeros.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .._registry import has_fast_version
from ._operators import Operators, differentiable_operator


@has_fast_version("ops.complex_product")
def _complex_product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool) -> torch.Tensor:
    c = empty_product(a, columns, contiguous)
    terms = min(a.shape[-1], b.shape[-2])
    a, b = a[..., :terms], b[..., :terms, :columns]
    c[..., : b.shape[-1]] = _real_block_product(a, b, conjugate)
    c[..., b.shape[-1] :] = 0.0
    return c


def empty_product(a: torch.Tensor, columns: int, contiguous: bool) -> torch.Tensor:
    """Allocate c for a given `a`.

    The axes of c are stored in the order in which those of `a` are stored. If `contiguous`, this applies to parts and
    frequencies only, and every [groups, M, N] block is contiguous.
    """
    shape = [*a.shape[:4], columns]
    order = sorted(range(2 if contiguous else 5), key=lambda axis: -a.stride(axis)) + ([2, 3, 4] if contiguous else [])
    inverse_order = sorted(range(5), key=order.__getitem__)
    return a.new_empty([shape[axis] for axis in order]).permute(inverse_order)


def _real_block_product(a: torch.Tensor, b: torch.Tensor, conjugate: bool) -> torch.Tensor:
    """Multiply as one batch of real products, [Re a, Im a] · [[Re b, Im b], [−Im b, Re b]]."""
    real, imaginary = b[0], -b[1] if conjugate else b[1]
    block = torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)
    c = torch.cat([a[0], a[1]], -1) @ block
    return torch.stack(c.chunk(2, -1))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    a, b, ctx.conjugate, *_ = inputs
    ctx.save_for_backward(a, b)


def _backward(operators: Operators, ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """For c = a b:  ∂a = ∂c b*ᵀ,  ∂bᵀ = ∂cᵀ a*.  For c = a b*:  ∂a = ∂c bᵀ,  ∂b = aᵀ ∂c*."""
    a, b = ctx.saved_tensors
    product = operators["complex_product"]
    terms, columns = b.shape[-2:]
    grad_a = product(grad, b.mT, not ctx.conjugate, a.shape[-1], False) if ctx.needs_input_grad[0] else None
    grad_b = None
    if ctx.needs_input_grad[1] and ctx.conjugate:
        grad_b = _resize_rows(product(a.mT, grad, True, columns, True), terms)
    elif ctx.needs_input_grad[1]:
        grad_b = _resize_rows(product(grad.mT, a, True, terms, True), columns).mT
    return grad_a, grad_b, None, None, None


def _resize_rows(c: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first `rows` rows of c, padded with zeros if it has fewer."""
    missing = rows - c.shape[-2]
    return c[..., :rows, :] if missing <= 0 else F.pad(c, (0, 0, 0, missing))


_operator = differentiable_operator(
    "complex_product",
    "(Tensor a, Tensor b, bool conjugate, int columns, bool contiguous) -> Tensor",
    _complex_product,
    _setup_context,
    _backward,
)


@has_fast_version("ops.differentiable_complex_product")
def complex_product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool) -> torch.Tensor:
    """The product, differentiable any number of times. See `empty_product` for `contiguous`."""
    return _operator(a, b, conjugate, columns, contiguous)
