"""The plot of a kernel shows the values that the layer computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask
from flexconv.resolution import at_resolution
from flexconv.viz import plot_kernel

from .conftest import title_of

OFF_CENTRE = [
    GaussianMask(2, mean=(0.4, -0.3), sigma=(0.15, 0.4)),
    RotatedGaussianMask(mean=(0.2, -0.3), sigma=(0.12, 0.45), angle=0.6),
]


def images(figure):
    return [panel.images[0] for panel in figure.axes if panel.images]


def whole(layer):
    """The values of the generator and of the uncropped mask on the whole grid, as the layer computes them."""
    lines = [a.coordinates(a.whole, device=torch.device("cpu"), dtype=torch.float32) for a in layer.axes]
    raw = layer.generator(torch.stack(torch.meshgrid(*lines, indexing="ij"))).detach()
    threshold, layer.mask.threshold = layer.mask.threshold, None
    mask = layer.mask(lines, layer.axes).detach()
    layer.mask.threshold = threshold
    return raw.unflatten(0, (layer.out_channels, -1)), mask


@pytest.mark.parametrize("mask", ["gaussian", *OFF_CENTRE], ids=["init", "off-centre", "rotated"])
def test_2d_shows_generator_mask_product_and_crop(mask, draw):
    layer = FlexConv2d(2, 3, (17, 13), mask=mask)
    figure = draw(plot_kernel(layer, channels=[(2, 1)]))
    raw, values = whole(layer)
    shown = [np.asarray(image.get_array()) for image in images(figure)[:4]]
    for result, expected in zip(
        shown, (raw[2, 1], values, raw[2, 1] * values, layer.kernel()[2, 1].detach()), strict=True
    ):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)
    assert shown[3].shape == layer.extent


def test_box_marks_the_crop():
    layer = FlexConv2d(2, 3, 17, mask=GaussianMask(2, mean=(0.4, -0.3), sigma=(0.15, 0.4)))
    figure = plot_kernel(layer, channels=1)
    crop = figure.axes[3].images[0]
    left, right, bottom, top = crop.get_extent()
    for panel in figure.axes[:3]:
        (box,) = panel.patches
        assert (box.get_x(), box.get_x() + box.get_width()) == pytest.approx((left, right))
        assert (box.get_y(), box.get_y() + box.get_height()) == pytest.approx((top, bottom))
    product, kernel = (np.asarray(figure.axes[i].images[0].get_array()) for i in (2, 3))
    (start, stop), (first, last) = layer.taps
    np.testing.assert_allclose(product[start:stop, first:last], kernel, rtol=1e-5, atol=1e-7)
    spacing = 2 / 16
    assert top == pytest.approx(-1 + (start - 0.5) * spacing)  # half a tap above the first row
    assert left == pytest.approx(-1 + (first - 0.5) * spacing)


def test_kernels_share_one_symmetric_colour_scale():
    layer = FlexConv2d(2, 3, 17)
    figure = plot_kernel(layer, channels=3)
    scales = {image.get_clim() for image in images(figure) if image.get_clim() != (0, 1)}
    ((low, high),) = scales
    assert low == -high
    pairs = [(0, 0), (1, 0), (2, 1)]
    assert high == pytest.approx(max(layer.kernel()[pair].abs().max().item() for pair in pairs), rel=1e-6)


def test_selects_channel_pairs_evenly_and_labels_them(draw):
    layer = FlexConv2d(4, 8, 9)
    figure = draw(plot_kernel(layer, channels=3))
    labels = [panel.get_ylabel() for panel in figure.axes if panel.get_ylabel()]
    channels = [label.split("\n")[0] for label in labels]
    assert channels == ["output 0, input 0", "output 4, input 0", "output 7, input 3"]
    assert "3 of 32 channel pairs" in title_of(figure)
    assert "size 7 × 7" in title_of(figure)
    assert "2 channel pairs" in title_of(plot_kernel(FlexConv2d(2, 1, 9), channels=50))


def test_counts_input_channels_within_their_group(draw):
    layer = FlexConv2d(4, 8, 9, groups=4)
    draw(plot_kernel(layer, channels=[(7, 0)]))
    with pytest.raises(ValueError, match=r"channel pair \(0, 1\).* 1 input channels per group"):
        plot_kernel(layer, channels=[(0, 1)])


@pytest.mark.parametrize("padding", ["same", "causal"])
def test_1d_draws_taps_on_a_smooth_curve(padding, draw):
    layer = FlexConv1d(2, 3, 33, padding=padding, mask=GaussianMask(1, sigma=0.3))
    figure = draw(plot_kernel(layer, channels=[(1, 0)]))
    raw, mask = whole(layer)
    expected = [raw[1, 0], mask, raw[1, 0] * mask, layer.kernel()[1, 0].detach()]
    for panel, values in zip(figure.axes, expected, strict=True):
        (taps,) = [line for line in panel.lines if line.get_label() == "taps"]
        np.testing.assert_allclose(taps.get_ydata(), values, rtol=1e-5, atol=1e-7)
    curve = figure.axes[2].lines[1]
    taps = figure.axes[2].lines[2]
    at_taps = np.interp(taps.get_xdata(), curve.get_xdata(), curve.get_ydata())
    np.testing.assert_allclose(at_taps, taps.get_ydata(), atol=1e-6)
    assert len(curve.get_xdata()) > 10 * 33
    assert taps.get_xdata()[[0, -1]] == pytest.approx([-1, 1])


def test_labels_the_current_sample_of_causal_axes_now():
    layer = FlexConv1d(1, 1, 33, padding="causal", mask=GaussianMask(1, sigma=0.3))
    figure = plot_kernel(layer, channels=1)
    for panel in figure.axes:
        assert [label.get_text() for label in panel.get_xticklabels()][-1] == "now"
    assert figure.axes[3].lines[1].get_xdata()[-1] == pytest.approx(1.0)
    centred = plot_kernel(FlexConv1d(1, 1, 33), channels=1)
    assert [label.get_text() for label in centred.axes[0].get_xticklabels()] == ["−16", "0", "16"]


def test_draws_no_stems_for_long_kernels(draw):
    figure = draw(plot_kernel(FlexConv1d(1, 1, 2001, mask=GaussianMask(1, sigma=0.3)), channels=1))
    assert not any(panel.collections for panel in figure.axes)


def test_3d_shows_three_planes_through_the_centre(draw):
    mask = GaussianMask(3, mean=(1.0, 0.5, -0.25), sigma=0.4)
    layer = FlexConv3d(1, 2, (5, 9, 9), padding=("causal", "same", "same"), mask=mask)
    figure = draw(plot_kernel(layer, channels=1))
    raw, values = whole(layer)
    product, shown = raw[0, 0] * values, images(figure)
    for row, plane in enumerate((product[4], product[:, 6], product[:, :, 3])):
        np.testing.assert_allclose(np.asarray(shown[4 * row + 2].get_array()), plane, rtol=1e-5, atol=1e-7)
    kernel = layer.kernel()[0, 0].detach()
    starts = [start for start, _ in layer.taps]
    cuts = (kernel[4 - starts[0]], kernel[:, 6 - starts[1]], kernel[:, :, 3 - starts[2]])
    for row, plane in enumerate(cuts):
        np.testing.assert_allclose(np.asarray(shown[4 * row + 3].get_array()), plane, rtol=1e-5, atol=1e-7)
    assert "at depth now" in figure.axes[0].get_ylabel()
    assert "at height 2" in figure.axes[4].get_ylabel()


@pytest.mark.parametrize(("kernel", "sizes"), [("magnet", (9, 9)), ("njet", (9, 9))])
def test_layer_without_mask_has_two_columns(kernel, sizes, draw):
    layer = FlexConv2d(1, 1, 9, mask=None, generator=kernel)
    figure = draw(plot_kernel(layer))
    shown = images(figure)
    assert [np.asarray(image.get_array()).shape for image in shown[:2]] == [(9, 9), sizes]
    np.testing.assert_allclose(np.asarray(shown[1].get_array()), layer.kernel()[0, 0].detach(), rtol=1e-5, atol=1e-7)


def test_empty_kernel_is_reported_in_the_plot(draw):
    layer = FlexConv2d(1, 1, 8, padding="valid", mask=GaussianMask(2, sigma=0.01, form="authors"))
    assert layer.extent == (0, 0)
    figure = draw(plot_kernel(layer, channels=1))
    assert any(text.get_text() == "no tap is kept" for panel in figure.axes for text in panel.texts)


def test_values_include_the_kernel_scale():
    layer = FlexConv2d(1, 1, 9)
    before = np.asarray(images(plot_kernel(layer))[0].get_array())
    layer.grid = layer.grid._replace(scale=0.25)
    np.testing.assert_allclose(np.asarray(images(plot_kernel(layer))[0].get_array()), 0.25 * before)


@pytest.mark.parametrize("scale", [2, 1.5, 0.5])
def test_draws_resampled_layers(scale, draw):
    trained = FlexConv1d(1, 1, 33, padding="causal", mask=GaussianMask(1, sigma=0.3))
    layer = at_resolution(trained, scale)
    figure = draw(plot_kernel(layer))
    (taps,) = [line for line in figure.axes[3].lines if line.get_label() == "taps"]
    np.testing.assert_allclose(taps.get_ydata(), layer.kernel()[0, 0].detach(), rtol=1e-5, atol=1e-7)
    low, high = figure.axes[3].get_ylim()
    assert low < min(taps.get_ydata())
    assert max(taps.get_ydata()) < high


@pytest.mark.parametrize(
    ("channels", "error", "message"),
    [
        (0, ValueError, "channels must be at least 1.* 0"),
        (True, TypeError, "channels must be a number.* True"),
        ("all", TypeError, "channels must be a number.* 'all'"),
        ([], TypeError, r"channels must be a number.* \[\]"),
        ([3], TypeError, r"channels must be a number.* \[3\]"),
        ([(0, 2)], ValueError, r"\(0, 2\).* 3 output channels and 2 input channels"),
        ([(-1, 0)], ValueError, r"\(-1, 0\)"),
    ],
)
def test_rejects_invalid_channels(channels, error, message):
    with pytest.raises(error, match=message):
        plot_kernel(FlexConv2d(2, 3, 9), channels=channels)
