"""Affine maps at full float32 precision, whatever speed setting the rest of a program chose."""

from __future__ import annotations

import functools
import math

import torch
from torch import nn

FEW_TERMS = 3  # a product with so few is fused with what follows by compilers, and never stored


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ b, exact to float32 even where a GPU was allowed to round matrix products to TF32 (10-bit mantissas)."""
    if torch.compiler.is_compiling() and a.shape[-1] <= FEW_TERMS:
        terms = [a[..., k, None] * b[..., k, None, :] for k in range(a.shape[-1])]
        return functools.reduce(torch.add, terms)
    if a.is_cuda and a.dtype == torch.float32 and _tf32_allowed():
        return _SplitMatmul.apply(a, b)
    return a @ b


def affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x Wᵀ + b: x [n, in], weight [out, in], bias [out] → [n, out], in the precision of x."""
    return matmul(x, weight.to(x.dtype).t()) + bias.to(x.dtype)


class Affine(nn.Module):
    """A linear map with torch's default init, U(±1/√in) for weight and bias, and optional weight norm.

    With weight norm, W = g · v / ‖v‖ row by row: direction `weight_v` and length `weight_g` are learned apart.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        weight_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.weight_norm = in_features, out_features, weight_norm
        weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        if weight_norm:
            self.weight_v = weight
            self.weight_g = nn.Parameter(torch.empty(out_features, 1, device=device, dtype=dtype))
        else:
            self.weight = weight
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self, weight_range: float | None = None) -> None:
        """U(±weight_range) for the weight (default 1/√in), U(±1/√in) for the bias."""
        default = 1.0 / math.sqrt(self.in_features)
        weight = self.weight_v if self.weight_norm else self.weight
        nn.init.uniform_(weight, -(weight_range or default), weight_range or default)
        nn.init.uniform_(self.bias, -default, default)
        if self.weight_norm:
            with torch.no_grad():
                self.weight_g.copy_(weight.norm(dim=1, keepdim=True))

    def effective_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix in use [out, in]."""
        if not self.weight_norm:
            return self.weight.to(dtype)
        v = self.weight_v.to(dtype)
        return self.weight_g.to(dtype) * v / v.norm(dim=1, keepdim=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return affine(x, self.effective_weight(x.dtype), self.bias)

    def extra_repr(self) -> str:
        norm = ", weight_norm=True" if self.weight_norm else ""
        return f"{self.in_features}, {self.out_features}{norm}"


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
