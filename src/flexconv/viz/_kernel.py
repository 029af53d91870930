"""A kernel in the making: generator, mask, their product, and what cropping leaves of it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import sampling
from .._arguments import as_int, positive_int
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import FlexConvNd
from ._kernel_curves import draw_curves
from ._kernel_images import draw_images
from .style import some_of, styled, times


@styled
def plot_kernel(layer: FlexConvNd, *, channels: int | Sequence[tuple[int, int]] = 3) -> Figure:
    """How a layer's kernel comes about, from left to right.

        (a) generator on the whole grid   (b) mask   (c) ψ = (a) · (b)   (d) ψ cropped to its current size

    The box in (a) to (c) is the crop, which (d) shows alone. One row per channel pair; in 3D three rows, the planes
    through the mask's centre. All kernel values share one scale, symmetric about 0, that fits (c) and (d): the
    generator may be clipped where the mask hides it. A layer without mask has no (b) and (c).

    Arguments:
        channels: how many channel pairs, spread evenly over the kernel; or which ones: pairs (output channel, input
            channel), where the input channel counts from 0 in every group.

    """
    layer = sampling.check_layer(layer, "plot_kernel")
    pairs = channel_pairs(layer, channels)
    parts = sampling.kernel_stages(layer)
    last = f"cropped, {times(layer.extent)}" if layer._size_source else "kernel"
    titles = ["generator", last] if parts.mask is None else ["generator", "mask", "generator × mask", last]
    titles = [f"({letter}) {title}" for letter, title in zip("abcd", titles, strict=False)]
    figure = (draw_curves if layer.dims == 1 else draw_images)(layer, parts, pairs, titles)
    total = layer.out_channels * layer.in_channels // layer.groups
    grid = f"grid of {times(layer.kernel_size)} taps, size {times(layer.extent)}"
    between = "; " if len(titles) > 2 else "\n"
    figure.suptitle(f"{type(layer).__name__}: {grid}{between}{some_of(len(pairs), total, 'channel pairs')}")
    return figure


def channel_pairs(layer: FlexConvNd, channels: int | Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (output, input) channels to draw."""
    outputs, inputs = layer.out_channels, layer.in_channels // layer.groups
    if (number := as_int(channels)) is not None:
        return [divmod(index, inputs) for index in sampling.spread(positive_int("channels", number), outputs * inputs)]
    pairs = list(channels) if isinstance(channels, Sequence) else []
    if not pairs or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise ArgumentTypeError(
            f"channels must be a number, or pairs (output channel, input channel); got {channels!r}"
        )
    for pair in pairs:
        if not (0 <= pair[0] < outputs and 0 <= pair[1] < inputs):
            groups = " per group" if layer.groups > 1 else ""
            raise ArgumentError(
                f"there is no channel pair {tuple(pair)}: the kernel has {outputs} output channels and "
                f"{inputs} input channels{groups}, counted from 0"
            )
    return [(int(pair[0]), int(pair[1])) for pair in pairs]
