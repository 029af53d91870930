"""Windows from copies of parameters, compared with those of `Extent.update`."""

import random

import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask
from flexconv._fast import sizes
from flexconv._fast.windows import Windows
from tests._fast.test_sizes import SimulatedCopies

LAYERS = {
    "scaled": lambda: FlexConv2d(1, 1, (33, 9)),
    "guarded": lambda: FlexConv2d(1, 1, (33, 8), padding=0, parametrization="paper"),
    "causal": lambda: FlexConv1d(1, 1, 1025, padding="causal"),
    "3D": lambda: FlexConv3d(1, 1, (3, 1, 7), parametrization="paper"),
    "threshold": lambda: FlexConv1d(1, 1, 65, mask=GaussianMask(1, threshold=0.5)),
}


@pytest.fixture
def copies(monkeypatch):
    simulated = SimulatedCopies()
    monkeypatch.setattr(sizes, "copies", simulated)
    return simulated


def change(layer, generator):
    """Give the mask any parameters, often beyond their limits."""
    with torch.no_grad():
        for parameter in layer.mask.size_parameters():
            values = [
                generator.choice([0.0, 1e-3, 0.1, 1.0, 3.0]) * generator.uniform(-1, 1) for _ in parameter.view(-1)
            ]
            parameter.copy_(torch.tensor(values).view(parameter.shape))


@pytest.mark.parametrize("name", LAYERS)
def test_windows_and_taps_equal_those_of_the_plain_version(copies, name):
    layer, generator = LAYERS[name](), random.Random(0)
    mask, extent = layer.mask, layer._extent
    assert Windows.support(mask, layer.axes)
    windows, parameters = Windows(mask, layer.axes), layer.mask.size_parameters()
    assert not windows.refresh(extent, mask, parameters)  # they are not followed yet
    copies._follow(tuple(map(id, parameters)), parameters)
    for _ in range(200):
        change(layer, generator)
        copies._start(list(copies._followed.values()))
        assert windows.refresh(extent, mask, parameters)
        found = extent.windows, extent.taps(mask)
        extent.invalidate()
        assert (layer.window, layer.taps) == found


def test_unchanged_parameters_are_not_read(copies):
    layer = FlexConv2d(1, 1, 33)
    windows, parameters = Windows(layer.mask, layer.axes), layer.mask.size_parameters()
    copies._follow(tuple(map(id, parameters)), parameters)
    copies._start(list(copies._followed.values()))
    assert windows.refresh(layer._extent, layer.mask, parameters)
    copies._followed.clear()
    assert windows.refresh(layer._extent, layer.mask, parameters)
    with torch.no_grad():
        layer.mask.growth += 0.1
    assert not windows.refresh(layer._extent, layer.mask, parameters)


def test_values_that_are_not_finite_are_left_to_the_plain_version(copies):
    layer = FlexConv2d(1, 1, 33)
    windows, parameters = Windows(layer.mask, layer.axes), layer.mask.size_parameters()
    copies._follow(tuple(map(id, parameters)), parameters)
    with torch.no_grad():
        layer.mask.growth[0] = torch.nan
    copies._start(list(copies._followed.values()))
    assert not windows.refresh(layer._extent, layer.mask, parameters)


def test_windows_that_are_held_stay(copies):
    layer = FlexConv2d(1, 1, 33)
    windows, parameters = Windows(layer.mask, layer.axes), layer.mask.size_parameters()
    copies._follow(tuple(map(id, parameters)), parameters)
    copies._start(list(copies._followed.values()))
    layer._extent.refresh_if_changed = lambda *_, **__: None
    assert not windows.refresh(layer._extent, layer.mask, parameters)


def test_other_masks_are_not_supported():
    for mask in (RotatedGaussianMask(), GaussianMask(2, form="authors"), GaussianMask(2, threshold=None)):
        layer = FlexConv2d(1, 1, 33, mask=mask)
        assert not Windows.support(layer.mask, layer.axes)
