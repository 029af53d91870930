"""The numbers of a page equal those of the layers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, at_resolution, create_model
from flexconv.explorer._channels import choose_channels
from flexconv.explorer._layer import _mask, shown_kernel
from flexconv.explorer._model import SCALES, model_numbers
from flexconv.explorer._pack import LARGEST, pack, unpack
from flexconv.nn import ChannelGaussianMask, FourierNet
from flexconv.sampling import continuous_kernel
from flexconv.spectrum import MUCH_FOLDED_ENERGY, energy_beyond_nyquist, folded_energy, max_frequency

OWN = SCALES.index(1.0)


def causal():
    return FlexConv1d(3, 4, 50, padding="causal", mask=GaussianMask(1, sigma=0.3))


def rectangular():
    return FlexConv2d(3, 2, (17, 9), mask=GaussianMask(2, mean=(0.1, -0.2), sigma=(0.2, 0.4)))


def rotated():
    return FlexConv2d(2, 2, (17, 11), mask=RotatedGaussianMask(2, mean=(0.1, 0.2), sigma=(0.4, 0.2), angle=0.5))


def unmasked():
    return FlexConv2d(2, 3, 9, mask=None)


def siren():
    return FlexConv1d(2, 2, 33, generator="siren")


def jet():
    return FlexConv2d(4, 4, 15, generator="njet", mask=None, groups=2)


def channelwise():
    mask = ChannelGaussianMask(1, 4, sigma=0.1, largest_sigma=0.5)
    return FlexConv1d(4, 4, 33, groups=4, mask=mask)


LAYERS = [causal, rectangular, rotated, unmasked, siren, jet, channelwise]


@pytest.fixture(params=LAYERS, ids=[make.__name__ for make in LAYERS])
def layer(request):
    torch.manual_seed(0)
    return request.param()


def numbers(layer):
    (only,) = model_numbers(layer)["layers"]
    return only


def kernel_of(layer, shown):
    """The channels of a layer's kernel that the page shows → [outs · ins, taps]."""
    kernel = layer.kernel().detach().double().numpy()[shown["outs"]][:, shown["ins"]]
    return kernel.reshape(len(shown["outs"]) * len(shown["ins"]), -1)


def assert_packed(packed, values):
    """Check that values agree within half a step of the integers and the precision of float32."""
    steps = np.abs(values).max(1, keepdims=True) / LARGEST
    assert (np.abs(unpack(packed) - values) <= 0.51 * steps + 1e-6 * steps * LARGEST).all()


def test_kernels_equal_those_of_the_layer_at_each_resolution(layer):
    shown = numbers(layer)
    for scale, version in zip(SCALES, shown["versions"], strict=True):
        resampled = layer if scale == 1 else at_resolution(layer, scale)
        assert tuple(version["extent"]) == resampled.extent
        (view,) = version["views"]
        assert view["projection"] is None
        assert_packed(view["slice"], kernel_of(resampled, shown))


def test_slabs_do_not_change_the_kernel(layer, monkeypatch):
    whole = shown_kernel(layer, ([1, 0], [0]))
    np.testing.assert_array_equal(whole, layer.kernel().detach().double().numpy()[[1, 0]][:, [0]])
    monkeypatch.setattr("flexconv.explorer._layer.POINTS", 2 * whole.shape[-1])
    np.testing.assert_allclose(shown_kernel(layer, ([1, 0], [0])), whole, atol=1e-5 * np.abs(whole).max())


def test_kernels_of_a_resampled_layer():
    torch.manual_seed(0)
    larger = at_resolution(rectangular(), 2)
    shown = numbers(larger)
    assert_packed(shown["versions"][OWN]["views"][0]["slice"], kernel_of(larger, shown))
    back = shown["versions"][SCALES.index(0.5)]
    assert_packed(back["views"][0]["slice"], kernel_of(at_resolution(larger, 0.5), shown))


def test_positions_are_in_taps_relative_to_the_current_sample(layer):
    shown = numbers(layer)
    for scale, version in zip(SCALES, shown["versions"], strict=True):
        resampled = layer if scale == 1 else at_resolution(layer, scale)
        taps = resampled.taps
        for d, (own, axis, (start, stop)) in enumerate(zip(layer.axes, resampled.axes, taps, strict=True)):
            x = (
                axis.coordinates((start, stop), device=torch.device("cpu"), dtype=torch.float64) - own.current
            ) / own.spacing
            drawn = version["first"][d] + version["step"][d] * np.arange(version["extent"][d])
            np.testing.assert_allclose(drawn, x.numpy(), atol=1e-9)
    for (first, last), axis in zip(shown["field"], layer.axes, strict=True):
        assert last - first == pytest.approx(axis.size - 1)
        assert last == pytest.approx(0 if axis.causal else (axis.size - 1) / 2)


def test_frequency_bounds_equal_max_frequency(layer):
    shown = numbers(layer)
    for scale, version in zip(SCALES, shown["versions"], strict=True):
        resampled = layer if scale == 1 else at_resolution(layer, scale)
        nyquist = [1 / (2 * axis.spacing) for axis in resampled.axes]
        own = [1 / (2 * axis.spacing) for axis in layer.axes]
        assert version["nyquist"] == pytest.approx([a / b for a, b in zip(nyquist, own, strict=True)])
        if shown["generator"] == "SIREN":
            assert version["bound"] is None
            assert shown["frequency"] is None
        else:
            highest = max_frequency(resampled).tolist()
            assert version["bound"] == pytest.approx([f / b for f, b in zip(highest, own, strict=True)])


