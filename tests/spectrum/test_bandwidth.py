"""`measured_bandwidth`: measured values against textbook values, and independence of the generator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flexconv.nn import FlexConv1d, FlexConv2d, FourierNet, GaussianMask
from flexconv.spectrum import _bandwidth, energy_beyond_nyquist, measured_bandwidth, nyquist

from .helpers import make_layer, one_gabor


def test_bandwidth_of_a_gaussian():
    layer = make_layer(FlexConv1d, 65, sigma=0.1, generator=FourierNet, hidden=1, layers=1)
    with torch.no_grad():
        layer.generator.frequency.zero_()
        layer.generator.phase.fill_(math.pi / 2)
    quantile = 2.5758293  # |z| is below this for 99 % of a normal distribution
    expected = quantile / math.sqrt(2) / 0.1 / (2 * math.pi)
    assert measured_bandwidth(layer)[0] == pytest.approx(expected, abs=0.13)


@pytest.mark.parametrize("generator", ["siren", "mlp", "magnet", "njet"])
def test_works_for_every_generator_and_leaves_the_layer_unchanged(generator):
    layer = FlexConv2d(2, 2, (5, 9), generator=generator)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    result = measured_bandwidth(layer)
    assert [type(value) for value in result] == [float, float]
    assert layer.mask.threshold == 0.1
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
    more = measured_bandwidth(layer, energy=0.999)
    assert all(b >= a for a, b in zip(result, more, strict=True))


def test_zero_kernel_has_bandwidth_0_and_nan_kernel_nan():
    layer = one_gabor([20.0], [6.0])
    with torch.no_grad():
        layer.generator.output.weight.zero_()
        assert measured_bandwidth(layer) == [0.0]
        layer.generator.output.weight.fill_(math.nan)
        assert math.isnan(measured_bandwidth(layer)[0])


def test_result_does_not_depend_on_chunk_size(monkeypatch):
    layer = make_layer(hidden=2, size=9)
    whole = measured_bandwidth(layer)
    monkeypatch.setattr(_bandwidth, "_CHUNK", 1000)
    assert measured_bandwidth(layer) == whole


@pytest.mark.parametrize("energy", [0.0, 1.0, -1, math.nan])
def test_rejects_energy_outside_0_and_1(energy):
    with pytest.raises(ValueError, match=f"energy .*between 0 and 1.*{energy}"):
        measured_bandwidth(make_layer(hidden=1), energy=energy)


def test_rejects_invalid_mask_and_layer():
    with pytest.raises(TypeError, match=r"mask .*'yes'"):
        measured_bandwidth(FlexConv2d(1, 2, 9), mask="yes")
    with pytest.raises(TypeError, match=r"measured_bandwidth .*FlexConv.*Conv2d"):
        measured_bandwidth(nn.Conv2d(1, 1, 3))


def test_cropped_bandwidth_includes_the_edge_of_the_crop():
    """The crop adds frequencies that the whole kernel does not have."""
    torch.manual_seed(0)
    layer = FlexConv1d(1, 4, 33, mask=GaussianMask(1, sigma=0.2, threshold=0.5))
    (whole,), (cropped,) = measured_bandwidth(layer), measured_bandwidth(layer, crop=True)
    assert cropped > whole
    width = 0.06  # of a frequency bin of 7 taps, relative to the Nyquist frequency
    below, above = (energy_beyond_nyquist(layer, scale=cropped / nyquist(33) + shift) for shift in (-width, width))
    assert above < 0.01 < below
    assert measured_bandwidth(FlexConv2d(1, 1, (9, 1)), crop=True)[1] == 0
    with pytest.raises(ValueError, match="crop=True"):
        measured_bandwidth(layer, crop=True, mask=False)
