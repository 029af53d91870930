"""Matrix products with full float32 precision, also where torch is allowed to use TF32."""

from __future__ import annotations

import functools

import torch

FEW_TERMS = 3  # compilers fuse a sum of so few products with the operations around it


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b with float32 precision, even if torch may use TF32 (10-bit mantissas) on GPUs."""
    if torch.compiler.is_compiling() and a.shape[-1] <= FEW_TERMS:
        terms = [a[..., k, None] * b[..., k, None, :] for k in range(a.shape[-1])]
        return functools.reduce(torch.add, terms)
    if a.is_cuda and a.dtype == torch.float32 and _tf32_allowed():
        return _SplitMatmul.apply(a, b)
    return a @ b


def _tf32_allowed() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


# This is what torch.compiler.assume_constant_result does, without importing the compiler, which takes 3 seconds. Dynamo
# adds a guard on the setting itself.
_tf32_allowed._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


class _SplitMatmul(torch.autograd.Function):
    """a @ b as three TF32 products: each factor is the sum of a TF32 number and a remainder, 2⁻¹¹ as large.

    The product of the two remainders, 2⁻²² of the result, is omitted. No global setting is changed.
    """

    @staticmethod
    def vmap(info, in_dims, *factors: torch.Tensor):  # noqa: ANN001, ANN205
        batched = [
            factor.expand(info.batch_size, *factor.shape) if dim is None else factor.movedim(dim, 0)
            for factor, dim in zip(factors, in_dims, strict=True)
        ]
        return _SplitMatmul.apply(*batched), 0

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
        return a_high @ b_high + (a_high @ b_low + a_low @ b_high)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001, ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grads: torch.Tensor):  # noqa: ANN001, ANN205
        a, b = ctx.saved_tensors
        return matmul(grads[0], b.mT), matmul(a.mT, grads[0])


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    high = (x.view(torch.int32) & -8192).view(torch.float32)  # keeps the 10 leading bits of the mantissa
    return high, x - high
