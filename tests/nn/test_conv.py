"""FlexConv as arithmetic: whatever is cropped, the result is a plain convolution with the whole, uncropped kernel."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.func import functional_call

import flexconv.nn._conv as source
from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, ops
from flexconv.nn import GENERATORS, MAGNet
from flexconv.testing import assert_causal, assert_translation_equivariant
from tests.conftest import relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
TORCH_LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TORCH_CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
OPS = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
MODES = ("zeros", "reflect", "replicate", "circular")
EXACT = 1e-11  # relative error in float64

tiny = partial(MAGNet, hidden=3, layers=1)


def make(dims, in_channels=2, out_channels=2, kernel_size=7, *, sigma=0.2, mean=None, threshold=0.1, **options):
    """A small layer in float64, with a bias that is not 0."""
    options = {"generator": tiny, "dtype": torch.float64} | options
    if "mask" not in options:
        options["mask"] = GaussianMask(dims, sigma=sigma, mean=mean, threshold=threshold, dtype=options["dtype"])
    layer = LAYERS[dims](in_channels, out_channels, kernel_size, **options)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias)
    return layer


def noise(*shape, **options):
    return torch.randn(*shape, **{"dtype": torch.float64} | options)


def whole_kernel(layer):
    """Every tap of the grid, zeros where the mask crops."""
    return layer.sample(layer._extent.whole)


def full_pads(layer):
    """(left, right) per axis for the whole kernel, worked out afresh."""
    padding = layer.padding
    entries = [padding] * layer.dims if isinstance(padding, str | int) else padding
    pads = []
    for entry, taps, dilation in zip(entries, layer.kernel_size, layer.dilation, strict=True):
        reach = (taps - 1) * dilation
        named = {"same": (reach // 2, reach // 2), "causal": (reach, 0), "valid": (0, 0)}
        pads.append(named[entry] if isinstance(entry, str) else (entry, entry) if isinstance(entry, int) else entry)
    return pads


def pad_fully(layer, x):
    """The input with all the padding of the whole kernel, in the layer's mode; negative amounts cut off."""
    pads = full_pads(layer)
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    x = F.pad(x, [max(0, amount) for pair in reversed(pads) for amount in pair], mode=mode)
    return F.pad(x, [min(0, amount) for pair in reversed(pads) for amount in pair])


def plain_convolution(layer, x):
    """What the layer should compute, with nothing cropped anywhere: pad all, then convolve all."""
    weight = whole_kernel(layer)
    conv = TORCH_CONVS[layer.dims]
    return conv(pad_fully(layer, x), weight, layer.bias, layer.stride, 0, layer.dilation, layer.groups)


def nonzero_block(kernel):
    """The smallest box that holds everything of `kernel` [out, in, *taps] that is not 0."""
    mask = kernel.detach().abs().amax((0, 1)) > 0
    where = mask.nonzero()
    return kernel[(..., *(slice(int(a), int(b) + 1) for a, b in zip(where.amin(0), where.amax(0), strict=True)))]


def assert_plain(layer, *size, batch=2):
    x = noise(batch, layer.in_channels, *size)
    result, truth = layer(x), plain_convolution(layer, x)
    assert result.shape == truth.shape
    if truth.any():
        assert relative_error(result, truth) < EXACT
    else:  # every output reads padding only
        assert result.abs().max() < EXACT


# --- the same numbers as a plain convolution --------------------------------------------------------------------------

PADDINGS = {
    1: ["same", "valid", "causal", 0, 3, 11, ["same"], ["causal"], [2], [(4, 1)], [(0, 9)], -1, [(5, -2)], [(-3, 8)]],
    2: ["same", "valid", "causal", 2, (0, 3), ("causal", "same"), ("valid", 4), ((5, 1), "causal"), ((-1, 4), (2, -2))],
    3: ["same", "valid", "causal", 1, (0, 1, 2), ("causal", "same", "same"), ("valid", (2, 1), 3)],
}
SIZES = {1: ((9,), (20,)), 2: ((7, 9), (12, 10)), 3: ((3, 5, 5), (6, 5, 7))}