def test_energy_beyond_the_nyquist_frequency_is_measured(layer):
    shown = numbers(layer)
    assert shown["energy"] == energy_beyond_nyquist(layer)
    assert shown["folded"] == folded_energy(layer)
    assert shown["aliased"] == (shown["folded"] > MUCH_FOLDED_ENERGY)


def test_measured_bandwidth_agrees_with_the_fft_of_numpy(layer):
    kernel = continuous_kernel(layer, 4).detach().double().numpy()
    for d, share in enumerate(numbers(layer)["measured"]):
        size = 16 * 1024
        energy = np.abs(np.fft.rfft(kernel, size, axis=d + 1)) ** 2
        energy = np.moveaxis(energy, d + 1, -1).reshape(-1, size // 2 + 1).sum(0)
        energy[1:-1] *= 2
        below = np.cumsum(energy) / energy.sum()
        bin_width = 2 / (4 * kernel.shape[d + 1])  # of the coarser transform
        place = np.linspace(0, 4, size // 2 + 1)  # in units of the Nyquist frequency of the layer
        assert np.interp(share - 4 * bin_width, place, below) < 0.99
        assert np.interp(min(4, share + 4 * bin_width), place, below) >= 0.99


@pytest.mark.parametrize("frequency", [4.0, 12.0])
def test_measured_bandwidth_and_energy_beyond_nyquist_agree(frequency):
    """If more than 1 % of the energy is beyond the Nyquist frequency, 99 % is not below it."""
    wave = partial(FourierNet, hidden=1, layers=1)
    layer = FlexConv1d(1, 1, 33, mask=GaussianMask(1, sigma=0.3), generator=wave, parametrization="paper")
    with torch.no_grad():
        layer.generator.frequency.fill_(2 * torch.pi * frequency)
    shown = numbers(layer)
    assert (shown["energy"] > 0.01) == (frequency > shown["nyquist"][0])
    assert (max(shown["measured"]) > 1) == (frequency > shown["nyquist"][0])


@pytest.mark.parametrize("make", [causal, rectangular, rotated], ids=lambda make: make.__name__)
def test_ellipse_is_a_contour_of_the_mask(make):
    layer = make()
    mask = numbers(layer)["mask"]
    shape, centre = np.array(mask["shape"]), np.array(mask["centre"])
    generator = np.random.default_rng(0)
    for radius in (0.5, 1.0, mask["radius"] * 0.99):
        direction = generator.normal(size=layer.dims)
        place = centre + radius * shape @ (direction / np.linalg.norm(direction))
        lines = [
            torch.tensor([axis.current + p * axis.spacing], dtype=torch.float64)
            for axis, p in zip(layer.axes, place, strict=True)
        ]
        layer.mask.threshold = None
        assert layer.mask(lines, layer.axes).item() == pytest.approx(np.exp(-(radius**2) / 2), rel=1e-4)


def test_layer_without_mask():
    shown = numbers(unmasked())
    assert shown["mask"] is None
    assert shown["sigma"] is None
    assert shown["extent"] == (9, 9)


def test_planes_of_a_3d_layer():
    torch.manual_seed(0)
    layer = FlexConv3d(1, 2, (7, 9, 11), mask=GaussianMask(3, mean=(0.3, 0.0, -0.2), sigma=(0.3, 0.5, 0.6)))
    shown = numbers(layer)
    version, kernel = shown["versions"][OWN], layer.kernel().detach().double().numpy()
    centre = []
    for axis, mean, (start, stop) in zip(layer.axes, layer.mask.mean.tolist(), layer.taps, strict=True):
        x = axis.first + axis.spacing * np.arange(start, stop)
        centre.append(int(np.abs(x - mean).argmin()))
    for across, view in enumerate(version["views"]):
        assert view["axes"] == [d for d in range(3) if d != across]
        assert_packed(view["slice"], kernel.take(centre[across], across + 2).reshape(2, -1))
        assert_packed(view["projection"], kernel.sum(across + 2).reshape(2, -1))


def test_rejects_a_kernel_with_nan():
    layer = unmasked()
    with torch.no_grad():
        layer.generator.output.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"kernel of 1 .*not finite"):
        model_numbers(nn.Sequential(nn.Identity(), layer))


def test_rejects_a_model_without_flexconv_layers():
    with pytest.raises(ValueError, match="has no FlexConv layer"):
        model_numbers(nn.Linear(2, 2))


def test_does_not_change_the_model():
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[2])
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    model_numbers(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_packs_arrays():
    values = np.random.default_rng(0).normal(size=(3, 50))
    values[1] = 0
    assert_packed(pack(values), values)
    assert not unpack(pack(values))[1].any()


def test_large_layers_use_the_budget_that_small_layers_leave():
    small, large = FlexConv2d(20, 20, 3), FlexConv2d(20, 30, 33)
    (few, many) = choose_channels([large, small], [1000, 9], budget=10_000)
    assert many == (evenly8(20), evenly8(20))
    assert len(few[0]) * len(few[1]) == 9  # (10 000 − 64 · 9) / 1000
    assert few[0][0] == few[1][0] == 0
    assert (few[0][-1], few[1][-1]) == (29, 19)
    assert choose_channels([large], [1000], budget=10) == [([0], [0])]


def evenly8(total):
    return [round(index) for index in np.linspace(0, total - 1, 8)]


@pytest.mark.parametrize(("form", "shown"), [("scaled", 1.0), ("guarded", 1.0), ("authors", 1.5)])
def test_ellipse_of_a_mask_outside_the_grid_is_where_the_mask_is_computed(form, shown):
    layer = FlexConv2d(1, 1, 9, mask=GaussianMask(2, mean=1.5, sigma=0.3, form=form))
    assert _mask(layer.mask, layer.axes)["centre"] == pytest.approx([shown / layer.axes[0].spacing] * 2)
