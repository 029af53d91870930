"""A model trained with `alias_penalty` is band-limited: by its bounds, by its spectra, and at twice the resolution."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from benchmarks.alias_free import WIDTHS, energy_beyond, flexconvs, toy_net, train_toy
from flexconv import FlexConv2d, alias_penalty
from flexconv.spectrum import max_frequency, measured_bandwidth, nyquist
from flexconv.testing import resolution_error

from .host_syncs import HostSyncs
from .spectrum.helpers import METHODS, CountOps

LIMIT = nyquist(17)


@pytest.fixture(scope="module")
def penalised():
    # the gradient of relu² vanishes at the limit, so training approaches it from above; cutoff 2.2 aims slightly below
    return train_toy(method="per_kernel", mask=True, formula="exact", cutoff=2.2)


@pytest.fixture(scope="module")
def unpenalised():
    return train_toy()


def energy_above_limit(layer):
    """The share of the masked kernel's energy above the Nyquist frequency, along the worse axis."""
    return max(energy_beyond(layer, [LIMIT, LIMIT]))


def test_bounds_end_below_the_limit(penalised):
    for layer, before in zip(flexconvs(penalised[0]), flexconvs(toy_net()), strict=True):
        assert (max_frequency(before) > 2 * LIMIT).all()
        assert (max_frequency(layer) <= LIMIT).all()


def test_task_is_still_learned(penalised):
    assert penalised[1] < 0.5  # of the target's variance


def test_spectra_end_below_the_limit(penalised, unpenalised):
    for layer in flexconvs(penalised[0]):
        assert energy_above_limit(layer) < 1e-3
        assert max(measured_bandwidth(layer)) < LIMIT
    assert max(energy_above_limit(layer) for layer in flexconvs(unpenalised[0])) > 0.1
    assert any((max_frequency(layer) > 2 * LIMIT).any() for layer in flexconvs(unpenalised[0]))


def test_error_at_twice_the_resolution_is_smaller(penalised, unpenalised):
    models = penalised[0], unpenalised[0]
    with_penalty, without = (max(resolution_error(layer, 2) for layer in flexconvs(model)) for model in models)
    assert with_penalty < 0.02
    assert without > 3 * with_penalty


def test_mask_alone_can_exceed_the_limit():
    """With `mask=False` the penalty is 0 although the mask is so narrow that the kernel exceeds the limit."""
    layer = toy_net()[0]
    with torch.no_grad():
        for parameter in (layer.generator.frequency, layer.generator.gamma):
            parameter.mul_(0.05)
        layer.mask.set_(sigma=0.04)
    assert alias_penalty(layer, method="per_kernel", mask=False).item() == 0
    assert alias_penalty(layer, method="per_kernel", mask=True).item() > 0
    assert energy_above_limit(layer) > 0.05


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("formula", ["authors", "exact"])
def test_penalty_of_a_whole_network_takes_few_operations(formula, method, mask):
    """The published code takes 865 operations and 60 copies to the host, each of which stalls a GPU."""
    layers = [FlexConv2d(a, b, 33, parametrization="paper") for a, b in itertools.pairwise(WIDTHS)]
    model = nn.Sequential(*layers)
    assert len(model) == 14
    with CountOps() as mode, HostSyncs() as syncs:
        penalty = alias_penalty(model, method=method, mask=mask, formula=formula)
        forward = mode.count
        penalty.backward()
    assert forward < 80
    assert mode.count < 300
    assert syncs.found == []