@pytest.mark.parametrize(("dims", "padding"), [(d, p) for d, all_of in PADDINGS.items() for p in all_of])
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_every_padding_equals_the_uncropped_convolution(dims, padding, algorithm):
    kernel_size, size = SIZES[dims]
    layer = make(dims, kernel_size=kernel_size, padding=padding, algorithm=algorithm)
    assert layer.extent != layer.kernel_size  # or nothing is tested
    assert_plain(layer, *size)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", ["same", "causal", 2, "valid"])
def test_every_padding_mode_equals_full_padding_then_a_valid_convolution(dims, mode, padding):
    size = {1: (12,), 2: (9, 8), 3: (6, 5, 7)}[dims]
    kernel_size = {1: 9, 2: (5, 7), 3: (3, 5, 5)}[dims]
    for mean in (0.0, 0.7, -0.9):
        layer = make(dims, kernel_size=kernel_size, padding=padding, padding_mode=mode, mean=mean)
        assert_plain(layer, *size)


@pytest.mark.parametrize("mode", MODES)
def test_mixed_paddings_and_modes(mode):
    for padding in [("causal", "same"), ((3, 0), "valid"), (1, (0, 4)), ((-2, 3), "same")]:
        layer = make(2, kernel_size=(6, 5), padding=padding, padding_mode=mode, mean=(0.5, -0.3))
        assert_plain(layer, 8, 9)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_strides_and_dilations(dims, stride, dilation, padding):
    layer = make(dims, kernel_size=5, stride=stride, dilation=dilation, padding=padding, mean=0.4)
    assert_plain(layer, *(17, 14)[:dims])


@pytest.mark.parametrize("algorithm", ["direct", "fft", "auto"])
@pytest.mark.parametrize(("channels", "groups"), [((4, 6), 2), ((4, 4), 4), ((3, 6), 3), ((3, 3), 1)])
def test_groups_down_to_depthwise(channels, groups, algorithm):
    layer = make(2, *channels, groups=groups, algorithm=algorithm)
    assert whole_kernel(layer).shape == (channels[1], channels[0] // groups, 7, 7)
    assert_plain(layer, 8, 9)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["causal", "valid", 3])
def test_even_grids(dims, padding):
    for mean in (None, 0.3):
        assert_plain(make(dims, kernel_size=(4, 6, 2)[:dims], padding=padding, mean=mean), *(7, 9, 8)[:dims])


def test_an_even_grid_may_be_same_where_an_even_dilation_centres_it():
    layer = make(1, kernel_size=4, dilation=2)
    assert layer.pads == ((3, 3),)
    assert_plain(layer, 11)


@pytest.mark.parametrize("sigma", [1e-9, 0.01, 0.05, 0.2, 0.5, 3.0, 100.0, -0.2])
@pytest.mark.parametrize("mean", [-5.0, -1.0, -0.6, 0.0, 0.31, 1.0])
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_any_sigma_and_mean(sigma, mean, padding):
    assert_plain(make(1, kernel_size=17, sigma=sigma, mean=mean, padding=padding), 20)


def test_an_off_centre_mask_is_cropped_on_both_sides():
    layer = make(1, kernel_size=65, sigma=0.05, mean=0.5)
    assert layer.extent == (7,)
    (start, stop), (used_from, used_to) = *layer.taps, *layer._extent.windows
    assert start > 40
    assert stop < 58
    assert used_from > 32
    assert used_to < 65
    assert_plain(layer, 70)
    assert_plain(layer, 9)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("sigma", [0.1, 10.0])
