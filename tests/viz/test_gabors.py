"""The plot of Gabor filters: values, spectra, order of channels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask
from flexconv.nn import GaborNet, MAGNet
from flexconv.spectrum import filter_frequencies
from flexconv.viz import plot_gabors
from flexconv.viz._gabor_numbers import effects, gabor

from .conftest import marked, title_of

GENERATORS = {
    "magnet": partial(MAGNet, hidden=5),
    "isotropic": partial(GaborNet, hidden=5, layers=2),
    "steerable": partial(MAGNet, hidden=5, steerable=True),
}


def layer_2d(generator="magnet", **options):
    return FlexConv2d(2, 2, 9, generator=GENERATORS[generator], mask=GaussianMask(2, sigma=0.4), **options)


@pytest.mark.parametrize("kernel", GENERATORS)
def test_draws_one_row_per_filter(kernel, draw):
    layer = layer_2d(kernel)
    figure = draw(plot_gabors(layer, channels=3)) if kernel == "steerable" else plot_gabors(layer, channels=3)
    filters = layer.generator.filters
    assert len(figure.axes) == filters * 6
    assert f"{filters} filters, 3 of 5 channels of each" in title_of(figure)
    assert len(plot_gabors(layer, channels=99).axes) == filters * 8


@pytest.mark.parametrize("kernel", GENERATORS)
def test_values_equal_those_of_the_generator(kernel):
    layer = layer_2d(kernel)
    drawn = gabor(layer, 1, 3)
    points = torch.cartesian_prod(*(torch.as_tensor(line, dtype=torch.float32) for line in drawn.lines))
    with torch.no_grad():
        envelope = layer.generator.envelopes(points)[1, :, 3]
        values = layer.generator.filter_values(points)[1, :, 3]
    np.testing.assert_allclose(drawn.envelope.ravel(), envelope, atol=2e-5)
    np.testing.assert_allclose(drawn.product.ravel(), values, atol=2e-5)


def test_3d_shows_the_plane_through_the_centre_of_the_envelope(draw):
    layer = FlexConv3d(1, 1, 7, generator=GENERATORS["magnet"], mask=GaussianMask(3, sigma=0.5))
    draw(plot_gabors(layer, channels=1))
    drawn = gabor(layer, 0, 2)
    plane = torch.cartesian_prod(*(torch.as_tensor(line, dtype=torch.float32) for line in drawn.lines))
    points = torch.cat([layer.generator.mu[0, 2, 0].detach().expand(len(plane), 1), plane], 1)
    with torch.no_grad():
        np.testing.assert_allclose(drawn.product.ravel(), layer.generator.filter_values(points)[0, :, 2], atol=2e-5)


def test_1d_layer_is_drawn_as_curves(draw):
    layer = FlexConv1d(1, 2, 33, padding="causal", generator=GENERATORS["magnet"])
    figure = draw(plot_gabors(layer, channels=2))
    assert len(figure.axes) == 4 * 5
    first = figure.axes[0]
    assert marked(first, "centre")


def test_edges_equal_the_terms_of_the_exact_formula():
    """Without the mask, the largest edge of a filter over its channels is the frequency that the penalty uses."""
    for kernel in ("magnet", "steerable"):
        layer = layer_2d(kernel)
        per_filter = filter_frequencies([layer], mask=False, cutoff=2.0, formula="exact")[0].detach()
        edges = np.array([[gabor(layer, index, c).edges(2.0) for c in range(5)] for index in range(4)]).max(1)
        np.testing.assert_allclose(edges, per_filter, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["magnet", "steerable"])
def test_spectrum_equals_the_fft_of_the_filter(kernel):
    layer = layer_2d(kernel)
    with torch.no_grad():
        layer.generator.gamma.fill_(6.0)  # narrow enough to fit into the grid
        layer.generator.gamma[..., 0] = 9.0
        layer.generator.mu.mul_(0.1)
        layer.generator.frequency.clamp_(-20, 20)
    drawn = gabor(layer, 2, 1)
    n = 64
    step = [line[1] - line[0] for line in drawn.lines]
    measured = np.abs(np.fft.fft2(drawn.product, (2 * n, 2 * n))) ** 2
    measured = np.fft.fftshift(measured)
    frequencies = [np.fft.fftshift(np.fft.fftfreq(2 * n, each)) for each in step]
    expected = drawn.energy(*frequencies)
    np.testing.assert_allclose(measured / measured.max(), expected, atol=5e-3)


def test_effects_equal_the_energy_lost_without_a_channel():
    layer = layer_2d()
    generator = layer.generator
    result = effects(layer)
    bias = generator.output.bias.detach()
    mask = layer.mask([a.coordinates(a.whole, device=bias.device, dtype=bias.dtype) for a in layer.axes], layer.axes)
    whole = layer.sample([a.whole for a in layer.axes]).detach()
    energy = (whole - bias.view(2, 2, 1, 1) * mask.detach()).square().sum()
    for index, channel in [(0, 0), (1, 3), (2, 4), (3, 2)]:
        original = type(generator).filter_values

        def without(points, index=index, channel=channel, original=original):
            values = original(generator, points).clone()
            values[index, :, channel] = 0
            return values

        generator.filter_values = without
        less = layer.sample([a.whole for a in layer.axes]).detach()
        del generator.filter_values
        assert result[index, channel] == pytest.approx(((whole - less).square().sum() / energy).item(), rel=1e-3)


def test_channels_are_sorted_by_effect():
    layer = layer_2d()
    result = effects(layer)
    figure = plot_gabors(layer, channels=5)
    titles = [panel.get_title() for panel in figure.axes]
    for row in range(4):
        order = [int(titles[row * 8 + column].split("channel ")[1].split("\n")[0]) for column in (2, 4, 5, 6, 7)]
        assert order == list(np.argsort(-result[row], kind="stable"))


def test_marks_the_centres_of_envelopes():
    layer = layer_2d()
    with torch.no_grad():
        layer.generator.mu[0, :] = torch.tensor([0.5, -0.25])
        layer.generator.mu[1, :] = torch.tensor([3.0, 0.25])
    figure = plot_gabors(layer, channels=1)
    (inside,), (outside,) = marked(figure.axes[0], "centre"), marked(figure.axes[4], "centre")
    assert (inside.get_xdata()[0], inside.get_ydata()[0]) == (-0.25, 0.5)  # columns are the second axis
    assert (outside.get_xdata()[0], outside.get_ydata()[0]) == (0.25, 1.0)
    assert outside.get_markerfacecolor() == "white"


def test_draws_flat_envelopes_and_a_kernel_of_zeros(draw):
    layer = layer_2d()
    with torch.no_grad():
        layer.generator.gamma.zero_()
        layer.generator.output.weight.zero_()
    draw(plot_gabors(layer, channels=1))


@pytest.mark.parametrize("kernel", ["siren", "mlp", "fourier", "njet"])
def test_rejects_generators_without_gabor_filters(kernel):
    layer = FlexConv2d(1, 1, 9, generator=kernel)
    with pytest.raises(ValueError, match=f"MAGNet or GaborNet.*{type(layer.generator).__name__}"):
        plot_gabors(layer)


def test_rejects_invalid_channels():
    with pytest.raises(ValueError, match=r"channels must be at least 1.* 0"):
        plot_gabors(layer_2d(), channels=0)
