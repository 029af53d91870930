"""Matrix products at full float32 precision, whatever speed setting the rest of a program chose."""

from __future__ import annotations

import functools

import torch

FEW_TERMS = 3  # a product with so few is fused with what follows by compilers, and never stored


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ b, exact to float32 even where a GPU was allowed to round matrix products to TF32 (10-bit mantissas)."""
    if torch.compiler.is_compiling() and a.shape[-1] <= FEW_TERMS:
        terms = [a[..., k, None] * b[..., k, None, :] for k in range(a.shape[-1])]
        return functools.reduce(torch.add, terms)
    if a.is_cuda and a.dtype == torch.float32 and _tf32_allowed():
        return _SplitMatmul.apply(a, b)
    return a @ b


def _tf32_allowed() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


# What torch.compiler.assume_constant_result does, without importing the compiler (3 s) with this package. Compiled code
# is guarded on the setting.
_tf32_allowed._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


class _SplitMatmul(torch.autograd.Function):
    """a @ b as three TF32 products: each factor is a TF32 number plus a remainder 2⁻¹¹ as large.

    What is left out is remainder × remainder, 2⁻²² of the result. No global setting is touched.
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
    high = (x.view(torch.int32) & -8192).view(torch.float32)  # the 10 leading bits of the mantissa
    return high, x - high
