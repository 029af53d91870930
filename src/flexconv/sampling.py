"""Sample the generator, the mask and the kernel of a layer on any grid. Nothing here changes the layer.

The figures of `flexconv.viz` and the pages of `flexconv.explorer` are drawn from these values, and
`flexconv.spectrum.measured_bandwidth` transforms them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from .errors import ArgumentError, ArgumentTypeError
from .nn import Axis, FlexConvNd, GaussianMask, TapRange, mesh


class KernelStages(NamedTuple):
    """The stages in which a layer computes its kernel, on the layer's whole grid k, as NumPy arrays."""

    axes: tuple[Axis, ...]
    taps: tuple[TapRange, ...]  # the taps within the current extent
    generated: np.ndarray  # [out, in/groups, *k]
    mask: np.ndarray | None  # [*k] or, per channel, [out, *k], before cropping; None if the layer has no mask
    product: np.ndarray  # [out, in/groups, *k]
    kernel: np.ndarray  # [out, in/groups, *extent], as the layer uses it


# --- layers -----------------------------------------------------------------------------------------------------------


def check_layer(layer: object, function: str) -> FlexConvNd:
    """Return `layer` if it is a FlexConv layer whose parameters have values; `function` is named in the error."""
    if isinstance(layer, FlexConvNd):
        if layer.reference_tensor().is_meta:
            raise ArgumentError(
                f"{function}: the layer is on the meta device and has no values; move it with `to_empty` and "
                "load or reset its parameters first"
            )
        return layer
    hint = ""
    if isinstance(layer, nn.Module):
        inside = [name for name, module in layer.named_modules() if isinstance(module, FlexConvNd)]
        hint = f"; it contains FlexConv layers, such as model.get_submodule({inside[0]!r})" if inside else ""
    raise ArgumentTypeError(f"{function} expects a FlexConv layer; got {type(layer).__name__}{hint}")


def flexconv_layers(model: object, function: str) -> dict[str, FlexConvNd]:
    """The FlexConv layers of a model by name, in the order of its modules.

    If the model is itself a layer, its class name is used. `function` is named in the errors.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"{function} expects a model (torch.nn.Module); got {type(model).__name__}")
    layers = {name or type(m).__name__: m for name, m in model.named_modules() if isinstance(m, FlexConvNd)}
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer, which {function} needs")
    return {name: check_layer(layer, function) for name, layer in layers.items()}


def centre_taps(layer: FlexConvNd) -> tuple[int, ...]:
    """The tap nearest to the center of the mask (without a mask: of the kernel), within the current extent."""
    lines = coordinates(layer, layer.axes)
    mean = None if layer.mask is None else typical_mask(layer.mask)[0]
    centres = [axis.current for axis in layer.axes] if mean is None else mean.tolist()
    nearest = [int((line - centre).abs().argmin()) for line, centre in zip(lines, centres, strict=True)]
    return tuple(min(max(n, start), max(stop - 1, start)) for n, (start, stop) in zip(nearest, layer.taps, strict=True))


# --- grids ------------------------------------------------------------------------------------------------------------


def oversampled(axis: Axis, factor: int) -> Axis:
    """The same interval with `factor` times as many taps per unit."""
    return Axis(max(axis.size - 1, 1) * factor + 1, axis.causal, axis.spacing / factor)


def coordinates(layer: FlexConvNd, axes: Sequence[Axis]) -> list[torch.Tensor]:
    """Coordinates of all taps of `axes` → [k_d] per axis, with the dtype and device of the layer's generator."""
    dtype, device = layer.generator.compute_dtype, layer.reference_tensor().device
    return [axis.coordinates(axis.whole, device=device, dtype=dtype) for axis in axes]


def spread(count: int, total: int) -> list[int]:
    """`count` evenly spaced indices of range(total), including both ends; all of them if `count` ≥ `total`."""
    if count >= total:
        return list(range(total))
    return [round(index) for index in np.linspace(0, total - 1, count)]


# --- values -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def sample_generator(layer: FlexConvNd, lines: Sequence[torch.Tensor]) -> torch.Tensor:
    """scale · generator on the product grid of the coordinates `lines` → [channels, *n]."""
    return layer.generator(mesh(lines)) * layer.grid.scale


