"""A FlexConv layer computes a plain convolution with its whole, uncropped kernel."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn

import flexconv.nn._conv as source
from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, ops
from flexconv.nn import GENERATORS
from flexconv.testing import assert_causal, assert_translation_equivariant
from tests.conftest import relative_error
from tests.nn.helpers import (
    EXACT,
    LAYERS,
    PADDING_MODES,
    assert_equals_plain_convolution,
    layers_and_sizes,
    make_layer,
    noise,
    nonzero_block,
    plain_convolution,
    tiny_magnet,
    whole_kernel,
)

TORCH_LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
OPS = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}


# --- equality with a plain convolution --------------------------------------------------------------------------------

PADDINGS = {
    1: ["same", "valid", "causal", 0, 3, 11, ["same"], ["causal"], [2], [(4, 1)], [(0, 9)], -1, [(5, -2)], [(-3, 8)]],
    2: ["same", "valid", "causal", 2, (0, 3), ("causal", "same"), ("valid", 4), ((5, 1), "causal"), ((-1, 4), (2, -2))],
    3: ["same", "valid", "causal", 1, (0, 1, 2), ("causal", "same", "same"), ("valid", (2, 1), 3)],
}
SIZES = {1: ((9,), (20,)), 2: ((7, 9), (12, 10)), 3: ((3, 5, 5), (6, 5, 7))}


@pytest.mark.parametrize(("dims", "padding"), [(d, padding) for d in PADDINGS for padding in PADDINGS[d]])
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_padding_equals_plain_convolution(dims, padding, algorithm):
    kernel_size, size = SIZES[dims]
    layer = make_layer(dims, kernel_size=kernel_size, padding=padding, algorithm=algorithm)
    assert layer.extent != layer.kernel_size, "the kernel must be cropped for this test"
    assert_equals_plain_convolution(layer, *size)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("padding", ["same", "causal", 2, "valid"])
def test_padding_mode_equals_plain_convolution(dims, mode, padding):
    size = {1: (12,), 2: (9, 8), 3: (6, 5, 7)}[dims]
    kernel_size = {1: 9, 2: (5, 7), 3: (3, 5, 5)}[dims]
    for mean in (0.0, 0.7, -0.9):
        layer = make_layer(dims, kernel_size=kernel_size, padding=padding, padding_mode=mode, mean=mean)
        assert_equals_plain_convolution(layer, *size)


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_different_padding_per_axis_equals_plain_convolution(mode):
    for padding in [("causal", "same"), ((3, 0), "valid"), (1, (0, 4)), ((-2, 3), "same")]:
        layer = make_layer(2, kernel_size=(6, 5), padding=padding, padding_mode=mode, mean=(0.5, -0.3))
        assert_equals_plain_convolution(layer, 8, 9)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_stride_and_dilation_equal_plain_convolution(dims, stride, dilation, padding):
    layer = make_layer(dims, kernel_size=5, stride=stride, dilation=dilation, padding=padding, mean=0.4)
    assert_equals_plain_convolution(layer, *(17, 14)[:dims])


@pytest.mark.parametrize("algorithm", ["direct", "fft", "auto"])
@pytest.mark.parametrize(("channels", "groups"), [((4, 6), 2), ((4, 4), 4), ((3, 6), 3), ((3, 3), 1)])
def test_groups_equal_plain_convolution(channels, groups, algorithm):
    layer = make_layer(2, *channels, groups=groups, algorithm=algorithm)
    assert whole_kernel(layer).shape == (channels[1], channels[0] // groups, 7, 7)
    assert_equals_plain_convolution(layer, 8, 9)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["causal", "valid", 3])
def test_even_kernel_size_equals_plain_convolution(dims, padding):
    for mean in (None, 0.3):
        assert_equals_plain_convolution(
            make_layer(dims, kernel_size=(4, 6, 2)[:dims], padding=padding, mean=mean), *(7, 9, 8)[:dims]
        )


def test_same_padding_of_even_kernel_size_with_even_dilation():
    layer = make_layer(1, kernel_size=4, dilation=2)
    assert layer.pads == ((3, 3),)
    assert_equals_plain_convolution(layer, 11)


@pytest.mark.parametrize("sigma", [1e-9, 0.01, 0.05, 0.2, 0.5, 3.0, 100.0, -0.2])
@pytest.mark.parametrize("mean", [-5.0, -1.0, -0.6, 0.0, 0.31, 1.0])
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_mask_of_any_width_and_position_equals_plain_convolution(sigma, mean, padding):
    assert_equals_plain_convolution(make_layer(1, kernel_size=17, sigma=sigma, mean=mean, padding=padding), 20)


def test_off_center_mask_is_cropped_on_both_sides():
    layer = make_layer(1, kernel_size=65, sigma=0.05, mean=0.5)
    assert layer.extent == (7,)
    ((start, stop),) = layer.taps
    assert start > 40
    assert stop < 58
    ((start, stop),) = layer.window
    assert start > 32
    assert stop < 65
    assert_equals_plain_convolution(layer, 70)
    assert_equals_plain_convolution(layer, 9)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("sigma", [0.1, 10.0])
def test_input_smaller_than_kernel_equals_plain_convolution(dims, padding, sigma):
    for size in ((1, 1, 1), (3, 2, 4), (9, 1, 2)):
        for algorithm in ("direct", "fft"):
            layer = make_layer(
                dims, kernel_size=13 if dims < 3 else 7, padding=padding, sigma=sigma, algorithm=algorithm
            )
            assert_equals_plain_convolution(layer, *size[:dims])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unbatched_input_equals_batch_of_one(dims, bias):
    layer = make_layer(dims, bias=bias, kernel_size=5)
    x = noise(2, *(6, 7, 5)[:dims])
    torch.testing.assert_close(layer(x), layer(x[None])[0], rtol=0, atol=0)
    assert (layer.bias is not None) == bias


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_equals_functional_convolution_with_whole_kernel(dims):
    layer = make_layer(dims, kernel_size=5, stride=2, padding="causal")
    x = noise(2, 2, *(9, 4, 3)[:dims])
    truth = OPS[dims](x, whole_kernel(layer), layer.bias, stride=2, padding="causal", algorithm="reference")
    assert relative_error(layer(x), truth) < EXACT


@pytest.mark.parametrize("threshold", [None, 1e-4, 0.1, 0.9])
@pytest.mark.parametrize("mask", ["axes", "rotated"])
def test_threshold_and_rotated_mask_equal_plain_convolution(threshold, mask):
    options = {"sigma": (0.1, 0.4), "mean": (0.2, -0.1), "threshold": threshold, "dtype": torch.float64}
    mask = RotatedGaussianMask(2, angle=0.6, **options) if mask == "rotated" else GaussianMask(2, **options)
    layer = make_layer(2, kernel_size=(9, 11), mask=mask)
    assert (layer.extent == layer.kernel_size) == (threshold is None)
    assert_equals_plain_convolution(layer, 12, 10)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", None])
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_generators_equal_plain_convolution(generator, mask, padding):
    for dims in (1, 2):
        mask_or_none = mask and GaussianMask(dims, sigma=0.15, dtype=torch.float64)
        layer = make_layer(dims, kernel_size=9, generator=generator, mask=mask_or_none, padding=padding)
        assert_equals_plain_convolution(layer, *(12, 10)[:dims])


@given(layers_and_sizes())
@settings(max_examples=250)
def test_cropped_equals_uncropped_for_random_arguments(case):
    layer, size = case
    assert_equals_plain_convolution(layer, *size)
    block = layer.kernel()
    assert block.shape == (layer.out_channels, layer.in_channels // layer.groups, *layer.extent)


def test_convolution_receives_cropped_kernel(monkeypatch):
    """The convolution computes a window of the grid, not the whole grid with zeros."""
    sizes = []

    def spy(dims, x, weight, *rest):
        sizes.append(tuple(weight.shape[2:]))
        return ops._conv.conv_nd(dims, x, weight, *rest)

    monkeypatch.setattr(source, "conv_nd", spy)
    layer = make_layer(2, kernel_size=33, sigma=0.075)
    layer(noise(1, 2, 40, 40))
    assert layer.extent == (5, 5)
    layer.mask.set_(sigma=(0.2, 3.0))
    layer(noise(1, 2, 40, 40))
    assert layer.extent == (13, 33)
    assert sizes == [(5, 5), (17, 33)]


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["valid", 0, 1, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_output_shape_equals_torch(dims, padding, stride, dilation):
    arguments = (4, 6, (5, 3, 4)[:dims], stride, padding, dilation, 2)
    x = torch.randn(2, 4, *(14, 13, 12)[:dims])
    assert LAYERS[dims](*arguments, generator=tiny_magnet)(x).shape == TORCH_LAYERS[dims](*arguments)(x).shape


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_same_padding_divides_size_by_stride(dims):
    for stride in (1, 2, 3, 4):
        for size in ((9, 8, 7), (4, 12, 5)):
            y = make_layer(dims, kernel_size=5, stride=stride)(noise(1, 2, *size[:dims]))
            assert y.shape[2:] == tuple(math.ceil(n / stride) for n in size[:dims])


def test_positional_arguments_have_the_order_of_torch():
    layer = FlexConv2d(4, 6, 5, 2, 1, 3, 2, False, "reflect", "cpu", torch.float64)
    twin = nn.Conv2d(4, 6, 5, 2, 1, 3, 2, False, "reflect", "cpu", torch.float64)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups", "bias", "padding_mode"):
        assert getattr(layer, name) == getattr(twin, name)
    assert next(layer.parameters()).dtype == torch.float64


# --- the kernel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("sigma", "mean"), [(0.2, None), (0.25, 0.4), (5.0, None), (1e-6, -0.7)])
def test_kernel_is_nonzero_block_of_whole_kernel(dims, groups, sigma, mean):
    layer = make_layer(dims, 4, 2, kernel_size=(11, 9, 7)[:dims], groups=groups, sigma=sigma, mean=mean)
    kernel = layer.kernel()
    assert kernel.shape == (2, 4 // groups, *layer.extent)
    torch.testing.assert_close(kernel, nonzero_block(whole_kernel(layer)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("taps", [17, 31, 33, 49])
def test_extent_is_exact_if_a_tap_lies_on_the_threshold(taps, dtype):
    """σ is chosen so that the mask equals the threshold at a tap, and one floating-point number below and above."""
    layer = make_layer(1, kernel_size=taps, dtype=dtype)
    reach = math.sqrt(-2 * math.log(0.1))
    wrong = []
    for coordinate in torch.linspace(-1, 1, taps, dtype=dtype)[taps // 2 + 2 :]:
        exact = coordinate / reach
        below, above = (torch.nextafter(exact, torch.tensor(edge, dtype=dtype)) for edge in (0.0, 9.0))
        for sigma in (below, exact, above):
            layer.mask.set_(sigma=sigma)
            full = whole_kernel(layer)
            if layer.kernel().shape != nonzero_block(full).shape:
                wrong.append((sigma.item(), layer.extent, tuple(nonzero_block(full).shape[2:])))
            x = noise(1, 2, taps, dtype=dtype)
            assert relative_error(layer(x), plain_convolution(layer, x)) < 1e-5  # the window contains all nonzero taps
    assert not wrong, f"(σ, extent, number of nonzero taps): {wrong}"


def test_scale_of_grid_multiplies_kernel():
    layer = make_layer(1)
    before = layer.kernel()
    layer.grid = layer.grid._replace(scale=0.25)
    torch.testing.assert_close(layer.kernel(), 0.25 * before)
    assert_equals_plain_convolution(layer, 10)


# --- equivariance and causality ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("dims", [1, 2])
def test_translation_equivariance(dims, algorithm):
    layer = make_layer(dims, kernel_size=9, mean=0.2, algorithm=algorithm)
    assert_translation_equivariant(layer, noise(1, 2, *(40, 36)[:dims]), (3, -2)[:dims], margin=5, rtol=1e-10)
    circular = make_layer(dims, kernel_size=9, padding_mode="circular", mean=0.2, algorithm=algorithm)
    x, shift, axes = noise(1, 2, *(12, 10)[:dims]), (5, -4)[:dims], tuple(range(2, 2 + dims))
    assert relative_error(circular(x.roll(shift, axes)), circular(x).roll(shift, axes)) < EXACT


@pytest.mark.parametrize("sigma", [0.1, 5.0])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mean", [None, -0.5])
def test_causal_padding_is_causal(sigma, dilation, mean):
    layer = make_layer(
        1, kernel_size=8, padding="causal", dilation=dilation, sigma=sigma, mean=mean, algorithm="direct"
    )
    assert_causal(layer, noise(2, 2, 12))
    with pytest.raises(AssertionError, match="in its future"):
        assert_causal(make_layer(1, kernel_size=7, sigma=sigma, dilation=dilation, algorithm="direct"), noise(2, 2, 12))


@pytest.mark.parametrize(("dims", "time"), [(2, 0), (2, 1), (3, 0)])
def test_causal_along_one_axis(dims, time):
    padding = ["same"] * dims
    padding[time] = "causal"
    layer = make_layer(dims, kernel_size=5, padding=tuple(padding), sigma=0.6, algorithm="direct")
    x = noise(1, 2, *(6, 7, 5)[:dims])
    for axis in range(dims):
        if axis == time:
            assert_causal(layer, x, axis=2 + axis)
        else:
            with pytest.raises(AssertionError, match="in its future"):
                assert_causal(layer, x, axis=2 + axis)


def test_last_tap_of_causal_kernel_multiplies_current_sample():
    layer = make_layer(1, 1, 1, kernel_size=8, padding="causal", sigma=5.0, bias=False)
    impulse = torch.zeros(1, 1, 12, dtype=torch.float64)
    impulse[..., 3] = 1
    response = layer(impulse)[0, 0]
    torch.testing.assert_close(response[3:11], whole_kernel(layer)[0, 0].flip(0))
    assert not response[:3].any()


@pytest.mark.parametrize("layer", [FlexConv1d, FlexConv2d, FlexConv3d])
def test_missing_weight_says_how_to_get_the_kernel(layer):
    conv = layer(2, 3, 5)
    with pytest.raises(AttributeError, match=rf"'{layer.__name__}'.*'weight'.*layer\.kernel\(\)"):
        _ = conv.weight
    assert not hasattr(conv, "weight")
    assert getattr(conv, "weight", None) is None
    with pytest.raises(AttributeError, match=r"no attribute 'wieght'$"):
        _ = conv.wieght
