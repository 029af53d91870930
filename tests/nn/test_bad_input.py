"""Whatever is wrong is refused at once, by a message that prints the wrong value and, where there is one, the right."""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, refresh_extents
from flexconv.nn import KernelGenerator, MAGNet, NJet

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}

tiny = partial(MAGNet, hidden=2, layers=1)


def make(dims=1, in_channels=2, out_channels=4, kernel_size=9, **options):
    return LAYERS[dims](in_channels, out_channels, kernel_size, **{"generator": tiny} | options)


def says(*parts):
    """A pattern for messages that hold all of these."""
    return "".join(f"(?=.*{re.escape(part)})" for part in parts)


# --- making a layer ---------------------------------------------------------------------------------------------------

BAD_ARGUMENTS = {
    "no input channels": ({"in_channels": 0}, ValueError, ["in_channels", "0"]),
    "half a channel": ({"out_channels": 2.5}, TypeError, ["out_channels", "2.5"]),
    "groups do not divide inputs": (
        {"in_channels": 3, "groups": 2},
        ValueError,
        ["in_channels (=3)", "divisible", "groups (=2)"],
    ),
    "groups do not divide outputs": (
        {"in_channels": 6, "out_channels": 4, "groups": 3},
        ValueError,
        ["out_channels (=4)", "divisible", "groups (=3)"],
    ),
    "no groups": ({"groups": 0}, ValueError, ["groups", "0"]),
    "no taps": ({"kernel_size": 0}, ValueError, ["kernel_size", "at least 1", "0"]),
    "negative taps": ({"kernel_size": -3}, ValueError, ["kernel_size", "-3"]),
    "fractional taps": ({"kernel_size": 2.5}, TypeError, ["kernel_size", "2.5"]),
    "a word for taps": ({"kernel_size": "9"}, TypeError, ["kernel_size", "'9'"]),
    "True taps": ({"kernel_size": True}, TypeError, ["kernel_size", "True"]),
    "taps for too many axes": ({"kernel_size": (3, 5)}, ValueError, ["kernel_size", "1 entries", "(3, 5)"]),
    "a negative axis": ({"dims": 2, "kernel_size": (3, -5)}, ValueError, ["kernel_size", "(3, -5)"]),
    "a fractional axis": ({"dims": 2, "kernel_size": (3, 5.0)}, TypeError, ["kernel_size", "(3, 5.0)"]),
    "taps for too few axes": ({"dims": 3, "kernel_size": (3, 5)}, ValueError, ["kernel_size", "3 entries", "(3, 5)"]),
    "no stride": ({"stride": 0}, ValueError, ["stride", "at least 1", "0"]),
    "strides for too many axes": ({"stride": (1, 2)}, ValueError, ["stride", "(1, 2)"]),
    "negative dilation": ({"dilation": -1}, ValueError, ["dilation", "-1"]),
    "an even grid cannot be centred": ({"kernel_size": 8}, ValueError, ["'same'", "odd", "8", "7 or 9"]),
    "an even axis cannot be centred": (
        {"dims": 2, "kernel_size": (8, 9), "padding": ("same", "valid")},
        ValueError,
        ["'same'", "odd", "8"],
    ),
    "unknown padding": ({"padding": "cusal"}, ValueError, ["padding", "'cusal'", "did you mean 'causal'"]),
    "unknown padding of an axis": (
        {"dims": 2, "padding": ("same", "valit")},
        ValueError,
        ["padding", "'valit'", "did you mean 'valid'"],
    ),
    "padding for too many axes": ({"padding": (3, 4)}, ValueError, ["padding", "1 entries", "(3, 4)"]),
    "padding for too few axes": (
        {"dims": 3, "padding": ("same", 1)},
        ValueError,
        ["padding", "3 entries", "('same', 1)"],
    ),
    "fractional padding": ({"padding": 2.5}, TypeError, ["padding", "2.5"]),
    "no padding": ({"padding": None}, TypeError, ["padding", "None"]),
    "True padding": ({"padding": True}, TypeError, ["padding", "True"]),
    "a triple of paddings": ({"padding": [(1, 2, 3)]}, TypeError, ["padding", "(1, 2, 3)"]),
    "unknown padding mode": (
        {"padding_mode": "reflct"},
        ValueError,
        ["padding_mode", "'reflct'", "did you mean 'reflect'"],
    ),
    "unknown algorithm": ({"algorithm": "dirct"}, ValueError, ["algorithm", "'dirct'", "did you mean 'direct'"]),
    "unknown generator": ({"generator": "magnt"}, ValueError, ["kernel", "'magnt'", "did you mean 'magnet'"]),
    "unknown generator, no neighbour": ({"generator": "zzz"}, ValueError, ["'zzz'", "'fourier'", "'siren'"]),
    "a number for a generator": ({"generator": 3}, TypeError, ["generator", "3", "magnet"]),
    "a module that is no generator": ({"generator": nn.Linear(1, 8)}, TypeError, ["KernelGenerator", "Linear"]),
    "a function that makes no generator": ({"generator": lambda *_, **__: 7}, TypeError, ["KernelGenerator"]),
    "a generator of other channels": ({"generator": MAGNet(1, 7)}, ValueError, ["7 channels in 1D", "= 8 in 1D"]),
    "a generator of other axes": ({"generator": MAGNet(2, 8)}, ValueError, ["8 channels in 2D", "= 8 in 1D"]),
    "unknown mask": ({"mask": "gausian"}, ValueError, ["mask", "'gausian'", "did you mean 'gaussian'"]),
    "a mask of other axes": ({"mask": GaussianMask(2)}, ValueError, ["2 axes", "1"]),
    "a number for a mask": ({"mask": 0.1}, TypeError, ["mask", "0.1"]),
    "a class for a mask": ({"mask": GaussianMask}, TypeError, ["mask", "GaussianMask'>"]),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_when_the_layer_is_made(case):
    arguments, error, parts = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=says(*parts)):
        make(**arguments)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor], ids=["int64", "uint8", "tensor"])
