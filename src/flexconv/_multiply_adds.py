"""Counting the multiply-adds of a model."""

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

GUESS_STEP = 16  # an assumed input size is a multiple of this, so that strides divide it


def multiply_adds(model: nn.Module, input_shape: Sequence[int]) -> dict[str, int]:
    """Count the multiply-adds of every convolution and linear layer for an input of that shape, by module name.

    A convolution counts as a direct convolution, a FlexConv with its current size: positions of the output ×
    out_channels × in_channels/groups × taps. A module that is called twice counts twice. A copy of the model processes
    one sample. (On the meta device torch would import its compiler, which takes longer.)
    """
    batch, *sample = input_shape
    sizes = {name: math.prod(m.extent) for name, m in model.named_modules() if isinstance(m, FlexConvNd)}
    counts: dict[str, int] = {}

    def count(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, FlexConvNd):
            each = module.in_channels // module.groups * sizes[name]
        else:
            each = module.weight[0].numel()  # type: ignore[index, union-attr]
        positions = inputs[0] if isinstance(module, _ConvTransposeNd) else output
        counts[name] = counts.get(name, 0) + batch * positions.numel() * each

    shadow = copy.deepcopy(model).float().eval()
    for name, module in shadow.named_modules():
        if isinstance(module, Counted) and not _inside_flexconv(shadow, name):
            module.register_forward_hook(functools.partial(count, name))
    device = next((p.device for p in model.parameters()), None)
    with torch.no_grad():
        shadow(torch.ones(1, *sample, device=device))  # ones: a mask channel must not say that nothing was observed
    return counts


def usual_input(model: nn.Module) -> tuple[int, ...] | None:
    """The shape of one input of a network of `flexconv.models`; None for other models.

    Its size is the one that the network was made for or, if that is not known, the largest kernel grid, rounded up.
    """
    if not isinstance(model, Model):
        return None
    size = trained_size(model)
    if size is None:
        grids = [module.kernel_size for module in model.modules() if isinstance(module, FlexConvNd)]
        size = tuple(-(-max(axis) // GUESS_STEP) * GUESS_STEP for axis in zip(*grids, strict=True))
    return (1, model.in_channels, *size)


def _inside_flexconv(model: nn.Module, name: str) -> bool:
    """Whether a module is part of a FlexConv: its generator does not process the input of the network."""
    parents = name.split(".")[:-1]
    return any(
        isinstance(model.get_submodule(".".join(parents[:count])), FlexConvNd) for count in range(len(parents) + 1)
    )
