"""`alias_report`: which networks are expected to change at another resolution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flexconv import at_resolution, from_pretrained
from flexconv.spectrum import alias_report, energy_beyond_nyquist, folded_energy

from .helpers import one_gabor


def network(*frequencies):
    """1D layers of 33 taps whose kernels are sines of these frequencies; the Nyquist frequency is 8."""
    return nn.Sequential(*(one_gabor([2 * math.pi * f], [1 / 0.2]) for f in frequencies))


def test_reports_both_energies_of_every_layer():
    model = network(3.0, 12.0)
    report = alias_report(model)
    assert report.beyond == {"0": energy_beyond_nyquist(model[0]), "1": energy_beyond_nyquist(model[1])}
    assert report.folded == {"0": folded_energy(model[0]), "1": folded_energy(model[1])}
    assert report.total == pytest.approx(0.5, abs=0.01)
    assert report.aliased == ["1"]
    assert not report.band_limited
    assert report.expected_loss == "much"


def test_low_frequencies_are_band_limited():
    report = alias_report(network(3.0, 4.0, 5.0), 2)
    assert report.band_limited
    assert report.expected_loss == "none"
    assert report.aliased == []


def test_expects_a_small_loss_between_the_limits():
    report = alias_report(network(10.9, 10.9), 2)
    assert 0.004 < report.total < 0.1
    assert report.band_limited
    assert report.expected_loss == "a few points"


def test_lower_resolution_has_a_lower_limit_and_a_higher_one_does_not():
    model = network(6.5)
    assert alias_report(model, 0.5).aliased == ["0"]
    assert alias_report(model, 1).folded == alias_report(model, 3).folded
    there = at_resolution(model, 2)
    assert alias_report(there, 0.25).aliased == ["0"]
    assert alias_report(there, 0.5).band_limited


def test_many_small_energies_add_up():
    model = network(*[10.9] * 9)
    report = alias_report(model)
    assert report.aliased == []
    assert report.total > 0.1
    assert not report.band_limited


def test_nan_is_not_band_limited():
    model = network(3.0)
    with torch.no_grad():
        model[0].generator.output.weight.fill_(math.nan)
    report = alias_report(model)
    assert not report.band_limited
    assert report.aliased == ["0"]


def test_ratio_per_axis():
    layer = one_gabor([2 * math.pi * 7, 2 * math.pi], [1 / 0.2, 1 / 0.2])
    assert alias_report(layer, (2, 0.5)).band_limited
    assert not alias_report(layer, (0.5, 2)).band_limited


def test_shipped_digits_network_is_band_limited():
    """It loses nothing at twice its resolution (docs/alias-free.md), although its bound is 4 times the limit."""
    assert alias_report(from_pretrained("flexnet3-digits"), 2).band_limited


def test_rejects_models_without_flexconv():
    with pytest.raises(ValueError, match=r"Linear .*no FlexConv.*alias_report"):
        alias_report(nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"scale .*positive.*-1"):
        alias_report(network(3.0), -1)
