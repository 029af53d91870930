"""Trade time for memory: keep only the input of a layer for the backward pass, and compute the rest again there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.utils.checkpoint import checkpoint

from ..errors import UsageError


def recomputed(function: Callable[..., torch.Tensor], module: nn.Module, *tensors: Any) -> torch.Tensor:
    """Call a function. What it would keep for its gradient, besides its arguments, is computed again when needed.

    It depends on the parameters of `module`. If these have changed when it is computed again, this is an error, as it
    is in torch if a tensor that was kept has changed.

    Without gradients, there is nothing to keep. Transforms of `torch.func` keep everything: they cannot recompute.
    """
    if not torch.is_grad_enabled():
        return function(*tensors)
    if not torch.compiler.is_compiling():
        if peek_interpreter_stack() is not None:
            return function(*tensors)
        function = _with_same_parameters(function, module)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)


def _with_same_parameters(function: Callable[..., torch.Tensor], module: nn.Module) -> Callable[..., torch.Tensor]:
    """The function, which raises an error if it is called after the parameters of `module` have changed."""
    before = _versions(module)

    def checked(*tensors: Any) -> torch.Tensor:
        now = _versions(module)
        same = len(now) == len(before) and all(
            tensor is other and version == earlier
            for (tensor, version), (other, earlier) in zip(now, before, strict=True)
        )
        if not same:
            raise UsageError(
                f"the parameters of a {type(module).__name__} with recompute=True have changed between the forward and "
                f"the backward pass, which computes with them again: change them after the backward pass, or set "
                f"recompute to False"
            )
        return function(*tensors)

    return checked


def _versions(module: nn.Module) -> list[tuple[torch.Tensor, int]]:
    tensors = (*module.parameters(), *module.buffers())
    return [(tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
