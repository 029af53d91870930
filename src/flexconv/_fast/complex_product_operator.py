"""The complex product as an operator that compilers see through, so that they launch its Triton kernel themselves."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from torch.library import triton_op, wrap_triton

from ..ops._complex_product import _backward, _setup_context, empty_product
from ..ops._operators import custom_operators
from .complex_product_triton import _complex_product, make_launch
from .triton_support import fits_32_bits


@triton_op("flexconv::complex_product_triton", mutates_args={})
def complex_product_triton(
    a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool
) -> torch.Tensor:
    """See `ops._complex_product`. Sizes that are symbols, and large tensors, are left to the opaque operator."""
    c = empty_product(a, columns, contiguous)
    numbers = [n for tensor in (a, b, c) for n in (*tensor.shape, *tensor.stride())]
    if any(isinstance(n, torch.SymInt) for n in numbers) or not all(map(fits_32_bits, (a, b, c))):
        return custom_operators["complex_product"](a, b, conjugate, columns, contiguous)
    launch = make_launch(a.shape, a.stride(), b.shape, b.stride(), c.shape, c.stride(), conjugate)
    wrap_triton(_complex_product)[launch.grid](a, b, c, *launch.numbers, **launch.constants, **launch.options)
    return c


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return _backward({"complex_product": torch.ops.flexconv.complex_product_triton}, ctx, grad)


torch.library.register_autograd("flexconv::complex_product_triton", _gradient, setup_context=_setup_context)
