"""The picture of Gabor filters: values, spectra, order."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, spectrum
from flexconv.nn import GaborNet, MAGNet
from flexconv.viz import plot_gabors
from flexconv.viz._gabor_numbers import effects, gabor

from .conftest import marked, title_of

GENERATORS = {
    "magnet": partial(MAGNet, hidden=5),
    "isotropic": partial(GaborNet, hidden=5, layers=2),
    "steerable": partial(MAGNet, hidden=5, steerable=True),
}


def layer_2d(kernel="magnet", **options):
    return FlexConv2d(2, 2, 9, kernel=GENERATORS[kernel], mask=GaussianMask(2, sigma=0.4), **options)


@pytest.mark.parametrize("kernel", GENERATORS)
def test_every_filter_is_a_row_of_its_strongest_channels(kernel, draw):
    layer = layer_2d(kernel)
    figure = draw(plot_gabors(layer, channels=3)) if kernel == "steerable" else plot_gabors(layer, channels=3)
    filters = layer.generator.filters
    assert len(figure.axes) == filters * 6
    assert f"{filters} filters, 3 of 5 channels of each" in title_of(figure)
    assert len(plot_gabors(layer, channels=99).axes) == filters * 8


@pytest.mark.parametrize("kernel", GENERATORS)
def test_values_are_those_of_the_generator(kernel):
    layer = layer_2d(kernel)
    part = gabor(layer, 1, 3)
    points = torch.cartesian_prod(*(torch.as_tensor(line, dtype=torch.float32) for line in part.lines))
    with torch.no_grad():
        envelope = layer.generator.envelopes(points)[1, :, 3]
        values = layer.generator.filter_values(points)[1, :, 3]
    np.testing.assert_allclose(part.envelope.ravel(), envelope, atol=2e-5)
    np.testing.assert_allclose(part.product.ravel(), values, atol=2e-5)


def test_3d_is_cut_through_the_centre_of_the_envelope(draw):
    layer = FlexConv3d(1, 1, 7, kernel=GENERATORS["magnet"], mask=GaussianMask(3, sigma=0.5))
    draw(plot_gabors(layer, channels=1))
    part = gabor(layer, 0, 2)
    plane = torch.cartesian_prod(*(torch.as_tensor(line, dtype=torch.float32) for line in part.lines))
    points = torch.cat([layer.generator.mu[0, 2, 0].detach().expand(len(plane), 1), plane], 1)
    with torch.no_grad():
        np.testing.assert_allclose(part.product.ravel(), layer.generator.filter_values(points)[0, :, 2], atol=2e-5)


def test_1d(draw):
    layer = FlexConv1d(1, 2, 33, padding="causal", kernel=GENERATORS["magnet"])
    figure = draw(plot_gabors(layer, channels=2))
    assert len(figure.axes) == 4 * 5
    first = figure.axes[0]
    assert marked(first, "centre")


def test_the_edges_are_the_terms_of_the_exact_formula():
    """Filter by filter without the mask, the largest edge over channels is what the alias penalty looks at."""
    for kernel in ("magnet", "steerable"):
        layer = layer_2d(kernel)
        per_filter = spectrum.filter_frequencies([layer], mask=False, cutoff=2.0, formula="exact")[0].detach()
        edges = np.array([[gabor(layer, index, c).edges(2.0) for c in range(5)] for index in range(4)]).max(1)
        np.testing.assert_allclose(edges, per_filter, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["magnet", "steerable"])
def test_the_spectrum_is_that_of_the_filter(kernel):
    layer = layer_2d(kernel)
    with torch.no_grad():
        layer.generator.gamma.fill_(6.0)  # narrow enough to lie within the grid
        layer.generator.gamma[..., 0] = 9.0
        layer.generator.mu.mul_(0.1)
        layer.generator.frequency.clamp_(-20, 20)
    part = gabor(layer, 2, 1)
    n = 64
    step = [line[1] - line[0] for line in part.lines]
    measured = np.abs(np.fft.fft2(part.product, (2 * n, 2 * n))) ** 2
    measured = np.fft.fftshift(measured)
    frequencies = [np.fft.fftshift(np.fft.fftfreq(2 * n, each)) for each in step]
    expected = part.energy(*frequencies)
    np.testing.assert_allclose(measured / measured.max(), expected, atol=5e-3)


def test_effects_are_what_the_kernel_loses():
    layer = layer_2d()
    generator = layer.generator
    result = effects(layer)
    bias = generator.output.bias.detach()
    mask = layer.mask([a.coordinates(a.whole, device=bias.device, dtype=bias.dtype) for a in layer.axes], layer.axes)
    whole = layer._sample([a.whole for a in layer.axes]).detach()
    energy = (whole - bias.view(2, 2, 1, 1) * mask.detach()).square().sum()
    for index, channel in [(0, 0), (1, 3), (2, 4), (3, 2)]:
        original = type(generator).filter_values

        def without(points, index=index, channel=channel, original=original):
            values = original(generator, points).clone()
            values[index, :, channel] = 0
            return values

        generator.filter_values = without
        less = layer._sample([a.whole for a in layer.axes]).detach()
        del generator.filter_values
        assert result[index, channel] == pytest.approx(((whole - less).square().sum() / energy).item(), rel=1e-3)


def test_the_strongest_comes_first():
    layer = layer_2d()
    result = effects(layer)
    figure = plot_gabors(layer, channels=5)
    titles = [panel.get_title() for panel in figure.axes]
    for row in range(4):
        order = [int(titles[row * 8 + column].split("ch. ")[1].split(":")[0]) for column in (2, 4, 5, 6, 7)]
        assert order == list(np.argsort(-result[row], kind="stable"))


def test_centres_are_marked_where_they_are():
    layer = layer_2d()
    with torch.no_grad():
        layer.generator.mu[0, :] = torch.tensor([0.5, -0.25])
        layer.generator.mu[1, :] = torch.tensor([3.0, 0.25])
    figure = plot_gabors(layer, channels=1)
    (inside,), (outside,) = marked(figure.axes[0], "centre"), marked(figure.axes[4], "centre")
    assert (inside.get_xdata()[0], inside.get_ydata()[0]) == (-0.25, 0.5)  # columns are the second axis
    assert (outside.get_xdata()[0], outside.get_ydata()[0]) == (0.25, 1.0)
    assert outside.get_markerfacecolor() == "white"


def test_a_flat_envelope_and_a_mask_of_0_do_not_break_it(draw):
    layer = layer_2d()
    with torch.no_grad():
        layer.generator.gamma.zero_()
        layer.generator.output.weight.zero_()
    draw(plot_gabors(layer, channels=1))


@pytest.mark.parametrize("kernel", ["siren", "mlp", "fourier", "njet"])
def test_other_generators_have_no_gabors(kernel):
    layer = FlexConv2d(1, 1, 9, kernel=kernel)
    with pytest.raises(
        ValueError, match=f"MAGNet or GaborNet; the generator of this layer is {type(layer.generator).__name__}"
    ):
        plot_gabors(layer)


def test_bad_channels():
    with pytest.raises(ValueError, match="channels must be at least 1; got 0"):
        plot_gabors(layer_2d(), channels=0)