def test_inputs_smaller_than_the_kernel(dims, padding, sigma):
    for size in ((1, 1, 1), (3, 2, 4), (9, 1, 2)):
        for algorithm in ("direct", "fft"):
            layer = make(dims, kernel_size=13 if dims < 3 else 7, padding=padding, sigma=sigma, algorithm=algorithm)
            assert_plain(layer, *size[:dims])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unbatched_input_is_a_batch_of_one(dims, bias):
    layer = make(dims, bias=bias, kernel_size=5)
    x = noise(2, *(6, 7, 5)[:dims])
    torch.testing.assert_close(layer(x), layer(x[None])[0], rtol=0, atol=0)
    assert (layer.bias is not None) == bias


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_op_with_the_whole_kernel_gives_the_same(dims):
    layer = make(dims, kernel_size=5, stride=2, padding="causal")
    x = noise(2, 2, *(9, 4, 3)[:dims])
    truth = OPS[dims](x, whole_kernel(layer), layer.bias, stride=2, padding="causal", algorithm="reference")
    assert relative_error(layer(x), truth) < EXACT


@pytest.mark.parametrize("threshold", [None, 1e-4, 0.1, 0.9])
@pytest.mark.parametrize("mask", ["axes", "rotated"])
def test_any_threshold_and_a_turned_mask(threshold, mask):
    options = {"sigma": (0.1, 0.4), "mean": (0.2, -0.1), "threshold": threshold, "dtype": torch.float64}
    mask = RotatedGaussianMask(2, angle=0.6, **options) if mask == "rotated" else GaussianMask(2, **options)
    layer = make(2, kernel_size=(9, 11), mask=mask)
    assert (layer.extent == layer.kernel_size) == (threshold is None)
    assert_plain(layer, 12, 10)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", None])
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_every_generator(generator, mask, padding):
    for dims in (1, 2):
        mask_or_none = mask and GaussianMask(dims, sigma=0.15, dtype=torch.float64)
        layer = make(dims, kernel_size=9, generator=generator, mask=mask_or_none, padding=padding)
        assert_plain(layer, *(12, 10)[:dims])


