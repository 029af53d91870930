"""Validation of arguments and inputs of a FlexConv. Every error names the offending value and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from .._arguments import check_name, positive_int, unknown_name
from .._context import autocast_enabled
from ..errors import ArgumentError, ArgumentTypeError, UsageError
from ..ops import ALGORITHMS, output_size
from ._channel_mask import ChannelGaussianMask
from ._half import parameter_dtype
from ._mask import GaussianMask
from ._padding import PADDING_MODES
from .kernels import GENERATORS, KernelGenerator

if TYPE_CHECKING:
    from ._conv import FlexConvNd

#: names for the argument `parametrization` of a layer, and the settings of its mask
PARAMETRIZATIONS: dict[str, dict[str, Any]] = {"paper": {"form": "guarded"}, "scaled": {"form": "scaled"}}

#: names for the argument `mask` of a layer
MASKS = ("gaussian", "per_channel")

KernelFactory = Callable[..., KernelGenerator]


# --- arguments --------------------------------------------------------------------------------------------------------


def check_channels(in_channels: int, out_channels: int, groups: int) -> tuple[int, int, int]:
    """The three numbers as plain ints."""
    numbers = {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}
    numbers = {name: positive_int(name, number) for name, number in numbers.items()}
    for name in ("in_channels", "out_channels"):
        if numbers[name] % numbers["groups"]:
            raise ArgumentError(f"{name} (={numbers[name]}) must be divisible by groups (={groups})")
    return numbers["in_channels"], numbers["out_channels"], numbers["groups"]


def check_names(padding_mode: str, algorithm: str, parametrization: str) -> tuple[str, str, str]:
    check_name("padding_mode", padding_mode, PADDING_MODES)
    check_name("algorithm", algorithm, ["auto", *ALGORITHMS])
    check_name("parametrization", parametrization, PARAMETRIZATIONS)
    return padding_mode, algorithm, parametrization


def make_generator(
    generator: str | KernelGenerator | KernelFactory,
    dims: int,
    channels: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> KernelGenerator:
    """The generator of a layer from its name, from a function that makes one, or as it is."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ArgumentTypeError(f"dtype must be a real floating-point dtype; got {dtype!r}")
    if isinstance(generator, str):
        if generator not in GENERATORS:
            unknown_name("kernel generator", generator, GENERATORS)
        generator = GENERATORS[generator]
    if not callable(generator) or (isinstance(generator, nn.Module) and not isinstance(generator, KernelGenerator)):
        raise ArgumentTypeError(
            f"generator must be a name ({', '.join(GENERATORS)}), a KernelGenerator or a function that makes one; "
            f"got {generator!r}"
        )
    stored = parameter_dtype(dtype)
    made = generator if isinstance(generator, nn.Module) else generator(dims, channels, device=device, dtype=stored)
    if not isinstance(made, KernelGenerator):
        raise ArgumentTypeError(f"generator must return a KernelGenerator; {generator!r} returned {made!r}")
    check_generator(made, dims, channels)
    found = next((p.dtype for p in made.parameters() if p.is_floating_point() and p.dtype not in (dtype, stored)), None)
    if dtype is not None and found is not None:
        raise ArgumentTypeError(f"the kernel generator has parameters of {found}; this layer was given dtype={dtype}")
    return made


