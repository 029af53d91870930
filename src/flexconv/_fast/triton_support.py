"""Whether a tensor can be passed to the Triton kernels."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor


def triton_supports(x: torch.Tensor) -> bool:
    """Whether Triton is installed and `x` is a half-precision tensor on a GPU."""
    if not x.is_cuda or x.element_size() != 2 or isinstance(x, FakeTensor):
        return False
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def fits_32_bits(x: torch.Tensor) -> bool:
    """Whether the offset of every element fits into 32 bits, in which the kernels compute offsets."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) < 2**31
