"""Invalid arguments and inputs raise errors that name the offending value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, refresh_extents
from flexconv.nn import KernelGenerator, MAGNet, NJet
from tests.conftest import mentions
from tests.nn.helpers import LAYERS, tiny_magnet


def make_layer(dims=1, in_channels=2, out_channels=4, kernel_size=9, **options):
    return LAYERS[dims](in_channels, out_channels, kernel_size, **{"generator": tiny_magnet} | options)


# --- arguments --------------------------------------------------------------------------------------------------------

BAD_ARGUMENTS = {
    "zero input channels": ({"in_channels": 0}, ValueError, ["in_channels", "0"]),
    "fractional channels": ({"out_channels": 2.5}, TypeError, ["out_channels", "2.5"]),
    "in_channels not divisible by groups": (
        {"in_channels": 3, "groups": 2},
        ValueError,
        ["in_channels", "3", "divisible", "groups", "2"],
    ),
    "out_channels not divisible by groups": (
        {"in_channels": 6, "out_channels": 4, "groups": 3},
        ValueError,
        ["out_channels", "4", "divisible", "groups", "3"],
    ),
    "zero groups": ({"groups": 0}, ValueError, ["groups", "0"]),
    "zero kernel_size": ({"kernel_size": 0}, ValueError, ["kernel_size", "1", "0"]),
    "negative kernel_size": ({"kernel_size": -3}, ValueError, ["kernel_size", "-3"]),
    "fractional kernel_size": ({"kernel_size": 2.5}, TypeError, ["kernel_size", "2.5"]),
    "string as kernel_size": ({"kernel_size": "9"}, TypeError, ["kernel_size", "'9'"]),
    "bool as kernel_size": ({"kernel_size": True}, TypeError, ["kernel_size", "True"]),
    "kernel_size with too many entries": ({"kernel_size": (3, 5)}, ValueError, ["kernel_size", "1", "(3, 5)"]),
    "negative entry of kernel_size": ({"dims": 2, "kernel_size": (3, -5)}, ValueError, ["kernel_size", "(3, -5)"]),
    "fractional entry of kernel_size": ({"dims": 2, "kernel_size": (3, 5.0)}, TypeError, ["kernel_size", "(3, 5.0)"]),
    "kernel_size with too few entries": (
        {"dims": 3, "kernel_size": (3, 5)},
        ValueError,
        ["kernel_size", "3", "(3, 5)"],
    ),
    "complex dtype": ({"dtype": torch.complex64}, TypeError, ["dtype", "floating-point", "complex64"]),
    "integer dtype": ({"dtype": torch.int64}, TypeError, ["dtype", "floating-point", "int64"]),
    "name of a dtype": ({"dtype": "float32"}, TypeError, ["dtype", "'float32'"]),
    "zero stride": ({"stride": 0}, ValueError, ["stride", "1", "0"]),
    "stride with too many entries": ({"stride": (1, 2)}, ValueError, ["stride", "(1, 2)"]),
    "negative dilation": ({"dilation": -1}, ValueError, ["dilation", "-1"]),
    "even kernel_size with same padding": ({"kernel_size": 8}, ValueError, ["'same'", "odd", "8", "7", "9"]),
    "even entry of kernel_size with same padding": (
        {"dims": 2, "kernel_size": (8, 9), "padding": ("same", "valid")},
        ValueError,
        ["'same'", "odd", "8"],
    ),
    "unknown padding": ({"padding": "cusal"}, ValueError, ["padding", "'cusal'", "'causal'?"]),
    "unknown padding of one axis": (
        {"dims": 2, "padding": ("same", "valit")},
        ValueError,
        ["padding", "'valit'", "'valid'?"],
    ),
    "padding with too many entries": ({"padding": (3, 4)}, ValueError, ["padding", "1", "(3, 4)"]),
    "padding with too few entries": (
        {"dims": 3, "padding": ("same", 1)},
        ValueError,
        ["padding", "3", "('same', 1)"],
    ),
    "fractional padding": ({"padding": 2.5}, TypeError, ["padding", "2.5"]),
    "None as padding": ({"padding": None}, TypeError, ["padding", "None"]),
    "bool as padding": ({"padding": True}, TypeError, ["padding", "True"]),
    "three numbers as padding of one axis": ({"padding": [(1, 2, 3)]}, TypeError, ["padding", "(1, 2, 3)"]),
    "unknown padding mode": (
        {"padding_mode": "reflct"},
        ValueError,
        ["padding_mode", "'reflct'", "'reflect'?"],
    ),
    "unknown algorithm": ({"algorithm": "dirct"}, ValueError, ["algorithm", "'dirct'", "'direct'?"]),
    "unknown generator": ({"generator": "magnt"}, ValueError, ["generator", "'magnt'", "'magnet'?"]),
    "unknown generator without a similar name": ({"generator": "zzz"}, ValueError, ["'zzz'", "'fourier'", "'siren'"]),
    "number as generator": ({"generator": 3}, TypeError, ["generator", "3", "magnet"]),
    "module that is not a generator": ({"generator": nn.Linear(1, 8)}, TypeError, ["KernelGenerator", "Linear"]),
    "function that does not return a generator": ({"generator": lambda *_, **__: 7}, TypeError, ["KernelGenerator"]),
    "generator with other channels": ({"generator": MAGNet(1, 7)}, ValueError, ["generator", "7", "8", "1D"]),
    "generator with other dims": ({"generator": MAGNet(2, 8)}, ValueError, ["generator", "2D", "1D"]),
    "unknown mask": ({"mask": "gausian"}, ValueError, ["mask", "'gausian'", "'gaussian'?"]),
    "mask with other dims": ({"mask": GaussianMask(2)}, ValueError, ["mask", "2", "1"]),
    "number as mask": ({"mask": 0.1}, TypeError, ["mask", "0.1"]),
    "class as mask": ({"mask": GaussianMask}, TypeError, ["mask", "GaussianMask'>"]),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_invalid_argument_raises(case):
    arguments, error, parts = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=mentions(*parts)):
        make_layer(**arguments)


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor], ids=["int64", "uint8", "tensor"])
def test_integer_types_are_converted_to_int(integer):
    layer = FlexConv2d(
        *(integer(2), integer(4), (integer(5), 3)),
        stride=integer(1),
        padding=(integer(1), (integer(2), 0)),
        dilation=[integer(1), integer(2)],
        groups=integer(2),
        generator=tiny_magnet,
    )
    assert str(layer) == str(
        FlexConv2d(2, 4, (5, 3), padding=(1, (2, 0)), dilation=(1, 2), groups=2, generator=tiny_magnet)
    )
    numbers = [layer.in_channels, layer.out_channels, layer.groups, *layer.kernel_size, *layer.stride, *layer.dilation]
    assert {type(number) for number in [*numbers, layer.padding[0], *layer.padding[1]]} == {int}
    assert layer(torch.randn(1, 2, 8, 8)).shape == (1, 4, 6, 6)
    assert type(FlexConv1d(1, 1, 5, padding=integer(2), generator=tiny_magnet).padding) is int


@pytest.mark.parametrize("value", [np.float64(5), np.True_, True, torch.tensor(5.0), np.array([5, 5])], ids=repr)
def test_non_integer_kernel_size_raises(value):
    with pytest.raises(TypeError, match=r"kernel_size.* int"):
        make_layer(kernel_size=value)


@pytest.mark.parametrize("arguments", [{"kernel_size": 8}, {"padding": "cusal"}, {"padding": [(1, 2, 3)]}], ids=str)
def test_invalid_padding_raises_before_output(arguments):
    with pytest.raises((ValueError, TypeError), match=r"8|cusal|\(1, 2, 3\)"):
        make_layer(**arguments)(torch.randn(1, 2, 20))


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_wrong_number_of_channels_raises(dims):
    size = (9, 9, 9)[:dims]
    for channels in (1, 3):
        shape = str((5, channels, *size))
        with pytest.raises(ValueError, match=mentions(f"FlexConv{dims}d", "in_channels", "2", shape)):
            make_layer(dims, kernel_size=3)(torch.randn(5, channels, *size))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_wrong_number_of_channels_of_unbatched_input_names_its_shape(dims):
    shape = (3, *(9, 9, 9)[:dims])
    with pytest.raises(ValueError, match=mentions("in_channels", "2", str(shape))):
        make_layer(dims, kernel_size=3)(torch.randn(*shape))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_wrong_number_of_dimensions_raises(dims):
    for shape in ((9,) * dims, (1, 1, 2, *(9,) * dims)):
        with pytest.raises(ValueError, match=mentions(f"FlexConv{dims}d", "[batch, 2,", str(shape))):
            make_layer(dims, kernel_size=3)(torch.randn(*shape))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_integer_or_complex_input_raises(dtype):
    with pytest.raises(TypeError, match=mentions("floating-point", str(dtype))):
        make_layer()(torch.ones(1, 2, 9).to(dtype))


@pytest.mark.parametrize("x", [np.ones((1, 2, 9), dtype=np.float32), [[1.0] * 9] * 2], ids=["array", "list"])
def test_input_that_is_not_a_tensor_raises(x):
    with pytest.raises(TypeError, match=mentions("FlexConv1d", "tensor", type(x).__name__)):
        make_layer()(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_input_with_another_dtype_raises(dtype):
    with pytest.raises(TypeError, match=mentions(str(dtype), "float32", ".to(")):
        make_layer()(torch.ones(1, 2, 9, dtype=dtype))
    with pytest.raises(TypeError, match=mentions("torch.float32", str(dtype))):
        make_layer(dtype=dtype)(torch.ones(1, 2, 9))


@pytest.mark.parametrize("sigma", [0.01, 5.0])  # the error depends on kernel_size, not on the extent
def test_input_too_small_for_valid_padding_raises(sigma):
    layer = make_layer(padding="valid", dilation=2, mask=GaussianMask(1, sigma=sigma))
    assert layer(torch.randn(1, 2, 17)).shape == (1, 4, 1)
    with pytest.raises(ValueError, match=mentions("(16,)", "too small", "(9,)", "'valid'", "(2,)")):
        layer(torch.randn(1, 2, 16))
    with pytest.raises(ValueError, match=mentions("(20, 8)", "too small", "(9, 9)")):
        make_layer(2, padding=("same", "valid"))(torch.randn(1, 2, 20, 8))


@pytest.mark.parametrize("padding", ["same", "causal", "valid", 20])
@pytest.mark.parametrize("shape", [(1, 2, 0), (2, 0)])
def test_input_without_samples_raises(padding, shape):
    with pytest.raises(ValueError, match=mentions("(0,)", "too small")):
        make_layer(padding=padding)(torch.randn(*shape))


@pytest.mark.parametrize(("mode", "size", "most"), [("reflect", 4, 3), ("circular", 3, 3)])
@pytest.mark.parametrize("sigma", [0.01, 5.0])
def test_padding_wider_than_input_raises(mode, size, most, sigma):
    layer = make_layer(padding_mode=mode, mask=GaussianMask(1, sigma=sigma))
    assert layer(torch.randn(1, 2, size + 1)).shape == (1, 4, size + 1)
    with pytest.raises(ValueError, match=mentions(repr(mode), str(size), str(most), "(9,)", "4")):
        layer(torch.randn(1, 2, size))
    assert make_layer(padding_mode="replicate")(torch.randn(1, 2, 1)).shape == (1, 4, 1)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["mean", "sigma"])
def test_non_finite_mask_parameter_raises(name, value):
    layer = make_layer()
    layer(torch.randn(1, 2, 9))
    layer.mask.set_(**{name: value})
    for use in (lambda: layer(torch.randn(1, 2, 9)), layer.kernel, lambda: layer.extent):
        with pytest.raises(ValueError, match=mentions("FlexConv1d", "(9,)", "finite", str(value))):
            use()
    with pytest.raises(ValueError, match=mentions("tail.0", "finite", str(value))):
        refresh_extents(nn.ModuleDict({"tail": nn.Sequential(layer)}))


def test_non_finite_scale_of_njet_raises():
    layer = make_layer(generator=NJet, mask=None)
    with torch.no_grad():
        layer.generator.scale.fill_(math.nan)
    with pytest.raises(ValueError, match=mentions("finite", "nan")):
        layer(torch.randn(1, 2, 9))


# dynamo instantiates every autograd.Function that it traces, which torch deprecates
@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["mean", "sigma"])
def test_nan_in_mask_gives_nan_in_compiled_code(name):
    """Compiled code cannot raise, so the output shows the error."""
    layer = make_layer(algorithm="direct")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert compiled(torch.randn(1, 2, 9)).isfinite().all()
    layer.mask.set_(**{name: math.nan})
    assert compiled(torch.randn(1, 2, 9)).isnan().all()


def test_nan_in_input_gives_nan():
    x = torch.randn(1, 2, 30)
    x[..., 15] = math.nan
    assert make_layer(algorithm="direct")(x).isnan().any()


def test_layer_accepts_generator_without_parameters():
    class Ramp(KernelGenerator):
        def evaluate(self, points):
            return points.sum(1, keepdim=True).expand(-1, self.channels)

        def reset_parameters(self):
            """Nothing to draw."""

    layer = make_layer(generator=Ramp(1, 8))
    assert layer(torch.randn(1, 2, 20)).shape == (1, 4, 20)


def test_kernel_argument_is_deprecated():
    with pytest.warns(DeprecationWarning, match="generator"):
        layer = FlexConv1d(1, 1, 9, kernel="siren")
    assert type(layer.generator).__name__ == "SIREN"
