"""`energy_beyond_nyquist`: textbook spectra, convergence, and every kind of layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, at_resolution
from flexconv.sampling import continuous_kernel
from flexconv.spectrum import _energy, energy_beyond_nyquist, folded_energy
from flexconv.spectrum._energy import share_beyond

from .helpers import make_layer, one_gabor

GENERATORS = ["magnet", "gabor", "fourier", "siren", "nsiren", "mlp", "njet"]


def upper_tail(frequency, limit, sigma):
    """The share of the energy of exp(−x²/2σ²) sin(2π f x) above a limit: |spectrum|² is a Gaussian around f."""
    return math.erfc(2 * math.pi * sigma * (limit - frequency)) / 2


@pytest.mark.parametrize("frequency", [4.0, 7.0, 8.0, 8.5, 11.0])
def test_gaussian_times_sine_in_1d(frequency):
    layer = one_gabor([2 * math.pi * frequency], [1 / 0.2], size=33)
    assert energy_beyond_nyquist(layer) == pytest.approx(upper_tail(frequency, 8.0, 0.2), abs=2e-3)


@pytest.mark.parametrize("frequency", [(3.0, -7.5), (-8.5, 2.0), (8.0, 8.0), (11.0, 11.0)])
def test_gaussian_times_sine_in_2d(frequency):
    layer = one_gabor([2 * math.pi * f for f in frequency], [1 / 0.2, 1 / 0.15], size=33)
    inside = [1 - upper_tail(abs(f), 8.0, sigma) for f, sigma in zip(frequency, (0.2, 0.15), strict=True)]
    assert energy_beyond_nyquist(layer) == pytest.approx(1 - inside[0] * inside[1], abs=2e-3)


def test_gaussian_mask_counts():
    layer = one_gabor([2 * math.pi * 7.5], [1e-9], size=33)
    layer.mask = GaussianMask(1, sigma=0.1, threshold=None, dtype=torch.float64)
    assert energy_beyond_nyquist(layer) == pytest.approx(upper_tail(7.5, 8.0, 0.1), abs=2e-3)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.5])
def test_scale_moves_the_limit(ratio):
    layer = one_gabor([2 * math.pi * 4.2], [1 / 0.2], size=33)
    assert energy_beyond_nyquist(layer, scale=ratio) == pytest.approx(upper_tail(4.2, 8 * ratio, 0.2), abs=2e-3)


def test_scale_per_axis():
    layer = one_gabor([2 * math.pi * 4.2, 2 * math.pi], [1 / 0.2, 1 / 0.2], size=33)
    expected = upper_tail(4.2, 4.0, 0.2)
    assert energy_beyond_nyquist(layer, scale=(0.5, 1)) == pytest.approx(expected, abs=2e-3)
    assert energy_beyond_nyquist(layer, scale=(1, 0.5)) == pytest.approx(0, abs=2e-3)


@pytest.mark.parametrize("kind", [FlexConv1d, FlexConv2d])
def test_converges_with_oversampling(kind):
    torch.manual_seed(0)
    layer = make_layer(kind, 17, sigma=0.15, hidden=8, input_scale=16.0)
    shares = [energy_beyond_nyquist(layer, oversample=factor) for factor in (4, 8, 16)]
    assert shares[0] == pytest.approx(shares[2], rel=0.1, abs=1e-3)
    assert shares[1] == pytest.approx(shares[2], rel=0.02, abs=3e-4)


def test_channels_are_weighted_by_their_energy():
    low = one_gabor([2 * math.pi * 2], [1 / 0.2])
    high = one_gabor([2 * math.pi * 12], [1 / 0.2])
    low, high = (continuous_kernel(each, 4) for each in (low, high))
    both = torch.cat([low, 3 * high])
    assert share_beyond(both, [1 / 8]) == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize("kind", [FlexConv1d, FlexConv2d])
def test_fewer_channels_have_the_same_energy(kind):
    """The channels of a linear map are replaced by fewer ones, which must not change the result."""
    torch.manual_seed(0)
    layer = make_layer(kind, 9, channels=20, hidden=4, input_scale=16.0)
    assert layer.generator.has_factors
    whole = share_beyond(continuous_kernel(layer, 4), [1 / 8] * layer.dims)
    assert energy_beyond_nyquist(layer) == pytest.approx(whole, rel=1e-9)
    layer.generator.register_forward_hook(lambda *arguments: arguments[-1])
    assert not layer.generator.has_factors
    assert energy_beyond_nyquist(layer) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", "rotated", None])
def test_works_for_every_generator_and_mask_and_leaves_the_layer_unchanged(generator, mask):
    torch.manual_seed(0)
    mask = RotatedGaussianMask(2, sigma=(0.3, 0.2), angle=0.4) if mask == "rotated" else mask
    layer = FlexConv2d(2, 2, (5, 9), generator=generator, mask=mask)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    assert 0 <= energy_beyond_nyquist(layer) < 1
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_works_in_3d_with_a_causal_axis_and_an_axis_of_one_tap():
    layer = FlexConv3d(1, 2, (5, 1, 7), padding=("causal", "same", "same"), mask=GaussianMask(3, sigma=0.3))
    assert continuous_kernel(layer, 4).shape[2] == 1
    assert 0 < energy_beyond_nyquist(layer) < 1


def sine(frequency, size=33, padding="same"):
    """A FlexConv1d whose kernel is a cosine times its mask."""
    generator = one_gabor([2 * math.pi * frequency], [1e-9], phase=math.pi / 2).generator
    mask = GaussianMask(1, sigma=0.2, dtype=torch.float64)
    return FlexConv1d(1, 1, size, padding=padding, dtype=torch.float64, generator=generator, mask=mask)


def test_end_of_a_causal_kernel_is_no_discontinuity():
    """A causal mask is largest at the end of its grid, but a kernel of low frequency stays one."""
    assert energy_beyond_nyquist(sine(0.1, size=64, padding="causal")) < 3e-3


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("ratio", [0.5, 2, 1.5])
def test_resampling_does_not_change_the_kernel(padding, ratio):
    layer = sine(7.0, padding=padding)
    own = energy_beyond_nyquist(layer, oversample=8)
    other = energy_beyond_nyquist(at_resolution(layer, ratio), scale=1 / ratio, oversample=8)
    assert own > 0.01
    assert other == pytest.approx(own, rel=0.1)


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("frequency", [3.0, 6.0, 7.0, 7.5, 9.0, 11.0])
def test_predicts_how_much_a_layer_changes_at_twice_the_resolution(padding, frequency):
    """The relative change of the frequency response is about the root of the energy beyond the Nyquist frequency."""
    layer = sine(frequency, padding=padding)
    change, share = response_change(layer, at_resolution(layer, 2)), energy_beyond_nyquist(layer)
    assert 0.6 < (change + 0.03) / (math.sqrt(share) + 0.03) < 1.2


def test_folded_energy_lies_beyond_1_5_times_the_nyquist_frequency():
    layer = one_gabor([2 * math.pi * 12.2], [1 / 0.2], size=33)
    assert folded_energy(layer) == pytest.approx(upper_tail(12.2, 12.0, 0.2), abs=2e-3)
    assert folded_energy(layer, scale=0.5) == pytest.approx(1, abs=2e-3)
    assert folded_energy(layer, scale=2) == pytest.approx(0, abs=2e-3)


@torch.no_grad()
def response_change(layer, other):
    """‖H' − H‖ / ‖H‖ of the frequency responses of two 1D layers, below the Nyquist frequency of the first."""
    frequencies = torch.linspace(-1, 1, 257, dtype=torch.float64) / (2 * layer.axes[0].spacing)

    def response(each):
        x = each.axes[0].coordinates(each.taps[0], device=torch.device("cpu"), dtype=torch.float64)
        return each.kernel().flatten(0, 1).to(torch.complex128) @ torch.exp(-2j * math.pi * x[:, None] * frequencies)

    return ((response(other) - response(layer)).norm() / response(layer).norm()).item()


