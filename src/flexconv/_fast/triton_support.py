"""Whether kernels written in Triton can be used."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor


def triton_takes(x: torch.Tensor) -> bool:
    """Whether there is Triton, and x is in half precision on a GPU."""
    if not x.is_cuda or x.element_size() != 2 or isinstance(x, FakeTensor):
        return False
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True
