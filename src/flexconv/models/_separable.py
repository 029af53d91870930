"""The separable convolutions of a network, and the arguments that decide their axes and grids."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .._arguments import per_axis, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import (
    GENERATORS,
    ChannelGaussianMask,
    GaussianMask,
    SeparableFlexConv1d,
    SeparableFlexConv2d,
    SeparableFlexConv3d,
    SeparableFlexConvNd,
    parameter_dtype,
)
from ._convolution import known_options

#: arguments of a network that state the size of its input, and how many axes that has
SIZE_NAMES = {"length": 1, "image_size": 2, "volume_size": 3}

_LAYERS: dict[int, type[SeparableFlexConvNd]] = {1: SeparableFlexConv1d, 2: SeparableFlexConv2d, 3: SeparableFlexConv3d}


class SeparableFactory:
    """Makes the separable convolutions of a network: `make(in_channels, out_channels)`."""

    def __init__(
        self,
        dims: int,
        *,
        grid: Sequence[int],
        causal: bool,
        mask: str,
        mask_options: Mapping[str, Any] | None,
        generator: str,
        generator_options: Mapping[str, Any] | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        **options: Any,
    ) -> None:
        if generator not in GENERATORS:
            unknown_name("generator", generator, GENERATORS)
        self.dims, self.grid, self.per_channel = dims, grid, mask == "per_channel"
        kind = ChannelGaussianMask if self.per_channel else GaussianMask
        self.mask_options = known_options("option of the mask", mask_options, kind)
        self.masked = generator != "njet"  # an N-Jet learns its own size
        chosen = known_options(f"option of the generator {generator!r}", generator_options, GENERATORS[generator])
        if not self.masked and (self.mask_options or self.per_channel):
            raise ArgumentError(f"{generator=} has no mask; got mask={mask!r} and mask_options={mask_options!r}")
        self.tensors: dict[str, Any] = {"device": device, "dtype": dtype}
        self.options = {
            "padding": "causal" if causal else "same",
            "generator": functools.partial(GENERATORS[generator], **chosen),
            **self.tensors,
            **options,
        }

    def __call__(self, in_channels: int, out_channels: int) -> SeparableFlexConvNd:
        mask = self._mask(in_channels) if self.masked else None
        return _LAYERS[self.dims](in_channels, out_channels, self.grid, mask=mask, **self.options)

    def _mask(self, channels: int) -> GaussianMask:
        settings = {**self.mask_options, "device": self.tensors["device"]}
        settings["dtype"] = parameter_dtype(self.tensors["dtype"])
        if self.per_channel:
            return ChannelGaussianMask(self.dims, channels, **settings)
        return GaussianMask(self.dims, **settings)


def number_of_axes(given: Mapping[str, Any], dims: int | None) -> int:
    """The number of axes, from the size of the input that was `given` or from `dims`."""
    if len(given) > 1:
        raise ArgumentError(f"give one of length, image_size and volume_size; got {' and '.join(given)}")
    found = next((SIZE_NAMES[name] for name in given), dims)
    if found not in _LAYERS:
        raise ArgumentError(
            "a SepFlexNet needs one of length (sequences), image_size (images) and volume_size (volumes), or dims "
            f"(1, 2 or 3) and kernel_size; got dims={dims!r}"
        )
    if dims is not None and dims != found:
        raise ArgumentError(f"{next(iter(given))} is for {found} axes; got dims={dims}")
    return found


def is_causal(causal: bool | None, dims: int) -> bool:
    """Whether kernels look back only. By default, those of sequences do."""
    if causal is not None and not isinstance(causal, bool):
        raise ArgumentTypeError(f"causal must be True, False or None; got {causal!r}")
    if causal and dims > 1:
        raise ArgumentError(
            f"causal=True is for sequences, which have one axis; this network has {dims}. For video, build a network "
            f"of FlexConv3d with padding=('causal', 'same', 'same')"
        )
    return dims == 1 if causal is None else bool(causal)


def kernel_grid(
    size: int | Sequence[int] | None, kernel_size: int | Sequence[int] | None, dims: int, *, causal: bool
) -> tuple[int, ...]:
    """The taps of the grid: kernel_size, or the size of the input, plus one if kernels are centered and it is even."""
    if kernel_size is not None:
        taps = per_axis("kernel_size", kernel_size, dims, minimum=1)
        if not causal and any(each % 2 == 0 for each in taps):
            raise ArgumentError(f"kernel_size must be odd, because kernels are centered; got {kernel_size!r}")
        return taps
    if size is None:
        raise ArgumentError("either kernel_size or the size of the input is required; got neither")
    name = next(name for name, axes in SIZE_NAMES.items() if axes == dims)
    taps = per_axis(name, size, dims, minimum=1)
    return taps if causal else tuple(each + 1 - each % 2 for each in taps)