def test_zero_kernel_has_no_energy_and_nan_kernel_nan():
    layer = one_gabor([20.0], [6.0])
    with torch.no_grad():
        layer.generator.output.weight.zero_()
        assert energy_beyond_nyquist(layer) == 0.0
        layer.generator.output.weight.fill_(math.nan)
        assert math.isnan(energy_beyond_nyquist(layer))


def test_result_does_not_depend_on_chunk_size(monkeypatch):
    layer = make_layer(hidden=4, size=9)
    whole = energy_beyond_nyquist(layer)
    monkeypatch.setattr(_energy, "_CHUNK", 1000)
    assert energy_beyond_nyquist(layer) == pytest.approx(whole, rel=1e-9)


def test_rejects_invalid_arguments():
    with pytest.raises(TypeError, match=r"energy_beyond_nyquist .*FlexConv.*Conv2d"):
        energy_beyond_nyquist(nn.Conv2d(1, 1, 3))
    layer = FlexConv2d(1, 1, 5)
    with pytest.raises(ValueError, match=r"scale .*positive.*-1"):
        energy_beyond_nyquist(layer, scale=-1)
    with pytest.raises(ValueError, match=r"scale .*2 entries"):
        energy_beyond_nyquist(layer, scale=(1, 2, 3))
    with pytest.raises(ValueError, match=r"oversample .*0"):
        energy_beyond_nyquist(layer, oversample=0)