@st.composite
def cases(draw):
    """A layer and the size of an input it accepts."""
    dims = draw(st.integers(1, 3))
    axis = range(dims)
    small = 7 if dims == 3 else 13
    kernel_size = [draw(st.integers(1, small)) for _ in axis]
    dilation = [draw(st.integers(1, 3)) for _ in axis]
    stride = [draw(st.integers(1, 3)) for _ in axis]
    mode = draw(st.sampled_from(MODES))
    padding, size = [], []
    for taps, spread in zip(kernel_size, dilation, strict=True):
        reach = (taps - 1) * spread
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
    layer = make(
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


@given(cases())
@settings(max_examples=250)
def test_cropped_equals_uncropped_whatever_the_arguments(case):
    layer, size = case
    assert_plain(layer, *size)
    block = layer.kernel()
    assert block.shape == (layer.out_channels, layer.in_channels // layer.groups, *layer.extent)


@given(cases())
@settings(max_examples=40)
def test_gradients_of_the_cropped_convolution_are_those_of_the_uncropped(case):
    layer, size = case
    x = noise(1, layer.in_channels, *size).requires_grad_()
    wanted = [x, *layer.parameters()]
    weights = torch.randn_like(layer(x))
    cropped = torch.autograd.grad((layer(x) * weights).sum(), wanted, allow_unused=True)
    plain = torch.autograd.grad((plain_convolution(layer, x) * weights).sum(), wanted, allow_unused=True)
    scale = max(1.0, *(p.abs().max().item() for p in plain if p is not None))
    for ours, theirs in zip(cropped, plain, strict=True):
        # taps that only meet padding are dropped: a missing gradient there is one of 0
        ours, theirs = (torch.zeros(()) if g is None else g for g in (ours, theirs))
        assert (ours - theirs).abs().max().item() < 1e-9 * scale


def test_only_the_window_is_computed(monkeypatch):
    """Cropping is not just zeros: the convolution gets a rung of the ladder."""
    sizes = []

    def spy(dims, x, weight, *rest):
        sizes.append(tuple(weight.shape[2:]))
        return ops._conv.conv_nd(dims, x, weight, *rest)

    monkeypatch.setattr(source, "conv_nd", spy)
    layer = make(2, kernel_size=33, sigma=0.075)
    layer(noise(1, 2, 40, 40))
    assert layer.extent == (5, 5)
    with torch.no_grad():
        layer.mask.sigma.copy_(torch.tensor([0.2, 3.0]))
    layer(noise(1, 2, 40, 40))
    assert layer.extent == (13, 33)
    assert sizes == [(5, 5), (17, 33)]


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["valid", 0, 1, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_output_shapes_are_those_of_torch(dims, padding, stride, dilation):
    arguments = (4, 6, (5, 3, 4)[:dims], stride, padding, dilation, 2)
    x = torch.randn(2, 4, *(14, 13, 12)[:dims])
    assert LAYERS[dims](*arguments, generator=tiny)(x).shape == TORCH_LAYERS[dims](*arguments)(x).shape


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_same_keeps_the_size_and_divides_it_by_the_stride(dims):
    for stride in (1, 2, 3, 4):
        for size in ((9, 8, 7), (4, 12, 5)):
            y = make(dims, kernel_size=5, stride=stride)(noise(1, 2, *size[:dims]))
            assert y.shape[2:] == tuple(math.ceil(n / stride) for n in size[:dims])


def test_positional_arguments_are_in_the_order_of_torch():
    layer = FlexConv2d(4, 6, 5, 2, 1, 3, 2, False, "reflect", "cpu", torch.float64)
    twin = nn.Conv2d(4, 6, 5, 2, 1, 3, 2, False, "reflect", "cpu", torch.float64)
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups", "bias", "padding_mode"):
        assert getattr(layer, name) == getattr(twin, name)
    assert next(layer.parameters()).dtype == torch.float64


# --- the kernel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("sigma", "mean"), [(0.2, None), (0.25, 0.4), (5.0, None), (1e-6, -0.7)])
def test_kernel_is_the_nonzero_block_of_the_whole(dims, groups, sigma, mean):
    layer = make(dims, 4, 2, kernel_size=(11, 9, 7)[:dims], groups=groups, sigma=sigma, mean=mean)
    kernel = layer.kernel()
    assert kernel.shape == (2, 4 // groups, *layer.extent)
    torch.testing.assert_close(kernel, nonzero_block(whole_kernel(layer)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("taps", [17, 31, 33, 49])
def test_extent_counts_what_the_graph_keeps_even_where_a_tap_lies_on_the_edge(taps, dtype):
    """σ whose threshold falls on a tap to the last bit, or to the bit before or after."""
    layer = make(1, kernel_size=taps, dtype=dtype)
    reach = math.sqrt(-2 * math.log(0.1))
    wrong = []
    for coordinate in torch.linspace(-1, 1, taps, dtype=dtype)[taps // 2 + 2 :]:
        exact = coordinate / reach
        below, above = (torch.nextafter(exact, torch.tensor(edge, dtype=dtype)) for edge in (0.0, 9.0))
        for sigma in (below, exact, above):
            with torch.no_grad():
                layer.mask.sigma.copy_(sigma)
            full = whole_kernel(layer)
            if layer.kernel().shape != nonzero_block(full).shape:
                wrong.append((sigma.item(), layer.extent, tuple(nonzero_block(full).shape[2:])))
            x = noise(1, 2, taps, dtype=dtype)
            assert relative_error(layer(x), plain_convolution(layer, x)) < 1e-5  # the window holds all of it anyway
    assert not wrong, f"(σ, extent, taps that are not 0): {wrong}"


def test_kernel_scale_multiplies_the_kernel():
    layer = make(1)
    before = layer.kernel()
    layer.grid = layer.grid._replace(scale=0.25)
    torch.testing.assert_close(layer.kernel(), 0.25 * before)
    assert_plain(layer, 10)


# --- equivariance and causality ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("dims", [1, 2])
def test_translation_equivariance(dims, algorithm):
    layer = make(dims, kernel_size=9, mean=0.2, algorithm=algorithm)
    assert_translation_equivariant(layer, noise(1, 2, *(40, 36)[:dims]), (3, -2)[:dims], margin=5, rtol=1e-10)
    around = make(dims, kernel_size=9, padding_mode="circular", mean=0.2, algorithm=algorithm)
    x, shift, axes = noise(1, 2, *(12, 10)[:dims]), (5, -4)[:dims], tuple(range(2, 2 + dims))
    assert relative_error(around(x.roll(shift, axes)), around(x).roll(shift, axes)) < EXACT


@pytest.mark.parametrize("sigma", [0.1, 5.0])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mean", [None, -0.5])
def test_causal_by_gradient(sigma, dilation, mean):
    layer = make(1, kernel_size=8, padding="causal", dilation=dilation, sigma=sigma, mean=mean, algorithm="direct")
    assert_causal(layer, noise(2, 2, 12))
    with pytest.raises(AssertionError, match="in its future"):
        assert_causal(make(1, kernel_size=7, sigma=sigma, dilation=dilation, algorithm="direct"), noise(2, 2, 12))


@pytest.mark.parametrize(("dims", "time"), [(2, 0), (2, 1), (3, 0)])
def test_causal_along_one_axis_only(dims, time):
    padding = ["same"] * dims
    padding[time] = "causal"
    layer = make(dims, kernel_size=5, padding=tuple(padding), sigma=0.6, algorithm="direct")
    x = noise(1, 2, *(6, 7, 5)[:dims])
    for axis in range(dims):
        if axis == time:
            assert_causal(layer, x, axis=2 + axis)
        else:
            with pytest.raises(AssertionError, match="in its future"):
                assert_causal(layer, x, axis=2 + axis)


def test_the_newest_tap_of_a_causal_kernel_meets_the_current_sample():
    layer = make(1, 1, 1, kernel_size=8, padding="causal", sigma=5.0, bias=False)
    impulse = torch.zeros(1, 1, 12, dtype=torch.float64)
    impulse[..., 3] = 1
    response = layer(impulse)[0, 0]
    torch.testing.assert_close(response[3:11], whole_kernel(layer)[0, 0].flip(0))
    assert not response[:3].any()


# --- gradients --------------------------------------------------------------------------------------------------------

SMALL = {name: {"hidden": 2, "layers": 2} for name in GENERATORS} | {
    "magnet": {"hidden": 2, "layers": 1},
    "gabor": {"hidden": 2, "layers": 1},
    "fourier": {"hidden": 2, "layers": 1},
    "njet": {"order": 2, "reach": 1.0},
}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", "rotated", None])
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_gradcheck(generator, mask, algorithm):
    window = {"mean": (0.11, -0.06), "sigma": (0.31, 0.42), "dtype": torch.float64}
    masks = {"gaussian": GaussianMask(2, **window), "rotated": RotatedGaussianMask(2, angle=0.4, **window), None: None}
    kernel = partial(GENERATORS[generator], **SMALL[generator])
    layer = make(2, 1, 1, (5, 7), generator=kernel, mask=masks[mask], algorithm=algorithm, padding=("causal", "same"))
    with torch.no_grad():
        for parameter in layer.generator.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))  # off the kinks of a ReLU
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    x = noise(1, 1, 4, 3).requires_grad_()
    assert gradcheck(run, (x, *parameters), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("dims", [1, 3])
def test_gradcheck_with_stride_dilation_and_groups(dims, algorithm):
    layer = make(
        dims, 2, 2, 4, stride=2, dilation=2, groups=2, padding="causal", mean=0.7, sigma=0.4, algorithm=algorithm
    )
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    x = noise(1, 2, *(5, 3, 2)[:dims]).requires_grad_()
    assert gradcheck(run, (x, *parameters), atol=1e-6, rtol=1e-4)


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_readme_example_runs_and_says_the_truth():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(block, names)
    layer = names["layer"]
    assert layer(torch.randn(8, 3, 32, 32)).shape == (8, 16, 32, 32)
    assert layer.extent == (5, 5)
    assert layer.kernel().shape == (16, 3, 5, 5)
    causal, x = names["causal"], torch.randn(2, 1, 100)
    names["stream"].reset()
    streamed = torch.cat([names["stream"](chunk) for chunk in x.split(20, -1)], -1)
    assert relative_error(streamed, causal(x)) < 1e-5
