"""Layers and reference computations shared by the tests of `flexconv.nn`."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask
from flexconv.nn import MAGNet, NJet
from tests.conftest import relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
TORCH_CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
EXACT = 1e-11  # relative error in float64

tiny_magnet = partial(MAGNet, hidden=3, layers=1)


# --- layers -----------------------------------------------------------------------------------------------------------


def make_layer(dims, in_channels=2, out_channels=2, kernel_size=7, *, sigma=0.2, mean=None, threshold=0.1, **options):
    """Return a small layer in float64 with a random bias, of which all parameters require gradients."""
    options = {"generator": tiny_magnet, "dtype": torch.float64} | options
    if "mask" not in options:
        options["mask"] = GaussianMask(dims, sigma=sigma, mean=mean, threshold=threshold, dtype=options["dtype"])
    layer = LAYERS[dims](in_channels, out_channels, kernel_size, **options).requires_grad_()
    if layer.bias is not None:
        nn.init.uniform_(layer.bias)
    return layer


def single_channel_layer(kernel_size=33, *, sigma=0.1, **options):
    """Return a 1D layer in float32 with one input channel and one output channel."""
    options = {"generator": tiny_magnet, "algorithm": "direct"} | options
    return FlexConv1d(1, 1, kernel_size, mask=options.pop("mask", GaussianMask(1, sigma=sigma)), **options)


def make_network():
    """Return a network of three layers: one with a mask, one without, and one whose generator has a size of its own.

    All of its parameters require gradients.
    """
    return nn.Sequential(
        FlexConv1d(1, 2, 33, generator=tiny_magnet, mask=GaussianMask(1, sigma=0.1)),
        nn.GELU(),
        nn.Sequential(FlexConv1d(2, 2, 9, generator=tiny_magnet, mask=None), nn.BatchNorm1d(2)),
        FlexConv1d(2, 1, 17, generator=partial(NJet, order=1), mask=None, padding="causal"),
    ).requires_grad_()


def noise(*shape, **options):
    return torch.randn(*shape, **{"dtype": torch.float64} | options)


def set_value(parameter, value):
    """Set a parameter in place."""
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(value))


@st.composite
def layers_and_sizes(draw):
    """Draw a layer with any arguments, and the size of an input that it accepts."""
    dims = draw(st.integers(1, 3))
    axis = range(dims)
    small = 7 if dims == 3 else 13
    kernel_size = [draw(st.integers(1, small)) for _ in axis]
    dilation = [draw(st.integers(1, 3)) for _ in axis]
    stride = [draw(st.integers(1, 3)) for _ in axis]
    mode = draw(st.sampled_from(PADDING_MODES))
    padding, size = [], []
    for taps, step in zip(kernel_size, dilation, strict=True):
        reach = (taps - 1) * step
        names = ["valid", "causal"] + ["same"] * (reach % 2 == 0)
        pair = st.tuples(st.integers(-3, reach + 2), st.integers(-3, reach + 2))
        entry = draw(st.sampled_from(names) | st.integers(0, reach + 2) | pair)
        padding.append(entry)
        named = {"same": (reach // 2,) * 2, "causal": (reach, 0), "valid": (0, 0)}
        left, right = named[entry] if isinstance(entry, str) else (entry,) * 2 if isinstance(entry, int) else entry
        least = max(1, reach + 1 - left - right)
        if mode in ("reflect", "circular"):
            least = max(least, left + 1, right + 1)
        size.append(least + draw(st.integers(0, 6)))
    fan_in, fan_out, groups = (draw(st.integers(1, 2)) for _ in range(3))
    floats = partial(st.floats, allow_nan=False, width=32)
    layer = make_layer(
        dims,
        fan_in * groups,
        fan_out * groups,
        kernel_size,
        stride=stride,
        dilation=dilation,
        padding=padding,
        padding_mode=mode,
        groups=groups,
        bias=draw(st.booleans()),
        algorithm=draw(st.sampled_from(["auto", "direct", "fft"])),
        sigma=[draw(floats(0.03125, 1.5)) for _ in axis],
        mean=[draw(floats(-1.25, 1.25)) for _ in axis],
        threshold=draw(st.sampled_from([None, 0.1, 0.5])),
    )
    return layer, size


# --- the plain convolution that a layer is compared with --------------------------------------------------------------


def whole_kernel(layer):
    """Return the kernel on all taps of the grid, with zeros where the mask crops."""
    return layer.sample([axis.whole for axis in layer.axes])


def expected_pads(layer):
    """Return the padding (left, right) per axis for the whole kernel, independently of the layer's own code."""
    padding = layer.padding
    entries = [padding] * layer.dims if isinstance(padding, str | int) else padding
    pads = []
    for entry, taps, dilation in zip(entries, layer.kernel_size, layer.dilation, strict=True):
        reach = (taps - 1) * dilation
        named = {"same": (reach // 2, reach // 2), "causal": (reach, 0), "valid": (0, 0)}
        pads.append(named[entry] if isinstance(entry, str) else (entry, entry) if isinstance(entry, int) else entry)
    return pads


def pad_for_whole_kernel(layer, x):
    """Pad x for the whole kernel in the layer's padding mode. Negative padding crops x."""
    pads = expected_pads(layer)
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    x = F.pad(x, [max(0, amount) for pair in reversed(pads) for amount in pair], mode=mode)
    return F.pad(x, [min(0, amount) for pair in reversed(pads) for amount in pair])


def plain_convolution(layer, x):
    """Return the expected output of a layer: pad the input, then convolve it with the uncropped kernel."""
    weight = whole_kernel(layer)
    conv = TORCH_CONVS[layer.dims]
    return conv(pad_for_whole_kernel(layer, x), weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)


def nonzero_block(kernel):
    """Return the smallest block that contains all nonzero taps of `kernel` [out, in, *taps]."""
    mask = kernel.detach().abs().amax((0, 1)) > 0
    where = mask.nonzero()
    return kernel[(..., *(slice(int(a), int(b) + 1) for a, b in zip(where.amin(0), where.amax(0), strict=True)))]


def assert_equals_plain_convolution(layer, *size, batch=2):
    x = noise(batch, layer.in_channels, *size)
    result, truth = layer(x), plain_convolution(layer, x)
    assert result.shape == truth.shape
    if truth.any():
        assert relative_error(result, truth) < EXACT
    else:  # all outputs depend on padding only
        assert result.abs().max() < EXACT


# --- masks ------------------------------------------------------------------------------------------------------------


def coordinates_of(axes, dtype=torch.float64):
    """Return the coordinates of all taps → [n_d] per axis."""
    return [a.coordinates(a.whole, device=torch.device("cpu"), dtype=dtype) for a in axes]


def set_parameters(mask, **values):
    """Set parameters of a mask by name, and return the mask."""
    for name, value in values.items():
        set_value(getattr(mask, name), torch.as_tensor(value, dtype=torch.float64))
    return mask


def gaussian(lines, mean, sigma):
    """Return the Gaussian on a grid, without cropping or limits on the parameters."""
    factors = [torch.exp(-0.5 * ((x - m) / s) ** 2) for x, m, s in zip(lines, mean, sigma, strict=True)]
    return torch.stack(torch.meshgrid(*factors, indexing="ij")).prod(0)
