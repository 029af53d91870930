"""FlexConvs as the plain convolutions they are once their kernel is sampled."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from .errors import ArgumentError
from .nn import FlexConvNd, TapRange
from .ops import Pads
from .resolution import at_resolution

_CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_PADS = {
    "zeros": {1: nn.ConstantPad1d, 2: nn.ConstantPad2d, 3: nn.ConstantPad3d},
    "reflect": {1: nn.ReflectionPad1d, 2: nn.ReflectionPad2d, 3: nn.ReflectionPad3d},
    "replicate": {1: nn.ReplicationPad1d, 2: nn.ReplicationPad2d, 3: nn.ReplicationPad3d},
    "circular": {1: nn.CircularPad1d, 2: nn.CircularPad2d, 3: nn.CircularPad3d},
}


def materialize(model: nn.Module, *, scale: float | Sequence[float] | None = None) -> nn.Module:
    """A copy of the model with every FlexConv replaced by a `torch.nn.Conv1d/2d/3d` that holds its sampled kernel.

        plain = materialize(model)                      # same outputs, no generator, nothing of flexconv in it
        plain = materialize(model, scale=2)             # as it is `at_resolution(model, 2)`

    Kernels have the current size of their layer. Where the padding is not the same on both sides (causal layers, masks
    off the centre), the replacement is `nn.Sequential(a padding, a convolution)`. The kernel is a parameter and can be
    trained on, but its size is fixed. A large kernel convolves directly then, without the FFT that FlexConv would have
    chosen; and a plain Conv1d takes no `lengths`.
    """
    source = model if scale is None else at_resolution(model, scale, copy=False)
    if not any(isinstance(module, FlexConvNd) for module in source.modules()):
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: it is materialized already")
    plain = {id(layer): _plain(layer) for layer in source.modules() if isinstance(layer, FlexConvNd)}
    # deepcopy takes what the memo holds for a module: the replacement, at every place where the module is used
    return copy.deepcopy(source, dict(plain))


@torch.no_grad()
def _plain(layer: FlexConvNd) -> nn.Module:
    """One layer as a plain convolution, behind a padding layer where that is not symmetric."""
    if any(p.is_meta for p in layer.parameters()):
        raise ArgumentError(
            f"{type(layer).__name__} is on the meta device: it has no kernel until its weights are there"
        )
    layer._follow()
    windows = _without_negative_padding(layer)
    pads = layer._pads_of(windows)
    symmetric = all(left == right >= 0 for left, right in pads)
    weight = layer._sample(windows).to(layer._like().dtype)
    conv = _CONVS[layer.dims](
        layer.in_channels,
        layer.out_channels,
        tuple(weight.shape[2:]),  # type: ignore[arg-type]
        stride=layer.stride,  # type: ignore[arg-type]
        padding=tuple(left for left, _ in pads) if symmetric else 0,  # type: ignore[arg-type]
        dilation=layer.dilation,  # type: ignore[arg-type]
        groups=layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode if symmetric else "zeros",
        device="meta",
    )
    made_of = [p for p in layer.parameters() if p is not layer.bias]
    conv.weight = nn.Parameter(weight, requires_grad=any(p.requires_grad for p in made_of))
    if layer.bias is not None:
        conv.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=layer.bias.requires_grad)
    conv.train(layer.training)
    return conv if symmetric else nn.Sequential(*_padding(layer, pads), conv).train(layer.training)


def _without_negative_padding(layer: FlexConvNd) -> tuple[TapRange, ...]:
    """The taps in force, and as many zeros beside them as it takes for the padding not to be negative."""
    windows = []
    for (start, stop), (left, right), size, step in zip(
        layer._extent.taps, layer.pads, layer.kernel_size, layer.dilation, strict=True
    ):
        windows.append((min(start, max(left, 0) // step), max(stop, size - max(right, 0) // step)))
    return tuple(windows)


def _padding(layer: FlexConvNd, pads: Pads) -> list[nn.Module]:
    """The padding, and behind it the cropping that negative padding is."""
    amounts = [amount for pair in reversed(pads) for amount in pair]
    mode, constant = layer.padding_mode, _PADS["zeros"][layer.dims]
    if mode == "zeros":
        return [constant(tuple(amounts), 0.0)]
    padding = _PADS[mode][layer.dims](tuple(max(0, amount) for amount in amounts))
    crop = tuple(min(0, amount) for amount in amounts)
    return [padding, constant(crop, 0.0)] if any(crop) else [padding]