@torch.no_grad()
def sample_mask(layer: FlexConvNd, lines: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The mask before cropping on the product grid of the coordinates `lines` → [*n]; None without a mask.

    The result is [channels, *n] if every channel has a mask; see `mask_of`.
    """
    return None if layer.mask is None else _uncropped(layer.mask)(lines, layer.axes)


def mask_of(values: torch.Tensor, dims: int, channel: int | None = None) -> torch.Tensor:
    """From `sample_mask`, the mask of an output channel → [*n]. None: the largest value over all channels."""
    if values.ndim == dims:
        return values
    return values.amax(0) if channel is None else values[channel]


@torch.no_grad()
def typical_mask(mask: GaussianMask) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and σ of a mask [D]. If every channel has a mask, those of the channel with the largest one."""
    mean, sigma = mask.mean.detach(), mask.sigma.detach()
    if not mask.per_channel:
        return mean, sigma
    widest = int(sigma.abs().log().sum(-1).argmax())
    return mean[widest], sigma[widest]


def dense_kernel(layer: FlexConvNd, axes: Sequence[Axis], *, mask: bool) -> torch.Tensor:
    """generator · mask on another grid, neither cropped nor scaled → [channels, *sizes]. Differentiable."""
    lines = coordinates(layer, axes)
    values = layer.generator(mesh(lines))
    return values * _uncropped(layer.mask)(lines, layer.axes) if mask and layer.mask is not None else values


@torch.no_grad()
def continuous_kernel(
    layer: FlexConvNd, factor: int, generator: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> torch.Tensor:
    """The kernel that the layer samples at its taps, with `factor` samples per tap and axis → [channels, *n].

    Between and beyond the taps it is what `at_resolution` makes of it, up to a constant: generator · mask, falling
    linearly to 0 between the last tap that is kept and the first one that is cropped or beyond the end of the grid. An
    axis with a single tap has a single sample. `generator`, from coordinates to values, replaces that of the layer.
    """
    lines, ramps, axes = [], [], []
    for axis, taps, like in zip(layer.axes, layer.taps, coordinates(layer, layer.axes), strict=True):
        trained = axis.origin or axis
        lines.append(like if axis.size == 1 else _between_taps(axis, taps, factor, like=like))
        ends = torch.minimum(lines[-1] - trained.first, trained.last - lines[-1])  # negative beyond the grid
        ramps.append((1 + ends / trained.spacing).clamp(0, 1))
        axes.append(axis if axis.size == 1 else oversampled(trained, factor)._replace(origin=trained))
    values = (generator or layer.generator)(mesh(lines))
    if layer.mask is not None:
        values = values * layer.mask(lines, axes)
    for d, ramp in enumerate(ramps):
        values = values * ramp.view(-1, *[1] * (layer.dims - 1 - d))
    return values


def _between_taps(axis: Axis, taps: TapRange, factor: int, *, like: torch.Tensor) -> torch.Tensor:
    """Coordinates from before the first to after the last of `taps`, such that the kernel is 0 at both ends."""
    margin = factor * math.ceil((axis.origin or axis).spacing / axis.spacing - 1e-6)
    index = torch.arange(-margin, (taps[1] - taps[0] - 1) * factor + margin + 1, device=like.device)
    return axis.first + (taps[0] + index.to(like.dtype) / factor) * axis.spacing


@torch.no_grad()
def kernel_stages(layer: FlexConvNd) -> KernelStages:
    """Everything from the generator's output to the cropped kernel."""
    lines = coordinates(layer, layer.axes)
    kernel = layer.kernel()
    generated, mask = sample_generator(layer, lines).unflatten(0, kernel.shape[:2]), sample_mask(layer, lines)
    shared = mask is None or mask.ndim == layer.dims
    product = generated if mask is None else generated * (mask if shared else mask.unsqueeze(1))
    mask_values = None if mask is None else to_numpy(mask)
    return KernelStages(layer.axes, layer.taps, to_numpy(generated), mask_values, to_numpy(product), to_numpy(kernel))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy on the host in float64, detached from the graph."""
    return tensor.detach().double().cpu().numpy()


def _uncropped(mask: GaussianMask) -> GaussianMask:
    """The same Gaussian without its threshold; it shares the parameters."""
    mask = copy.copy(mask)
    mask.threshold = None
    return mask
