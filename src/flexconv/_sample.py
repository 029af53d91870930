"""What a layer's kernel is made of, as arrays: the numbers behind pictures and pages. Nothing here changes a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from .errors import ArgumentError, ArgumentTypeError
from .nn import Axis, FlexConvNd, TapRange, mesh
from .spectrum import uncropped


class Steps(NamedTuple):
    """A kernel in the making, on the whole grid k of the layer; numpy arrays."""

    axes: tuple[Axis, ...]
    taps: tuple[TapRange, ...]  # what the current size covers
    generated: np.ndarray  # [out, in/groups, *k]
    window: np.ndarray | None  # [*k], before cropping
    product: np.ndarray  # [out, in/groups, *k]
    kernel: np.ndarray  # [out, in/groups, *extent]: what the layer uses


def check_layer(layer: object, function: str) -> FlexConvNd:
    """The layer itself, where it is one that can be drawn."""
    if isinstance(layer, FlexConvNd):
        if layer._like().is_meta:
            raise ArgumentError(
                f"{function}: the layer is on the meta device and has no values to draw; materialise it"
            )
        return layer
    hint = ""
    if isinstance(layer, nn.Module):
        inside = [name for name, module in layer.named_modules() if isinstance(module, FlexConvNd)]
        hint = f"; it contains some, such as model.get_submodule({inside[0]!r})" if inside else ""
    raise ArgumentTypeError(f"{function} wants a FlexConv layer; got {type(layer).__name__}{hint}")


def flexconvs(model: object, function: str) -> dict[str, FlexConvNd]:
    """The FlexConvs of a model by name, in the model's order; a layer alone goes by its class."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"{function} wants a model (torch.nn.Module); got {type(model).__name__}")
    layers = {name or type(m).__name__: m for name, m in model.named_modules() if isinstance(m, FlexConvNd)}
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: {function} has nothing to draw")
    return {name: check_layer(layer, function) for name, layer in layers.items()}


def kept_taps(layer: FlexConvNd) -> tuple[TapRange, ...]:
    """The taps that the layer's current size covers, per axis."""
    layer._follow()
    return layer._extent.taps


def coordinates(layer: FlexConvNd, axes: Sequence[Axis]) -> list[torch.Tensor]:
    """Coordinates of all taps, in the precision and on the device that the generator works in → [k_d] per axis."""
    dtype, device = layer.generator.compute_dtype, layer._like().device
    return [axis.coordinates(axis.whole, device=device, dtype=dtype) for axis in axes]


@torch.no_grad()
def generated(layer: FlexConvNd, lines: Sequence[torch.Tensor]) -> torch.Tensor:
    """scale · generator on a product grid → [channels, *n]."""
    return layer.generator(mesh(lines)) * layer.kernel_scale


@torch.no_grad()
def window(layer: FlexConvNd, lines: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The mask on a product grid before it is cropped → [*n]; None for a layer without one."""
    return None if layer.mask is None else uncropped(layer.mask)(lines, layer.axes)


@torch.no_grad()
def steps(layer: FlexConvNd) -> Steps:
    """Everything from the generator's output to the cropped kernel."""
    lines = coordinates(layer, layer.axes)
    kernel = layer.kernel()
    raw, mask = generated(layer, lines).unflatten(0, kernel.shape[:2]), window(layer, lines)
    product = raw if mask is None else raw * mask
    gauss = None if mask is None else to_numpy(mask)
    return Steps(layer.axes, kept_taps(layer), to_numpy(raw), gauss, to_numpy(product), to_numpy(kernel))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A host copy in float64, without gradient."""
    return tensor.detach().double().cpu().numpy()


def centre_taps(layer: FlexConvNd) -> tuple[int, ...]:
    """The tap that lies nearest to the centre of the mask, or of the kernel; always one that is kept."""
    lines = coordinates(layer, layer.axes)
    taps = kept_taps(layer)
    homes = [axis.home for axis in layer.axes] if layer.mask is None else layer.mask.mean.detach().tolist()
    nearest = [int((line - home).abs().argmin()) for line, home in zip(lines, homes, strict=True)]
    return tuple(min(max(n, start), max(stop - 1, start)) for n, (start, stop) in zip(nearest, taps, strict=True))


def evenly(count: int, total: int) -> list[int]:
    """`count` indices spread over range(total), both ends among them; all where there are no more."""
    if count >= total:
        return list(range(total))
    return [round(index) for index in np.linspace(0, total - 1, count)]
