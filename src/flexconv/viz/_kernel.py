"""How a kernel is computed: generator, mask, their product, and the cropped kernel."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from .. import sampling
from .._arguments import as_int, positive_int
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import FlexConvNd
from ._kernel_curves import draw_curves
from ._kernel_images import draw_images
from .style import layer_title, some_of, styled, times


@styled
def plot_kernel(layer: FlexConvNd, *, channels: int | Sequence[tuple[int, int]] = 3, name: str = "") -> Figure:
    """Plot how the kernel of a layer is computed, from left to right.

        (a) generator on the whole grid   (b) mask   (c) ψ = (a) · (b)   (d) ψ cropped to its current size

    A box in (a) to (c), or shading in 1D, shows the taps that are kept; (d) shows these taps only. In (b), a contour or
    a dotted line shows where the mask equals its threshold. Positions are offsets from the current sample, in taps.
    There is one row per channel pair. A 3D layer has three rows per pair: the three planes through the center of the
    mask. All kernel values share one color scale, which is symmetric about 0 and fits (c) and (d). The generator may
    exceed it where the mask is small. A layer without a mask has only the generator and the kernel.

    Arguments:
        layer: a FlexConv layer.
        channels: the number of channel pairs to plot, spread evenly over the kernel; or a list of pairs (output
            channel, input channel). With groups, the input channel is counted within its group.
        name: the name of the layer in its model, for the title.

    """
    layer = sampling.check_layer(layer, "plot_kernel")
    pairs = channel_pairs(layer, channels)
    stages = sampling.kernel_stages(layer)
    crop = "shading" if layer.dims == 1 else "box"
    last = "kernel" if layer.extent == layer.kernel_size else f"cropped to the {crop}"
    titles = ["generator", last] if layer.mask is None else ["generator", "mask", "generator × mask", last]
    titles = [f"({letter}) {title}" for letter, title in zip("abcd", titles, strict=False)]
    figure = (draw_curves if layer.dims == 1 else draw_images)(layer, stages, pairs, titles)
    total = layer.out_channels * layer.in_channels // layer.groups
    size = f"kernel size {times(layer.extent)} on a grid of {times(layer.kernel_size)} taps"
    shown = some_of(len(pairs), total, "channel pairs")
    figure.suptitle(f"Kernel of {layer_title(layer, name)}, {shown}\n{size}")
    return figure


def channel_pairs(layer: FlexConvNd, channels: int | Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs (output channel, input channel) to plot."""
    outputs, inputs = layer.out_channels, layer.in_channels // layer.groups
    if (number := as_int(channels)) is not None:
        return [divmod(index, inputs) for index in sampling.spread(positive_int("channels", number), outputs * inputs)]
    pairs = list(channels) if isinstance(channels, Sequence) else []
    if not pairs or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise ArgumentTypeError(
            f"channels must be a number or a list of pairs (output channel, input channel); got {channels!r}"
        )
    for pair in pairs:
        if not (0 <= pair[0] < outputs and 0 <= pair[1] < inputs):
            groups = " per group" if layer.groups > 1 else ""
            raise ArgumentError(
                f"channel pair {tuple(pair)} does not exist: the kernel has {outputs} output channels and "
                f"{inputs} input channels{groups}, counted from 0"
            )
    return [(int(pair[0]), int(pair[1])) for pair in pairs]