def make_mask(
    mask: str | GaussianMask | None,
    dims: int,
    channels: int,
    parametrization: str,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> GaussianMask | None:
    """The mask of a layer from its name, or as it is. `channels` are those of a mask per channel."""
    if isinstance(mask, str):
        if mask not in MASKS:
            unknown_name("mask", mask, MASKS)
        settings = {**PARAMETRIZATIONS[parametrization], "device": device, "dtype": parameter_dtype(dtype)}
        mask = GaussianMask(dims, **settings) if mask == MASKS[0] else ChannelGaussianMask(dims, channels, **settings)
    if mask is not None and not isinstance(mask, GaussianMask):
        raise ArgumentTypeError(
            f"mask must be a name ({', '.join(MASKS)}), a GaussianMask or None (no mask: CKConv); got {mask!r}"
        )
    if mask is not None:
        check_mask_dims(mask, dims)
    return mask


def check_generator(generator: KernelGenerator, dims: int, channels: int) -> None:
    """Raise if a generator makes kernels of another shape than a layer needs."""
    if (generator.dims, generator.channels) != (dims, channels):
        raise ArgumentError(
            f"the kernel generator makes {generator.channels} channels in {generator.dims}D; this layer needs "
            f"out_channels × in_channels / groups = {channels} in {dims}D"
        )


def check_mask_dims(mask: GaussianMask, dims: int) -> None:
    if mask.dims != dims:
        raise ArgumentError(f"the mask has dims={mask.dims}; this layer needs dims={dims}")


def check_mask_channels(mask: GaussianMask | None, in_channels: int, out_channels: int, groups: int) -> None:
    """Raise if `mask` has a mask per channel and the layer is not depthwise with as many channels."""
    if not isinstance(mask, ChannelGaussianMask):
        return
    if groups != in_channels:
        raise ArgumentError(
            f"a mask per channel needs a depthwise layer, groups=in_channels (={in_channels}); got groups={groups}"
        )
    if mask.channels != out_channels:
        raise ArgumentError(f"the mask has channels={mask.channels}; this layer has out_channels={out_channels}")


# --- inputs -----------------------------------------------------------------------------------------------------------


def check_input(layer: FlexConvNd, x: torch.Tensor) -> None:
    """Raise if `layer` cannot convolve x."""
    if not torch.compiler.is_compiling() and torch.jit.is_tracing():
        refuse_torchscript(layer)
    check_kind(layer, x)
    check_sizes(layer, x.shape[-layer.dims :])


def check_kind(layer: FlexConvNd, x: torch.Tensor) -> None:
    """Type, number of dimensions, channels and dtype."""
    name = type(layer).__name__
    if not isinstance(x, torch.Tensor):
        raise ArgumentTypeError(f"{name} expects a tensor; got {type(x).__name__}")
    if not x.is_floating_point():
        raise ArgumentTypeError(f"{name} expects a real floating-point input; got {x.dtype}")
    if x.ndim not in (layer.dims + 1, layer.dims + 2) or x.shape[-1 - layer.dims] != layer.in_channels:
        sizes = {1: "length", 2: "height, width", 3: "depth, height, width"}[layer.dims]
        raise ArgumentError(
            f"{name} expects an input of shape [batch, {layer.in_channels}, {sizes}], or the same without batch "
            f"(in_channels={layer.in_channels}); got {tuple(x.shape)}"
        )
    if x.dtype != layer.dtype and not autocast_enabled(x.device.type):
        raise ArgumentTypeError(
            f"the input is {x.dtype} but the layer is {layer.dtype}: convert the input with .to(…), or use "
            f"torch.autocast"
        )


def check_sizes(layer: FlexConvNd, sizes: Sequence[int]) -> None:
    """Every output axis needs at least one position."""
    for size, taps, step, pads, spread in zip(
        sizes, layer.kernel_size, layer.stride, layer.pads, layer.dilation, strict=True
    ):
        if output_size(size, taps, step, pads, spread) < 1 or size < 1:
            raise ArgumentError(
                f"input size {tuple(sizes)} is too small for kernel_size {layer.kernel_size} with "
                f"padding={layer.padding!r} and dilation {layer.dilation}"
            )


def refuse_torchscript(layer: nn.Module) -> NoReturn:
    raise UsageError(
        f"{type(layer).__name__} samples its kernel in forward, which TorchScript cannot represent: pass "
        f"flexconv.materialize(model), which has plain convolutions in its place, to torch.jit or torch.onnx, or "
        f"write a file with flexconv.export.export(model, path)"
    )
