"""Separable FlexConvs: a depthwise FlexConv, an optional small branch, and a pointwise mix."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flexconv import (
    SeparableFlexConv1d,
    SeparableFlexConv2d,
    SeparableFlexConv3d,
    Streaming,
    at_resolution,
    materialize,
)
from flexconv.errors import ArgumentError, UsageError
from flexconv.export import export
from flexconv.nn import FlexConvNd, SeparableFlexConvNd
from flexconv.spectrum import energy_beyond_nyquist, max_frequency, nyquist
from tests.conftest import mentions, relative_error
from tests.nn.helpers import TORCH_CONVS, noise, tiny_magnet

SEPARABLE = {1: SeparableFlexConv1d, 2: SeparableFlexConv2d, 3: SeparableFlexConv3d}


def separable(dims, *, kernel_size=9, **options):
    options = {"generator": tiny_magnet, "dtype": torch.float64} | options
    return SEPARABLE[dims](3, 5, kernel_size, **options)


def reference(layer, x, pads):
    """The two steps by torch's own convolutions, from kernels on the whole grid."""
    kernel = layer.depthwise.sample([axis.whole for axis in layer.depthwise.axes])
    y = TORCH_CONVS[layer.dims](F.pad(x, pads(layer.depthwise.kernel_size[0])), kernel, layer.depthwise.bias, groups=3)
    if layer.small is not None:
        small = layer.small.kernel()
        y = y + TORCH_CONVS[layer.dims](F.pad(x, pads(small.shape[-1])), small, groups=3)
    weight = layer.pointwise.weight.flatten(1)
    return torch.einsum("oc,bc...->bo...", weight, y) + layer.pointwise.bias.view(-1, *[1] * layer.dims)


@pytest.mark.parametrize("small_kernel", [None, 3])
@pytest.mark.parametrize("mask", ["gaussian", "per_channel", None])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_equals_depthwise_and_pointwise_convolutions(dims, mask, small_kernel):
    layer = separable(dims, mask=mask, small_kernel=small_kernel)
    x = noise(2, 3, *[8] * dims)
    expected = reference(layer, x, lambda taps: [taps // 2] * 2 * dims)
    assert relative_error(layer(x), expected) < 1e-9
    assert relative_error(layer(x[0]), expected[0]) < 1e-9
    assert (layer.in_channels, layer.out_channels) == (3, 5)


@pytest.mark.parametrize("small_kernel", [None, 4])
def test_causal_layer_streams_and_accepts_lengths(small_kernel):
    layer = separable(1, kernel_size=17, padding="causal", mask="per_channel", small_kernel=small_kernel)
    x = noise(2, 3, 30)
    expected = reference(layer, x, lambda taps: [taps - 1, 0])
    assert relative_error(layer(x), expected) < 1e-9
    stream = Streaming(layer)
    assert relative_error(torch.cat([stream(x[..., :4]), stream(x[..., 4:])], -1), expected) < 1e-9
    padded = x.clone()
    padded[0, :, 12:] = torch.nan
    y = layer(padded, lengths=[12, 30])
    assert relative_error(y[0, :, :12], layer(x[:1, :, :12])[0]) < 1e-9
    assert relative_error(y[1], expected[1]) < 1e-9
    assert not y[0, :, 12:].any()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_resampling_and_materializing(dims):
    layer = separable(dims, mask="per_channel", small_kernel=3).eval()
    x = noise(1, 3, *[9] * dims)
    assert relative_error(at_resolution(at_resolution(layer, 2), 0.5)(x), layer(x)) < 1e-9
    plain = materialize(layer, scale=2)
    assert not any(isinstance(module, FlexConvNd) for module in plain.modules())
    finer = noise(1, 3, *[18] * dims)
    assert relative_error(plain(finer), at_resolution(layer, 2)(finer)) < 1e-9


def test_export(tmp_path):
    layer = SeparableFlexConv1d(2, 3, 9, padding="causal", mask="per_channel", small_kernel=3, generator=tiny_magnet)
    layer.eval()
    x = torch.randn(2, 2, 12)
    export(layer, tmp_path / "layer.pt2", example=x)
    program = torch.export.load(str(tmp_path / "layer.pt2")).module()
    assert relative_error(program(x), layer(x)) < 1e-5


@pytest.mark.parametrize(("dims", "taps"), [(1, 257), (1, 1025), (2, 33), (3, 17)])
@pytest.mark.parametrize("mask", ["gaussian", "per_channel"])
def test_starts_below_the_nyquist_frequency(dims, taps, mask):
    torch.manual_seed(0)
    layer = SEPARABLE[dims](16, 16, taps, mask=mask).depthwise
    assert (max_frequency(layer) <= 1.01 * nyquist(taps)).all()
    assert energy_beyond_nyquist(layer) < 0.05


def test_sizes_of_channels():
    layer = SeparableFlexConv2d(4, 4, 33, mask="per_channel")
    assert layer.extent == (7, 7)
    assert layer.channel_extents.tolist() == [[7, 7]] * 4
    assert SeparableFlexConv2d(4, 4, 33).channel_extents.tolist() == [[7, 7]] * 4


def test_half_precision():
    layer = SeparableFlexConv1d(4, 4, 17, mask="per_channel").to(torch.bfloat16)
    assert layer(torch.randn(1, 4, 20, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert layer.depthwise.mask.growth.dtype == torch.float32


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=mentions("11", "small_kernel")):
        SeparableFlexConv1d(2, 2, 9, small_kernel=11)
    with pytest.raises(ArgumentError, match=mentions("valid", "small_kernel")):
        SeparableFlexConv1d(2, 2, 9, padding="valid", small_kernel=3)
    with pytest.raises(ArgumentError, match=mentions("4", "odd")):
        SeparableFlexConv2d(2, 2, 9, small_kernel=4)
    assert isinstance(SeparableFlexConv2d(2, 2, 9), SeparableFlexConvNd)


def test_materialized_layer_fills_in_missing_samples_and_refuses_lengths():
    layer, x = SeparableFlexConv1d(2, 3, 9), torch.randn(1, 2, 10)
    plain, observed = materialize(layer), torch.arange(10)[None] % 3 > 0
    torch.testing.assert_close(plain(x, observed=observed), layer(x, observed=observed), atol=1e-4, rtol=1e-4)
    with pytest.raises(UsageError, match=r"lengths needs a FlexConv.*Conv1d"):
        plain(x, [7])


def test_materialized_causal_layer_is_printed():
    layer = SeparableFlexConv1d(2, 3, 9, padding="causal")
    plain = materialize(layer)
    assert (plain.in_channels, plain.out_channels) == (layer.in_channels, layer.out_channels) == (2, 3)
    assert "SeparableFlexConv1d(\n  2, 3" in repr(plain)
