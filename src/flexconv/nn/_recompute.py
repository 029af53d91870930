"""Trade time for memory: keep only the input of a layer for the backward pass, and compute the rest again there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., torch.Tensor], *tensors: Any) -> torch.Tensor:
    """Call a function. What it would keep for its gradient, besides its arguments, is computed again when needed.

    Without gradients, there is nothing to keep. Transforms of `torch.func` keep everything: they cannot recompute.
    """
    if not torch.is_grad_enabled() or (not torch.compiler.is_compiling() and peek_interpreter_stack() is not None):
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)
