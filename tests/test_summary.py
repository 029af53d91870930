"""Numbers of a model, layer by layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, create_model
from flexconv._multiply_adds import multiply_adds, usual_input
from flexconv.nn._conv import FlexConvNd
from flexconv.spectrum import energy_beyond_nyquist, folded_energy, max_frequency
from flexconv.summary import summarize

from .spectrum.helpers import one_gabor


def counted(model, shape):
    """Count multiply-adds in a real forward: output positions times the weights used for each."""
    counts = {}

    def hook(name, module, output):
        kernel = module.kernel() if isinstance(module, FlexConvNd) else module.weight
        counts[name] = output.numel() * kernel[0].numel()

    for name, module in model.named_modules():
        if isinstance(module, FlexConvNd | nn.Conv1d | nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda m, _, y, name=name: hook(name, m, y))
    with torch.no_grad():
        model.eval()(torch.randn(shape))
    return counts


def test_multiply_adds_with_strides_shortcuts_and_a_head():
    model = create_model(
        "cifar_resnet44_flexconv", in_channels=3, num_classes=5, depth=8, width=4, kernel_size=None, image_size=16
    )
    shape = usual_input(model)
    assert shape == (1, 3, 16, 16)
    assert multiply_adds(model, shape) == counted(model, shape)
    shares = {layer.name: layer.share for layer in summarize(model)}
    counts = multiply_adds(model, shape)
    assert shares == pytest.approx({name: counts[name] / sum(counts.values()) for name in shares})
    assert sum(shares.values()) < 1


def test_multiply_adds_of_a_causal_network():
    model = create_model("flextcn2", in_channels=2, num_classes=3, length=30, widths=[4])
    assert multiply_adds(model, usual_input(model)) == counted(model, (1, 2, 30))


def test_multiply_adds_with_pooling_groups_and_transposed_convolution():
    model = nn.Sequential(
        FlexConv2d(2, 4, 9, stride=2, groups=2),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ConvTranspose2d(6, 4, 2, stride=2),
    )
    counts = multiply_adds(model, (1, 2, 32, 32))
    taps = math.prod(model[0].extent)
    assert counts == {"0": 16 * 16 * 4 * taps, "2": 6 * 6 * 6 * 4 * 9, "3": 6 * 6 * 6 * 4 * 4}


def test_layer_that_is_called_twice_counts_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = FlexConv1d(2, 2, 9)

        def forward(self, x):
            return self.conv(self.conv(x))

    assert multiply_adds(Twice(), (1, 2, 10)) == {"conv": 2 * 10 * 4 * Twice().conv.extent[0]}


def test_input_size_is_assumed_if_it_is_not_known():
    model = create_model("flexnet3", in_channels=1, num_classes=2, kernel_size=21, widths=[2])
    assert usual_input(model) == (1, 1, 32, 32)
    assert all(layer.share is not None for layer in summarize(model))


def test_custom_model_has_no_shares_without_input_shape():
    model = nn.Sequential(FlexConv1d(1, 1, 9))
    assert [layer.share for layer in summarize(model)] == [None]
    assert [layer.share for layer in summarize(model, input_shape=(1, 1, 20))] == [1.0]


def test_frequency_bound_and_measured_energy():
    layer = FlexConv2d(1, 1, 33, generator="fourier", mask=GaussianMask(2, sigma=0.5))
    with torch.no_grad():
        layer.generator.frequency.zero_()
        layer.generator.frequency[0, :, 1] = 2 * math.pi * 9
    (summary,) = summarize(layer)
    assert summary.frequency == pytest.approx(max_frequency(layer).tolist())
    assert summary.nyquist == (8.0, 8.0)
    assert summary.energy_beyond_nyquist == energy_beyond_nyquist(layer)
    assert summary.folded_energy == folded_energy(layer)
    (silent,) = summarize(FlexConv2d(1, 1, 9, generator="siren"))
    assert silent.frequency is None
    assert 0 <= silent.folded_energy <= silent.energy_beyond_nyquist <= 1


@pytest.mark.parametrize(("frequency", "aliased"), [(2, False), (9, False), (14, True)])
def test_layer_is_aliased_if_its_energy_is_folded_to_low_frequencies(frequency, aliased):
    """The bound exceeds the Nyquist frequency of 8 in two of three layers, but only 14 is folded below 4."""
    (summary,) = summarize(one_gabor([2 * math.pi * frequency], [1 / 0.3], size=33))
    assert summary.aliased == aliased
