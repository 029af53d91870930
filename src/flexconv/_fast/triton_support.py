"""Whether a tensor can be passed to the Triton kernels."""

from __future__ import annotations

import importlib.util

import torch
from torch._subclasses.fake_tensor import FakeTensor


def triton_supports(x: torch.Tensor) -> bool:
    """Whether Triton is installed and `x` is a half-precision tensor on a GPU."""
    return x.is_cuda and x.element_size() == 2 and not isinstance(x, FakeTensor) and has_triton()


HAS_TRITON = importlib.util.find_spec("triton") is not None


def has_triton() -> bool:
    """Whether Triton is installed."""
    return HAS_TRITON


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured on this device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def fits_32_bits(x: torch.Tensor) -> bool:
    """Whether the offset of every element fits into 32 bits, in which the kernels compute offsets."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) < 2**31
