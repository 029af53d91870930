"""`at_resolution`, compared with slow twins, and `recalibrate_batchnorm`."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import export

import flexconv
from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, refresh_extents
from flexconv.compat import from_authors
from flexconv.nn import GENERATORS, Axis, MAGNet, NJet
from flexconv.resolution import _resample_axis, at_resolution, recalibrate_batchnorm
from flexconv.spectrum import alias_penalty, max_frequency, measured_bandwidth
from flexconv.testing import assert_causal, assert_streaming_matches, resolution_error

from .conftest import Golden, relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
RATIOS = [2, 3, 1.5, 1.75, 1.3, 0.5, 0.75, 0.6]

tiny = partial(MAGNet, hidden=4, layers=1, input_scale=4.0)


def make(dims=1, kernel_size=17, *, sigma=0.2, mean=None, threshold=0.1, form="guarded", channels=(2, 3), **options):
    mask = GaussianMask(dims, sigma=sigma, mean=mean, threshold=threshold, form=form, dtype=torch.float64)
    options = {"generator": tiny, "mask": mask, "dtype": torch.float64} | options
    return LAYERS[dims](*channels, kernel_size, **options).requires_grad_()


def noise(layer, size=24):
    return torch.randn(2, layer.in_channels, *[size] * layer.dims, dtype=layer.generator.compute_dtype)


# --- slow twins -------------------------------------------------------------------------------------------------------


def whole_kernel(layer):
    """The kernel on the whole grid of a layer; cropped taps are 0."""
    return layer.sample([axis.whole for axis in layer.axes])


def line(axis):
    return [axis.first + tap * axis.spacing for tap in range(axis.size)]


def slow_profile(axis, other, mean, sigma, threshold):
    """One axis of a tapered mask, tap by tap in Python → values on `other`; `axis` determines the kept taps."""

    def gauss(x):
        return math.exp(-0.5 * ((x - mean) / sigma) ** 2)

    old = line(axis)
    kept = [tap for tap, x in enumerate(old) if threshold is None or gauss(x) > threshold]
    assert len(kept) >= axis.fewest_taps  # the minimum number of taps does not apply
    width, values = max(axis.spacing, other.spacing), []
    for x in line(other):
        share = 1.0
        if kept[0] > 0:  # half a spacing outside the last tap that is kept, the weight is ½
            share = min(share, 0.5 + (x - old[kept[0]] + axis.spacing / 2) / width)
        if kept[-1] < axis.size - 1:
            share = min(share, 0.5 + (old[kept[-1]] + axis.spacing / 2 - x) / width)
        values.append(gauss(x) * max(share, 0.0))
    return values


def slow_ends(axis, other):
    """The weights of the taps of `other` with which they cover the same interval as the taps of `axis`."""
    low, high = axis.first - axis.spacing / 2, axis.last + axis.spacing / 2
    weights = [1.0] * other.size
    weights[0] += (other.first - low) / other.spacing - 0.5
    weights[-1] += (high - other.last) / other.spacing - 0.5
    return weights


def outer(lines):
    product = torch.ones((), dtype=torch.float64)
    for values in lines:
        product = product.unsqueeze(-1) * torch.tensor(values, dtype=torch.float64)
    return product


@torch.no_grad()
def slow_kernel(layer, other):
    """The kernel of a layer on the grid of `other`, written from the docstring of the module."""
    spacing = [math.prod(axis.spacing for axis in each.axes) for each in (layer, other)]
    points = torch.stack(
        torch.meshgrid(*(torch.tensor(line(a), dtype=torch.float64) for a in other.axes), indexing="ij")
    )
    pairs = list(zip(layer.axes, other.axes, strict=True))
    window = ends = outer([slow_ends(*pair) for pair in pairs])
    if layer.mask is not None:
        mean, sigma, threshold = layer.mask.mean.tolist(), layer.mask.sigma.tolist(), layer.mask.threshold
        before = outer([slow_profile(a, a, m, s, threshold) for (a, _), m, s in zip(pairs, mean, sigma, strict=True)])
        after = outer([slow_profile(*pair, m, s, threshold) for pair, m, s in zip(pairs, mean, sigma, strict=True)])
        window = after * ends
        window = window * (before.sum() * spacing[0]) / (window.sum() * spacing[1])
    values = layer.generator(points) * window * spacing[1] / spacing[0]
    return values.unflatten(0, (layer.out_channels, layer.in_channels // layer.groups))


TWINS = {
    "1D": make(),
    "2D": make(2, 9, sigma=(0.2, 0.4)),
    "3D": make(3, 7, sigma=0.3, channels=(1, 2)),
    "rectangular": make(2, (9, 17), channels=(1, 2)),
    "causal": make(padding="causal"),
    "causal rows": make(2, 9, sigma=0.4, padding=("causal", "same"), channels=(1, 2)),
    "valid": make(padding="valid"),
    "int padding": make(padding=3),
    "pair of paddings": make(padding=[(5, 1)]),
    "even": make(1, 16, padding="valid"),
    "even causal": make(1, 16, padding="causal"),
    "groups": make(channels=(4, 6), groups=2),
    "dilation": make(dilation=2),
    "off the centre": make(mean=0.6),
    "at the end": make(mean=-1.0, sigma=0.3),
    "far past": make(padding="causal", mean=-1.0),
    "wider than the grid": make(sigma=1.5),
    "no threshold": make(threshold=None),
    "low threshold": make(threshold=0.01),
    "no mask": make(mask=None),
    "no mask, causal": make(mask=None, padding="causal"),
    "no mask, 2D": make(2, 9, mask=None, channels=(1, 2)),
    "authors": make(form="authors"),
}


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", TWINS)
def test_kernel_matches_the_slow_twin(name, ratio):
    layer = TWINS[name]
    other = at_resolution(layer, ratio)
    expected = slow_kernel(layer, other)
    assert relative_error(whole_kernel(other), expected) < 1e-12
    kept = [
        (expected.abs().amax([axis for axis in range(expected.ndim) if axis != 2 + d]) > 1e-13).sum().item()
        for d in range(layer.dims)
    ]
    assert other.extent == tuple(kept)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 8, 17, 33])
@pytest.mark.parametrize("causal", [False, True])
def test_grid_covers_the_same_interval(kernel_size, causal, ratio):
    axis = Axis(kernel_size, causal)
    new = _resample_axis(axis, ratio, taper=True, weighted=True)
    weights = slow_ends(axis, new) if kernel_size > 1 else [1.0]
    assert sum(weights) * new.spacing == pytest.approx(axis.size * axis.spacing)
    assert min(weights) > 0
    if kernel_size > 1:
        assert new.spacing == pytest.approx(axis.spacing / ratio)
        assert abs(new.size - 1 - (axis.size - 1) * ratio) <= 1
        assert sum(new.ends) + new.size - 2 == pytest.approx(sum(weights))
    if kernel_size % 2 and not causal:
        assert new.size % 2 == 1  # there is still a tap at 0
        assert line(new)[new.size // 2] == 0


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_one_scale_applies_to_all_axes(dims):
    layer = make(dims, 7)
    one, each = at_resolution(layer, 2), at_resolution(layer, [2.0] * dims)
    assert one.axes == each.axes
    assert torch.equal(one.kernel(), each.kernel())
    assert one.kernel_size == (13,) * dims


def test_one_scale_per_axis():
    layer = make(2, (9, 17))
    other = at_resolution(layer, (1.5, 0.5))
    assert other.kernel_size == (13, 9)
    assert other.grid.scale == pytest.approx(1 / 0.75)
    same = at_resolution(layer, (1, 2))
    assert same.axes[0] == layer.axes[0]
    assert same(noise(layer)).shape == (2, 3, 24, 24)


# --- hard cropping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
@pytest.mark.parametrize("dims", [1, 2])
def test_hard_cropping_equals_a_larger_layer_with_the_same_parameters(dims, padding):
    layer = make(dims, 17, padding=padding)
    larger = make(dims, 33, padding=padding)
    larger.load_state_dict(dict(layer.state_dict()))
    other, x = at_resolution(layer, 2, crop="hard"), noise(layer, 40)
    assert other.extent == larger.extent
    assert relative_error(other.kernel(), larger.kernel() / 2**dims) < 1e-14
    assert relative_error(other(x) - layer.bias.view(-1, *[1] * dims), (larger(x)) / 2**dims) < 1e-12


def test_hard_cropping_equals_the_authors_sampling_scale():
    file = Golden("flexconv_2d_res1")
    size = int(file["cfg/max_kernel_size"]) if "cfg/max_kernel_size" in file else 9
    layer = from_authors(file.state, kernel_size=size)
    theirs = from_authors(file.state, kernel_size=2 * size - 1, sampling_scale=0.25)
    ours = at_resolution(layer, 2, crop="hard")
    assert ours.extent == theirs.extent
    x = file["in/x"].to(ours.bias.dtype)
    assert relative_error(ours(x), theirs(x)) < 1e-12


def test_kernel_sum_is_preserved():
    """The printed equation has the inverse of this factor, with which outputs grow with the number of taps."""
    layer = make(2, 17, sigma=0.3, threshold=None)
    with torch.no_grad():
        layer.generator.frequency.mul_(0.1)
    other = at_resolution(layer, 2, crop="hard")
    assert relative_error(other.kernel().sum((2, 3)), layer.kernel().sum((2, 3))) < 0.02


# --- the mask ---------------------------------------------------------------------------------------------------------


def mass(mask, axes):
    """The integral of the mask: the sum of its values times the weights and cell widths of the taps."""
    lines = [axis.coordinates(axis.whole, device=torch.device("cpu"), dtype=torch.float64) for axis in axes]
    ends = outer(
        [[a.ends[0], *[1.0] * (a.size - 2), a.ends[1]] if a.size > 1 else [a.ends[0] * a.ends[1]] for a in axes]
    )
    return ((mask(lines, axes) * ends).sum() * math.prod(axis.spacing for axis in axes)).item()


@given(
    sigma=st.floats(0.02, 3.0),
    mean=st.floats(-1.2, 1.2),
    scale=st.floats(0.4, 4.0),
    size=st.integers(2, 33),
    causal=st.booleans(),
    rotated=st.booleans(),
    threshold=st.sampled_from([0.1, 0.01, None]),
)
def test_mask_integral_is_preserved(sigma, mean, scale, size, causal, rotated, threshold):
    kind = partial(RotatedGaussianMask, angle=0.4) if rotated else partial(GaussianMask, 2)
    mask = kind(mean=(mean, mean / 2), sigma=(sigma, 2 * sigma), threshold=threshold, dtype=torch.float64)
    axes = Axis(size, causal), Axis(9, causal=False)
    before = mass(mask, axes)
    new = [
        _resample_axis(axis, ratio, taper=True, weighted=True) for axis, ratio in zip(axes, (scale, 1.7), strict=True)
    ]
    assert mass(mask, new) == pytest.approx(before, rel=1e-9)


@given(sigma=st.floats(0.05, 1.0), mean=st.floats(-1.0, 1.0), scale=st.floats(0.5, 4.0))
def test_mask_ends_where_the_old_taps_ended(sigma, mean, scale):
    layer = make(1, 33, sigma=sigma, mean=mean)
    other = at_resolution(layer, scale)
    (axis,), (new,) = layer.axes, other.axes
    (low, high), (first, last) = ends_of(layer), ends_of(other)
    reach = axis.spacing + max(new.spacing - axis.spacing, 0) / 2 + 1e-9
    assert low - reach <= first <= low + new.spacing
    assert high - new.spacing <= last <= high + reach


def ends_of(layer):
    """Coordinates of the first and the last tap within the extent."""
    (axis,), ((start, stop),) = layer.axes, layer.taps
    return line(axis)[start], line(axis)[stop - 1]


def test_rotated_mask():
    masks = [RotatedGaussianMask(sigma=(0.4, 0.15), angle=a, dtype=torch.float64) for a in (0.0, math.pi / 2)]
    straight, turned = (at_resolution(make(2, 17, mask=mask), 2) for mask in masks)
    assert straight.extent == turned.extent[::-1]
    lines = [axis.coordinates(axis.whole, device="cpu", dtype=torch.float64) for axis in straight.axes]
    window = straight.mask(lines, straight.axes)
    torch.testing.assert_close(window, turned.mask(lines, turned.axes).t())
    plain = at_resolution(make(2, 17, sigma=(0.4, 0.15)), 2)
    torch.testing.assert_close(window, plain.mask(lines, plain.axes))


# --- repeated resampling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crop", ["taper", "hard"])
@pytest.mark.parametrize("ratio", [2, 3, 1.5, 1.25, 1.3, (1.25, 2)])
def test_resampling_back_restores_the_layer(ratio, crop):
    layer = make(2, 17, sigma=0.3)
    inverse = [1 / r for r in ratio] if isinstance(ratio, tuple) else 1 / ratio
    back = at_resolution(at_resolution(layer, ratio, crop=crop), inverse, crop=crop)
    x = noise(layer)
    assert back.kernel_size == layer.kernel_size
    assert back.extent == layer.extent
    assert relative_error(back(x), layer(x)) < 1e-12


@pytest.mark.parametrize("padding", ["same", "causal", "valid", 8])
@pytest.mark.parametrize("crop", ["taper", "hard"])
@pytest.mark.parametrize("steps", [(2, 2), (1.5, 2), (0.5, 3), (2, 0.75)])
def test_two_steps_equal_one(steps, crop, padding):
    layer = make(1, 17, padding=padding, mean=0.3)
    two, one = layer, at_resolution(layer, math.prod(steps), crop=crop)
    for step in steps:
        two = at_resolution(two, step, crop=crop)
    x = noise(layer, 80)
    assert two.extent == one.extent
    assert relative_error(two(x), one(x)) < 1e-12


def test_taper_after_hard_cropping():
    layer = make()
    hard = at_resolution(layer, 2, crop="hard")
    both = at_resolution(hard, 2)
    assert tuple(axis.origin for axis in both.axes) == hard.axes
    assert relative_error(whole_kernel(both), slow_kernel(hard, both) * hard.grid.scale) < 1e-12
    assert all(axis.origin is None for axis in at_resolution(both, 0.5, crop="hard").axes)


# --- outputs ----------------------------------------------------------------------------------------------------------


def smooth_layer(dims=1, kernel_size=17, *, sigma=0.2, **options):
    torch.manual_seed(0)
    layer = make(dims, kernel_size, sigma=sigma, parametrization="paper", **options)
    with torch.no_grad():
        layer.generator.frequency.mul_(0.3)
    return layer


@pytest.mark.parametrize("ratio", [2, 3, 1.5, 0.5])
@pytest.mark.parametrize("padding", ["same", "causal", "valid", 4, [(6, 2)]], ids=str)
def test_outputs_agree_in_1d(padding, ratio):
    assert resolution_error(smooth_layer(1, 33, sigma=0.2, padding=padding), ratio, size=48) < 0.02


@pytest.mark.parametrize(
    ("dims", "size", "ratio"), [(2, 17, 2), (2, 17, (1.5, 2)), (2, (17, 33), 0.5), (3, 9, 2), (3, 9, (1.5, 1, 2))]
)
def test_outputs_agree_in_2d_and_3d(dims, size, ratio):
    assert resolution_error(smooth_layer(dims, size, sigma=0.3, channels=(1, 2)), ratio) < 0.04


@pytest.mark.parametrize(
    "options",
    [{"kernel_size": 16, "padding": "valid"}, {"groups": 2, "channels": (4, 4)}, {"dilation": 2}],
    ids=["even", "groups", "dilation"],
)
def test_outputs_agree_for_other_arguments(options):
    assert resolution_error(smooth_layer(**{"sigma": 0.25} | options), 2) < 0.03


@pytest.mark.parametrize("name", sorted(GENERATORS))
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
@pytest.mark.parametrize("dims", [1, 2])
def test_every_generator_can_be_resample_axis(name, masked, dims):
    mask = GaussianMask(dims, sigma=0.3, dtype=torch.float64) if masked else None
    layer = LAYERS[dims](2, 2, 17, generator=name, mask=mask, dtype=torch.float64).requires_grad_()
    if hasattr(layer.generator, "scale"):
        with torch.no_grad():
            layer.generator.scale.fill_(1.0)
    other = at_resolution(layer, 2)
    if not layer.generator.conserves_sum:
        assert relative_error(whole_kernel(other), slow_kernel(layer, other)) < 1e-12
    other(noise(layer, 33)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in other.parameters())
    x = noise(layer)
    assert relative_error(at_resolution(other, 0.5)(x), layer(x)) < 1e-12


@pytest.mark.parametrize("ratio", [2, 1.5, 0.5])
@pytest.mark.parametrize("dims", [1, 2])
def test_njet_scales_its_sigma_and_needs_no_factor(dims, ratio):
    layer = LAYERS[dims](1, 2, 17, generator=partial(NJet, order=2, reach=4.0), mask=None, dtype=torch.float64)
    with torch.no_grad():
        layer.generator.scale.fill_(1.0)
    other = at_resolution(layer, ratio)
    assert other.grid.scale == 1.0
    sigmas = [each.generator._unit()[0] * 2 / each.axes[0].spacing for each in (layer, other)]
    assert sigmas[1] == pytest.approx(ratio * sigmas[0])  # in samples
    bounds = [max_frequency(each) for each in (layer, other)]
    torch.testing.assert_close(*bounds)
    assert relative_error(other.kernel().flatten(2).sum(2), layer.kernel().flatten(2).sum(2)) < 0.02


def test_error_decreases_with_resolution():
    """Compared with the integral ∫ x(t + u) ψ(u) du, computed as a dense sum in float64 without a layer."""
    layer = make(1, 9, sigma=0.25, threshold=None, channels=(1, 3), bias=False, parametrization="paper")
    with torch.no_grad():
        layer.generator.frequency.mul_(2.0)
    (axis,) = layer.axes

    def signal(t):
        return torch.sin(2.1 * t + 0.4) + torch.cos(3.3 * t)

    with torch.no_grad():
        u = torch.linspace(-1, 1, 4001, dtype=torch.float64)
        window = torch.exp(-0.5 * (u / 0.25).square())
        values = layer.generator(u.unsqueeze(0)) * window  # [3, 4001]
        times = torch.arange(20, 30, dtype=torch.float64) * axis.spacing
        truth = torch.einsum("nu,cu->cn", signal(times[:, None] + u), values) * (u[1] - u[0]) / axis.spacing
        errors = []
        for ratio in (1, 2, 4):
            other = at_resolution(layer, ratio) if ratio > 1 else layer
            x = signal(torch.arange(50 * ratio, dtype=torch.float64) * axis.spacing / ratio)
            errors.append(relative_error(other(x[None, None])[0][:, 20 * ratio : 30 * ratio : ratio], truth))
    assert errors[0] > 10 * errors[1]
    assert errors[1] >= errors[2] - 1e-4
    assert errors[2] < 2e-3  # the value of the Gaussian at ±1


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0])
def test_refining_converges(padding, sigma):
    """Every further doubling changes outputs less, with crops, grid ends and causal ends."""
    layer = smooth_layer(1, 17, sigma=sigma, padding=padding)
    steps = [resolution_error(at_resolution(layer, ratio), 2, size=32 * ratio) for ratio in (2, 4, 8)]
    assert steps[0] > 1.9 * steps[1]
    assert steps[1] > 1.9 * steps[2]


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("sigma", [0.075, 0.15])
def test_taper_is_more_accurate_than_hard_cropping(dims, padding, sigma):
    layers = []
    for _ in range(4):
        layers.append(make(dims, 17, sigma=sigma, padding=padding, channels=(4, 4), generator="magnet"))
        with torch.no_grad():
            layers[-1].generator.frequency.mul_(0.2)
    errors = {crop: sum(resolution_error(layer, 2, crop=crop) for layer in layers) for crop in ("taper", "hard")}
    assert errors["taper"] < 0.9 * errors["hard"]


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("padding", [8, [(16, 0)], [(0, 16)], [(11, 5)], "same", "causal"], ids=str)
def test_output_stays_as_long_as_its_input(padding, ratio):
    layer = make(1, 17, padding=padding)
    other, x = at_resolution(layer, ratio), noise(layer, 50)
    assert other(x).shape[-1] == 50
    assert min(other.pads[0]) >= 0


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", [3, [(5, 1)], [(20, 0)], [(-1, 4)]], ids=str)
def test_padding_in_samples_is_scaled(padding, dilation):
    layer = make(1, 17, padding=padding, dilation=dilation)
    (left, right), (other,) = layer.pads[0], at_resolution(layer, 2).pads
    assert other == (2 * left, 2 * right)


def test_named_padding_is_kept():
    layer = make(2, 17, padding=("causal", 4))
    other = at_resolution(layer, 2)
    assert other.padding == ("causal", (8, 8))
    assert [axis.causal for axis in other.axes] == [True, False]
    assert at_resolution(make(padding="valid"), 1.5).padding == "valid"


# --- copies and training ----------------------------------------------------------------------------------------------


def model_of_two():
    return nn.Sequential(
        make(2, 9, channels=(1, 4)), nn.BatchNorm2d(4), nn.ReLU(), make(2, 9, channels=(4, 2))
    ).double()


@pytest.mark.parametrize("copy_it", [True, False])
def test_original_is_unchanged(copy_it):
    model = model_of_two()
    x, before = noise(model[0]), copy.deepcopy(model.state_dict())
    model.eval()
    with torch.no_grad():
        y, attributes = model(x), {k: v for k, v in model[0].__dict__.items() if k[0] != "_"}
        at_resolution(model, 2, copy=copy_it)(x)
        assert torch.equal(model(x), y)
    assert {k: v for k, v in model[0].__dict__.items() if k[0] != "_"} == attributes
    assert not model[0].grid.resampled
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_copy_shares_no_parameters_or_buffers():
    model = model_of_two()
    other = at_resolution(model, 2)
    theirs = {t.data_ptr() for t in [*other.parameters(), *other.buffers()]}
    assert not theirs & {t.data_ptr() for t in [*model.parameters(), *model.buffers()]}
    train(other, noise(model[0]))
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def train(model, x, steps=2, lr=0.01):
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()


def test_without_copy_training_one_trains_both():
    model = model_of_two()
    other = at_resolution(model, 2, copy=False)
    assert other is not model
    assert all(a is b for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(a is b for a, b in zip(model.buffers(), other.buffers(), strict=True))
    x = noise(model[0])
    before = model(x)
    train(other, x)
    after = model(x)
    assert relative_error(after, before) > 1e-6
    train(model, x)
    torch.testing.assert_close(at_resolution(model, 2)(x), other(x))
    assert model[0].kernel_size == (9, 9)


def test_shared_layer_is_resampled_once():
    layer = make(1, 9, channels=(2, 2))
    model = nn.Sequential(layer, nn.ReLU(), layer)
    other = at_resolution(model, 2)
    assert other[0] is other[2]
    assert other[0].kernel_size == (17,)


def test_shared_mask_stays_shared():
    mask = GaussianMask(1, sigma=0.3, dtype=torch.float64)
    model = nn.Sequential(make(mask=mask, channels=(2, 2)), make(mask=mask, channels=(2, 2)))
    other = at_resolution(model, 2)
    assert other[0].mask is other[1].mask
    alone = at_resolution(model[1], 2)
    x = noise(model[0])
    torch.testing.assert_close(other[1](x), alone(x))


def test_fine_tuning_changes_extents():
    other = at_resolution(make(2, 9, sigma=0.2, channels=(1, 2)), 2)
    x, before = noise(other, 20), other.extent
    with torch.no_grad():
        teacher = copy.deepcopy(other)
        teacher.mask.set_(sigma=0.5)
        target = teacher(x)
    optimiser, losses = torch.optim.Adam(other.parameters(), lr=0.02), []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (other(x) - target).square().mean()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in other.parameters())
        assert (other.mask.sigma.grad != 0).all()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(after > size for after, size in zip(other.extent, before, strict=True))


def test_gradcheck():
    layer = make(1, 9, sigma=0.3, mean=0.2)
    other = at_resolution(layer, 1.75)
    x = noise(layer, 12)
    assert torch.autograd.gradcheck(
        lambda mean, sigma: torch.func.functional_call(other, {"mask.mean": mean, "mask.sigma": sigma}, (x,)),
        [other.mask.mean.detach().requires_grad_(), other.mask.sigma.detach().requires_grad_()],
    )


# --- other features ---------------------------------------------------------------------------------------------------


def test_extent_follows_the_mask():
    layer = make(2, 17, sigma=0.1)
    other = at_resolution(layer, 2)
    assert layer.extent == (3, 3)
    assert other.extent == (7, 7)  # 3 taps become 5, plus one on each ramp
    for each in (layer, other):
        each.mask.set_(sigma=0.3)
    assert layer.extent == (11, 11)
    assert other.extent == (23, 23)
    assert refresh_extents(nn.Sequential(other)) == {"0": (23, 23)}


def test_alias_penalty_uses_the_new_nyquist_frequency():
    layer = make(2, 17, sigma=0.3, generator=partial(MAGNet, hidden=4, layers=1))
    bound = max_frequency(layer)
    for ratio in (2, 0.5, 1.3):
        other = at_resolution(layer, ratio)
        torch.testing.assert_close(max_frequency(other), bound)
        limit = 4 * ratio
        expected = torch.relu(bound - limit).square().sum()
        penalty = alias_penalty(other, mask=True, method="per_kernel", formula="exact", weight=1.0)
        torch.testing.assert_close(penalty, expected)
    assert measured_bandwidth(at_resolution(layer, 2)) == pytest.approx(measured_bandwidth(layer), rel=0.1)


@pytest.mark.parametrize(("kind", "ratio"), [("2D", 2), ("far past", 1.3), ("no mask", 0.6)])
def test_compiles_into_one_graph(kind, ratio):
    other = at_resolution(TWINS[kind], ratio)
    x = noise(other)
    compiled = torch.compile(other, fullgraph=True, backend="eager")
    for refresh in (False, True):
        if refresh:
            refresh_extents(other)
        assert relative_error(compiled(x), other(x)) < 1e-12
    compiled(x).sum().backward()
    assert other.generator.frequency.grad is not None


def test_exports():
    other = at_resolution(make(1, 9), 2).eval()
    x = noise(other)
    program = export(other, (x,))
    assert relative_error(program.module()(x), other(x)) < 1e-12


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("crop", ["taper", "hard"])
def test_can_be_copied_and_pickled(copied, crop):
    other = at_resolution(make(2, 9), 1.5, crop=crop)
    x = noise(other)
    other(x)
    again = copied(other)
    assert again.axes == other.axes
    assert torch.equal(again(x), other(x))


@pytest.mark.parametrize("crop", ["taper", "hard"])
def test_state_dicts_are_interchangeable(crop):
    layer, x = make(1, 9), noise(make(1, 9))
    other = at_resolution(make(1, 9), 2, crop=crop)
    assert list(other.state_dict()) == list(layer.state_dict())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), at_resolution(layer, 2, crop=crop)(x))
    train(other, x)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(at_resolution(layer, 2, crop=crop)(x), other(x))
    with pytest.raises(RuntimeError, match="9 taps"):  # there, the parameters would mean another kernel
        make(1, 17).load_state_dict(other.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype):
    layer = make(2, 9)
    reference = at_resolution(layer, 2)
    lower = at_resolution(copy.deepcopy(layer).to(dtype), 2)
    x = noise(layer)
    y = lower(x.to(dtype))
    assert y.dtype == dtype
    assert relative_error(y, reference(x)) < (1e-5 if dtype == torch.float32 else 0.1)
    assert lower.extent == reference.extent


def test_autocast():
    layer = make(2, 9, dtype=None, mask=GaussianMask(2, sigma=0.3))
    other = at_resolution(layer, 2)
    x = torch.randn(2, 2, 24, 24)
    with torch.autocast("cpu", torch.bfloat16):
        y = other(x)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, other(x)) < 0.02


@pytest.mark.parametrize("ratio", [2, 1.5, 0.5])
def test_causal_model_streams_and_stays_causal(ratio):
    layers = [make(1, 9, padding="causal", channels=(2, 2)) for _ in range(2)]
    other = at_resolution(nn.Sequential(layers[0], nn.ReLU(), layers[1]), ratio)
    x = noise(layers[0], 30)
    assert_streaming_matches(other, x, [7, 1, 22], rtol=1e-10)
    assert_causal(other, x[..., :12])


def test_sequences_of_different_lengths():
    other = at_resolution(make(1, 9, sigma=0.5), 2)
    x = noise(other)
    y = other(x, lengths=[24, 11])
    torch.testing.assert_close(y[1:, :, :11], other(x[1:, :, :11]))


def test_kernel_cache_is_not_shared_with_the_original():
    layer = make().eval()
    x = noise(layer)
    with torch.no_grad():
        before = layer(x)
        other = at_resolution(layer, 2)
        assert other._provider._cache._entry is None
        assert relative_error(other(x), before) > 0.01
        assert torch.equal(layer(x), before)


def test_axis_with_one_tap_is_not_resampled():
    layer = make(2, (1, 9))
    other = at_resolution(layer, 2)
    assert other.kernel_size == (1, 17)
    assert other.grid.scale == 0.5


@pytest.mark.parametrize("rotated", [False, True])
def test_narrow_mask_between_taps_of_a_coarse_grid_is_finite(rotated):
    kind = partial(RotatedGaussianMask, angle=0.3) if rotated else partial(GaussianMask, 2)
    layer = make(2, 33, mask=kind(mean=0.3125, sigma=0.0208), dtype=None)
    kernel = at_resolution(layer, 0.1).kernel()
    assert kernel.isfinite().all()
    assert (kernel != 0).any()
    kernel.square().sum().backward()


@pytest.mark.parametrize("padding", ["same", "causal"])
def test_scale_down_to_one_tap(padding):
    layer = make(1, 5, sigma=0.5, padding=padding)
    other = at_resolution(layer, 0.1)
    assert other.kernel_size == (1,)
    assert other(noise(layer)).shape == (2, 3, 24)
    assert mass(other.mask, other.axes) == pytest.approx(mass(layer.mask, layer.axes))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0, -1, 0.0, math.inf, -math.inf, math.nan, (2, 0), [1.0, math.nan]], ids=str)
def test_rejects_scales_that_are_not_positive(scale):
    with pytest.raises(ValueError, match="scale must be positive"):
        at_resolution(make(2, 9), scale)


@pytest.mark.parametrize("scale", ["2", "22", None, ("2", 2), torch.ones(2), {2.0}], ids=str)
def test_rejects_scales_that_are_not_numbers(scale):
    with pytest.raises(TypeError, match="scale must be a number"):
        at_resolution(make(2, 9), scale)


@pytest.mark.parametrize("scale", [(2,), (2, 2, 2), ()], ids=str)
def test_rejects_wrong_number_of_scales(scale):
    with pytest.raises(ValueError, match=r"scale .*2D layer; got [(\[]"):
        at_resolution(make(2, 9), scale)


def test_model_with_1d_and_2d_layers_needs_one_scale():
    model = nn.ModuleList([make(2, 9), make(1, 9)])
    before = [layer.kernel_size for layer in model]
    with pytest.raises(ValueError, match=r"scale .*1D layer; got \(2, 2\)"):
        at_resolution(model, (2, 2))
    assert [layer.kernel_size for layer in model] == before
    assert [layer.kernel_size for layer in at_resolution(model, 2)] == [(17, 17), (17,)]


def test_rejects_unknown_crop_and_models_without_flexconv_layers():
    with pytest.raises(ValueError, match=r"crop 'tapered'.*did you mean 'taper'"):
        at_resolution(make(), 2, crop="tapered")
    with pytest.raises(ValueError, match="Conv1d has no FlexConv layer"):
        at_resolution(nn.Conv1d(1, 1, 3), 2)


# --- batch norms ------------------------------------------------------------------------------------------------------


def with_norms():
    return nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3, momentum=0.3), nn.ReLU(), nn.Dropout(0.9), nn.BatchNorm1d(3)
    )


def test_statistics_are_the_mean_over_batches():
    model = with_norms()
    batches = [torch.randn(4, 2, 10) for _ in range(3)]
    recalibrate_batchnorm(model, batches)
    first = [model[0](x) for x in batches]  # [4, 3, 8]
    mean = torch.stack([y.mean((0, 2)) for y in first]).mean(0)
    variance = torch.stack([y.transpose(0, 1).flatten(1).var(1) for y in first]).mean(0)
    torch.testing.assert_close(model[1].running_mean, mean)
    torch.testing.assert_close(model[1].running_var, variance)
    # the input of the second norm is normalised with batch statistics, and without dropout
    second = [
        torch.relu(torch.nn.functional.batch_norm(y, None, None, model[1].weight, model[1].bias, True)) for y in first
    ]
    torch.testing.assert_close(model[4].running_mean, torch.stack([y.mean((0, 2)) for y in second]).mean(0))
    assert model[4].num_batches_tracked.item() == 3


def test_earlier_statistics_are_discarded():
    model = with_norms()
    x = torch.randn(4, 2, 10)
    recalibrate_batchnorm(model, [x])
    expected = copy.deepcopy(model.state_dict())
    model.train()(100 * torch.randn(4, 2, 10))
    recalibrate_batchnorm(model, [x])
    torch.testing.assert_close(model.state_dict(), expected)


def test_batches_may_have_labels_and_come_from_a_generator():
    model, again = with_norms(), with_norms()
    again.load_state_dict(model.state_dict())
    batches = [torch.randn(4, 2, 10) for _ in range(2)]
    recalibrate_batchnorm(model, ((x, torch.zeros(4)) for x in batches))
    recalibrate_batchnorm(again, batches)
    torch.testing.assert_close(model.state_dict(), again.state_dict())


def settings_of(model):
    modes = [module.training for module in model.modules()]
    return modes, [module.momentum for module in model.modules() if isinstance(module, nn.BatchNorm1d)]


def mixed_modes():
    model = with_norms().train()
    model[1].eval()
    model[4].momentum = None
    return model


def test_modes_momenta_and_gradients_are_unchanged():
    model = mixed_modes()
    before = settings_of(model)
    recalibrate_batchnorm(model, [torch.randn(4, 2, 10)])
    assert settings_of(model) == before
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([torch.randn(4, 2, 10), torch.randn(4, 5, 10)], "expected input"),
        ([], "at least one batch"),
        ([torch.randn(4, 2, 10), torch.full((4, 2, 10), math.nan)], "of 1 over 2 batches .*not finite"),
        (torch.randn(4, 2, 10), r"\(4, 2, 10\).*\[tensor\]"),
    ],
    ids=["wrong batch", "none", "nan", "no list"],
)
def test_failure_leaves_the_model_unchanged(batches, message):
    model = mixed_modes()
    before, state = settings_of(model), copy.deepcopy(model.state_dict())
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
        recalibrate_batchnorm(model, batches)
    assert settings_of(model) == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("model", [nn.Conv1d(1, 1, 1), nn.BatchNorm1d(2, track_running_stats=False)])
def test_rejects_models_without_running_statistics(model):
    with pytest.raises(ValueError, match=f"{type(model).__name__} has no batch norm"):
        recalibrate_batchnorm(model, [torch.randn(2, 2, 2)])


def test_recalibration_after_at_resolution():
    model = nn.Sequential(make(2, 9, channels=(1, 4)), nn.BatchNorm2d(4)).double()
    other = flexconv.at_resolution(model, 2)
    x = noise(model[0])
    flexconv.recalibrate_batchnorm(other, [x])
    y = other.eval()(x)
    assert y.mean((0, 2, 3)).abs().max() < 1e-9
    assert (model[1].running_mean == 0).all()


def test_resampling_back_restores_even_kernels_and_single_taps():
    even = make(1, 4, padding=[(1, 2)])
    assert at_resolution(at_resolution(even, 2), 0.5).kernel_size == (4,)
    single = at_resolution(make(1, 5), 0.1)
    assert single.kernel_size == (1,)
    assert at_resolution(single, 10).kernel_size == (5,)


def test_mask_shared_by_layers_with_different_grids():
    mask = GaussianMask(1, sigma=0.2)
    shared = nn.Sequential(FlexConv1d(1, 1, 17, mask=mask), FlexConv1d(1, 1, 33, mask=mask))
    alone = [FlexConv1d(1, 1, size, mask=GaussianMask(1, sigma=0.2)) for size in (17, 33)]
    resampled = at_resolution(shared, 2)
    assert [layer.extent for layer in resampled] == [at_resolution(layer, 2).extent for layer in alone]
