"""How much arithmetic the convolutions and linear maps of a model are, without doing any of it."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from .models import Model, trained_size
from .nn import FlexConvNd

Counted = FlexConvNd | nn.Conv1d | nn.Conv2d | nn.Conv3d | _ConvTransposeNd | nn.Linear

GUESS_STEP = 16  # sizes made up for a model that names none divide by this, so that strides cut nothing off


def multiply_adds(model: nn.Module, input_shape: Sequence[int]) -> dict[str, int]:
    """Multiply-adds of every convolution and linear map for an input of that shape, by module name.

    Those of a direct convolution, a FlexConv's at its current size: positions of the output × out_channels ×
    in_channels/groups × taps. A module that is called twice counts twice. A copy of the model runs on the meta device:
    shapes are worked out, nothing is computed.
    """
    sizes = {name: math.prod(m.extent) for name, m in model.named_modules() if isinstance(m, FlexConvNd)}
    counts: dict[str, int] = {}

    def count(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, FlexConvNd):
            each = module.in_channels // module.groups * sizes[name]
        else:
            each = module.weight[0].numel()  # type: ignore[index, union-attr]
        positions = inputs[0] if isinstance(module, _ConvTransposeNd) else output
        counts[name] = counts.get(name, 0) + positions.numel() * each

    shadow = copy.deepcopy(model).to("meta").eval()
    for name, module in shadow.named_modules():
        if isinstance(module, Counted) and not _inside_flexconv(shadow, name):
            module.register_forward_hook(functools.partial(count, name))
    dtype = next((p.dtype for p in model.parameters()), torch.get_default_dtype())
    with torch.no_grad():
        shadow(torch.empty(tuple(input_shape), device="meta", dtype=dtype))
    return counts


def usual_input(model: nn.Module) -> tuple[int, ...] | None:
    """Shape of one input to a network of `flexconv.models`; None for other models.

    Of the size it was made for; where it does not say, of the size of its largest kernel grid, rounded up.
    """
    if not isinstance(model, Model):
        return None
    size = trained_size(model)
    if size is None:
        grids = [module.kernel_size for module in model.modules() if isinstance(module, FlexConvNd)]
        size = tuple(-(-max(axis) // GUESS_STEP) * GUESS_STEP for axis in zip(*grids, strict=True))
    return (1, model.in_channels, *size)


def _inside_flexconv(model: nn.Module, name: str) -> bool:
    """Whether a module is a part of a FlexConv: a kernel's generator is no convolution of the network's input."""
    parents = name.split(".")[:-1]
    return any(
        isinstance(model.get_submodule(".".join(parents[:count])), FlexConvNd) for count in range(len(parents) + 1)
    )