def test_whole_numbers_of_any_kind_become_plain_ints(kind):
    layer = FlexConv2d(
        *(kind(2), kind(4), (kind(5), 3)),
        stride=kind(1),
        padding=(kind(1), (kind(2), 0)),
        dilation=[kind(1), kind(2)],
        groups=kind(2),
        generator=tiny,
    )
    assert str(layer) == str(FlexConv2d(2, 4, (5, 3), padding=(1, (2, 0)), dilation=(1, 2), groups=2, generator=tiny))
    numbers = [layer.in_channels, layer.out_channels, layer.groups, *layer.kernel_size, *layer.stride, *layer.dilation]
    assert {type(number) for number in [*numbers, layer.padding[0], *layer.padding[1]]} == {int}
    assert layer(torch.randn(1, 2, 8, 8)).shape == (1, 4, 6, 6)
    assert type(FlexConv1d(1, 1, 5, padding=kind(2), generator=tiny).padding) is int


@pytest.mark.parametrize("value", [np.float64(5), np.True_, True, torch.tensor(5.0), np.array([5, 5])], ids=repr)
def test_other_numbers_are_no_sizes(value):
    with pytest.raises(TypeError, match="kernel_size must be an int"):
        make(kernel_size=value)


@pytest.mark.parametrize("arguments", [{"kernel_size": 8}, {"padding": "cusal"}, {"padding": [(1, 2, 3)]}])
def test_bad_padding_is_refused_at_the_latest_by_forward(arguments):
    with pytest.raises((ValueError, TypeError), match=r"8|cusal|\(1, 2, 3\)"):
        make(**arguments)(torch.randn(1, 2, 20))


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_wrong_channels(dims):
    size = (9, 9, 9)[:dims]
    for channels in (1, 3):
        shape = str((5, channels, *size))
        with pytest.raises(ValueError, match=says(f"FlexConv{dims}d", "in_channels=2", shape)):
            make(dims, kernel_size=3)(torch.randn(5, channels, *size))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_wrong_channels_of_an_unbatched_input_print_the_shape_the_user_gave(dims):
    shape = (3, *(9, 9, 9)[:dims])
    with pytest.raises(ValueError, match=says("in_channels=2", f"got {shape}")):
        make(dims, kernel_size=3)(torch.randn(*shape))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_wrong_number_of_axes(dims):
    for shape in ((9,) * dims, (1, 1, 2, *(9,) * dims)):
        with pytest.raises(ValueError, match=says(f"FlexConv{dims}d", "[batch, 2,", f"got {shape}")):
            make(dims, kernel_size=3)(torch.randn(*shape))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_inputs_that_are_not_real_numbers(dtype):
    with pytest.raises(TypeError, match=says("floating-point", str(dtype))):
        make()(torch.ones(1, 2, 9).to(dtype))


