"""The kernel of a layer from its output map and basis, as one node of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._context import no_autocast
from .._matmul import matmul
from . import fused_sampler as fused


def fused_kernel(
    weight: torch.Tensor, bias: torch.Tensor, basis: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor | None:
    """The kernel [weight bias] · basisᵀ of this shape, from an output map and a basis [*taps, rank].

    None if it is not supported.
    """
    if not fused.supports_device(weight) or not fused.supported((weight, bias, basis)):
        return None
    return _Kernel.apply(weight, bias, basis.flatten(0, -2), shape)


def _plain_kernel(weight: torch.Tensor, bias: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    return matmul(torch.cat([weight, bias.unsqueeze(1)], 1), basis.t())


class _Kernel(torch.autograd.Function):
    """Takes the place of ten operations whose gradients are views and copies."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, bias: torch.Tensor, basis: torch.Tensor, shape: Sequence[int]
    ) -> torch.Tensor:
        with torch.no_grad(), no_autocast(weight.device.type):
            mix = torch.cat([weight, bias.unsqueeze(1)], 1)
            kernel = matmul(mix, basis.t())
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(weight, bias, basis)
            ctx.mix = mix
        return kernel.view(shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, bias, basis = ctx.saved_tensors
        with no_autocast(weight.device.type):
            grad = grads[0].to(weight.dtype).reshape(len(weight), -1)
            if torch.is_grad_enabled():  # for a second derivative
                return *fused.plain_gradients(_plain_kernel, (weight, bias, basis), grad), None
            of_weight, of_bias, of_basis, _ = ctx.needs_input_grad
            return (
                matmul(grad, basis[:, :-1]) if of_weight else None,
                torch.mv(grad, basis[:, -1]) if of_bias else None,
                matmul(grad.t(), ctx.mix) if of_basis else None,
                None,
            )
