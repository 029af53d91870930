"""Residual sums in float16.

The sum of a network such as SepFlexNet grows with every block, because no norm comes after the sum: in trained networks
it reaches 270,000, and its variance 10⁸. So the sum, and the norms that read it, stay in float32 when the network
computes in float16. Convolutions return float32 under float16 autocast; after `.half()` the network uses that, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Self

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from .._context import autocast_enabled
from ..nn import Convert, converted_dtype

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)  # batch norms and instance norms are `_NormBase`


class NormsInFloat32(nn.Module):
    """A module whose norms stay in float32 when it is converted to float16. bfloat16 has the range of float32."""

    def _apply(self, fn: Convert, recurse: bool = True) -> Self:
        if recurse and converted_dtype(fn, torch.float32) == torch.float16:
            fn = _except_for(norms_in_float32(self), fn)
        return super()._apply(fn, recurse)


def _except_for(norms: Iterable[nn.Module], convert: Convert) -> Convert:
    """A conversion as `nn.Module._apply` gets it, with float32 instead of float16 for the tensors of some norms."""
    tensors = [tensor for norm in norms for tensor in (*norm.parameters(), *norm.buffers())]
    tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
    kept = {id(tensor): tensor for tensor in tensors}

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        result = convert(tensor)
        stays = id(tensor) in kept and result.dtype == torch.float16
        return tensor.to(result.device, torch.float32) if stays else result

    return converted


def norms_in_float32(network: nn.Module) -> list[nn.Module]:
    """The norms of a network that stay in float32 when it is converted to float16.

    A block that was replaced by another module may contain norms at any depth.
    """
    parents = (module for module in network.modules() if isinstance(module, NormsInFloat32))
    return [module for parent in parents for module in parent.modules() if isinstance(module, NORMS)]


def norm_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype of such a norm in a network of `dtype`."""
    return torch.float32 if dtype == torch.float16 else dtype


def is_converted(network: nn.Module, x: torch.Tensor) -> bool:
    """Whether a network and its input x were both converted to float16. Not under autocast."""
    if x.dtype != torch.float16 or autocast_enabled(x.device.type):
        return False
    return any(p.dtype == torch.float16 for p in network.parameters())


def sums_in_float32(x: torch.Tensor, converted: bool) -> AbstractContextManager[object]:
    """A context in which the convolutions of a network that was converted to float16 return float32."""
    if not converted or x.is_meta:  # meta tensors do not support autocast
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, torch.float16)
