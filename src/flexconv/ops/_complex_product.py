"""Complex matrix products at every frequency, of tensors that keep real and imaginary parts apart.

    c[f] = a[f] · b[f], or a[f] · conj b[f];     a [2, F, groups, M, K], b [2, F, groups, K, N] → c [2, F, groups, M, N]

Part 0 is real, 1 imaginary. Gradients are products of the same kind. Strides may be any, and c is stored in the order
in which a is, or plainly. Half precision on a GPU uses a Triton kernel, which reads every number once; everything else
one real product of blocks twice as large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ._steps import Steps, step


def _product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, plain: bool) -> torch.Tensor:
    c = _room(a, b.shape[-1], plain)
    if a.is_cuda and a.element_size() == 2 and not isinstance(a, FakeTensor) and _triton_works():
        from ._complex_product_triton import launch

        launch(a, b, c, conjugate)
    else:
        c.copy_(_as_blocks(a, b, conjugate))
    return c


def _room(a: torch.Tensor, columns: int, plain: bool) -> torch.Tensor:
    """An empty c; unless `plain`, its axes are stored from outer to inner as those of a."""
    shape = [*a.shape[:4], columns]
    order = list(range(5)) if plain else sorted(range(5), key=lambda axis: -a.stride(axis))
    where = sorted(range(5), key=order.__getitem__)
    return a.new_empty([shape[axis] for axis in order]).permute(where)


def _as_blocks(a: torch.Tensor, b: torch.Tensor, conjugate: bool) -> torch.Tensor:
    """[re, im] · [[re, im], [−im, re]], as one batch of real products."""
    real, imaginary = b[0], -b[1] if conjugate else b[1]
    block = torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)
    c = torch.cat([a[0], a[1]], -1) @ block
    return torch.stack(c.chunk(2, -1))


def _triton_works() -> bool:
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    a, b, ctx.conjugate, _ = inputs
    ctx.save_for_backward(a, b)


def _gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """For c = a b:  ∂a = ∂c b*ᵀ,  ∂bᵀ = ∂cᵀ a*.  For c = a b*:  ∂a = ∂c bᵀ,  ∂b = aᵀ ∂c*."""
    a, b = ctx.saved_tensors
    product = steps["complex_product"]
    for_a = product(gradient, b.mT, not ctx.conjugate, False) if ctx.needs_input_grad[0] else None
    for_b = None
    if ctx.needs_input_grad[1]:
        for_b = product(a.mT, gradient, True, True) if ctx.conjugate else product(gradient.mT, a, True, True).mT
    return for_a, for_b, None, None


complex_product = step(
    "complex_product", "(Tensor a, Tensor b, bool conjugate, bool plain) -> Tensor", _product, _keep, _gradient
)