@pytest.mark.parametrize("x", [np.ones((1, 2, 9), dtype=np.float32), [[1.0] * 9] * 2])
def test_inputs_that_are_no_tensors(x):
    with pytest.raises(TypeError, match=says("FlexConv1d expects a tensor", type(x).__name__)):
        make()(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_inputs_of_another_precision(dtype):
    with pytest.raises(TypeError, match=says(str(dtype), "float32", ".to(")):
        make()(torch.ones(1, 2, 9, dtype=dtype))
    with pytest.raises(TypeError, match=says("torch.float32", str(dtype))):
        make(dtype=dtype)(torch.ones(1, 2, 9))


@pytest.mark.parametrize("sigma", [0.01, 5.0])  # whatever the current size, the grid decides
def test_inputs_too_small_for_a_valid_convolution(sigma):
    layer = make(padding="valid", dilation=2, mask=GaussianMask(1, sigma=sigma))
    assert layer(torch.randn(1, 2, 17)).shape == (1, 4, 1)
    with pytest.raises(ValueError, match=says("(16,)", "too small", "(9,)", "'valid'", "(2,)")):
        layer(torch.randn(1, 2, 16))
    with pytest.raises(ValueError, match=says("(20, 8)", "too small", "(9, 9)")):
        make(2, padding=("same", "valid"))(torch.randn(1, 2, 20, 8))


@pytest.mark.parametrize("padding", ["same", "causal", "valid", 20])
@pytest.mark.parametrize("shape", [(1, 2, 0), (2, 0)])
def test_inputs_without_samples(padding, shape):
    with pytest.raises(ValueError, match=says("(0,)", "too small")):
        make(padding=padding)(torch.randn(*shape))


@pytest.mark.parametrize(("mode", "size", "most"), [("reflect", 4, 3), ("circular", 3, 3)])
@pytest.mark.parametrize("sigma", [0.01, 5.0])
def test_padding_modes_wider_than_the_input(mode, size, most, sigma):
    layer = make(padding_mode=mode, mask=GaussianMask(1, sigma=sigma))
    assert layer(torch.randn(1, 2, size + 1)).shape == (1, 4, size + 1)
    with pytest.raises(ValueError, match=says(repr(mode), f"{size} samples", f"at most {most}", "(9,)", "4")):
        layer(torch.randn(1, 2, size))
    assert make(padding_mode="replicate")(torch.randn(1, 2, 1)).shape == (1, 4, 1)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["mean", "sigma"])
def test_a_mask_that_is_not_finite(name, value):
    layer = make()
    layer(torch.randn(1, 2, 9))
    with torch.no_grad():
        getattr(layer.mask, name).fill_(value)
    for use in (lambda: layer(torch.randn(1, 2, 9)), layer.kernel, lambda: layer.extent):
        with pytest.raises(ValueError, match=says("FlexConv1d(2, 4, kernel_size=(9,))", "finite", str(value))):
            use()
    with pytest.raises(ValueError, match=says("tail.0", "finite", str(value))):
        refresh_extents(nn.ModuleDict({"tail": nn.Sequential(layer)}))


def test_a_generator_scale_that_is_not_finite():
    layer = make(generator=NJet, mask=None)
    with torch.no_grad():
        layer.generator.scale.fill_(math.nan)
    with pytest.raises(ValueError, match=says("finite", "nan")):
        layer(torch.randn(1, 2, 9))


# dynamo makes an instance of every autograd.Function it traces, which torch calls deprecated
@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["mean", "sigma"])
def test_compiled_code_passes_nan_on(name):
    """It cannot raise, so it must not hide it: a mask of NaN is no mask of zeros."""
    layer = make(algorithm="direct")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert compiled(torch.randn(1, 2, 9)).isfinite().all()
    with torch.no_grad():
        getattr(layer.mask, name).fill_(math.nan)
    assert compiled(torch.randn(1, 2, 9)).isnan().all()


def test_nan_in_the_input_is_passed_on():
    x = torch.randn(1, 2, 30)
    x[..., 15] = math.nan
    assert make(algorithm="direct")(x).isnan().any()


def test_a_generator_without_parameters_works_like_any_other():
    class Ramp(KernelGenerator):
        def evaluate(self, points):
            return points.sum(1, keepdim=True).expand(-1, self.channels)

        def reset_parameters(self):
            """Nothing to draw."""

    layer = make(generator=Ramp(1, 8))
    assert layer(torch.randn(1, 2, 20)).shape == (1, 4, 20)
