"""The plot of the masks of a network."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from flexconv import ChannelGaussianMask, FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask
from flexconv.viz import plot_gabors, plot_kernel, plot_masks, plot_spectrum

from .conftest import marked, title_of


def test_2d_masks_are_images_with_name_size_and_crop(draw):
    masks = [GaussianMask(2, mean=(0.4, -0.3), sigma=(0.1, 0.3)), RotatedGaussianMask(sigma=(0.1, 0.4), angle=0.7)]
    model = nn.Sequential()
    for index, mask in enumerate(masks):
        model.add_module(f"block{index}", nn.Sequential(nn.ReLU(), FlexConv2d(1, 1, (17, 13), mask=mask)))
    figure = draw(plot_masks(model))
    for panel, (name, block) in zip(figure.axes, model.named_children(), strict=True):
        layer = block[1]
        assert panel.get_title() == f"{name}.1\n{layer.extent[0]} × {layer.extent[1]} taps"
        values = np.asarray(panel.images[0].get_array())
        (rows, columns) = layer.taps
        inside = np.zeros(values.shape, bool)
        inside[rows[0] : rows[1], columns[0] : columns[1]] = True
        assert values.shape == (17, 13)
        assert values[~inside].max() <= 0.1 + 1e-6  # cropped taps are below the threshold
        (box,) = marked(panel, "crop")
        assert box.get_height() == pytest.approx(layer.extent[0] * 2 / 16)
        assert box.get_y() == pytest.approx(-1 + (rows[0] - 0.5) * 2 / 16)
        assert box.get_x() == pytest.approx(-1 + (columns[0] - 0.5) * 2 / 12)
        contour = panel.collections[0].get_paths()[0].vertices  # (column, row)
        half_a_tap = 1.01 * np.array([2 / 12, 2 / 16])
        corner = np.array([box.get_x(), box.get_y()])
        assert (contour >= corner - half_a_tap).all()
        assert (contour <= corner + np.array([box.get_width(), box.get_height()]) + half_a_tap).all()


def test_1d_masks_are_curves_with_the_crop_shaded(draw):
    layer = FlexConv1d(1, 1, 33, padding="causal", mask=GaussianMask(1, sigma=0.3))
    (panel,) = draw(plot_masks(layer)).axes
    curve = panel.lines[0]
    np.testing.assert_allclose(curve.get_ydata(), np.exp(-0.5 * ((curve.get_xdata() - 1) / 0.3) ** 2), atol=1e-5)
    (crop,) = marked(panel, "crop")
    spacing, taps = 2 / 32, layer.extent[0]
    ends = crop.get_extents().transformed(panel.transData.inverted())
    assert (ends.x0, ends.x1) == pytest.approx((1 - (taps - 0.5) * spacing, 1 + 0.5 * spacing))
    assert panel.get_title() == f"FlexConv1d\n{taps} taps"
    assert panel.get_xticklabels()[-1].get_text() == "now"


def test_3d_masks_have_one_curve_per_axis(draw):
    layer = FlexConv3d(1, 1, 9, mask=GaussianMask(3, mean=(0.0, 0.25, -0.5), sigma=(0.2, 0.3, 0.4)))
    (panel,) = draw(plot_masks(layer)).axes
    profiles = [line for line in panel.lines if line.get_label() in ("depth", "height", "width")]
    assert len(profiles) == 3
    peaks = [line.get_xdata()[line.get_ydata().argmax()] for line in profiles]
    assert peaks == pytest.approx([0.0, 0.25, -0.5], abs=0.02)
    assert len(marked(panel, "crop")) == 3


def test_titles_of_layers_without_mask_say_so(draw):
    model = nn.Sequential(
        FlexConv2d(1, 1, 9, mask=None),
        FlexConv2d(1, 1, 9, mask=None, generator="njet"),
        FlexConv1d(1, 1, 9, mask=None),
        FlexConv2d(1, 1, 9, mask=GaussianMask(2, threshold=None)),
    )
    titles = [panel.get_title() for panel in draw(plot_masks(model)).axes]
    assert titles == ["0\nno mask, 9 × 9 taps", "1\nno mask, 9 × 9 taps", "2\nno mask, 9 taps", "3\n9 × 9 taps"]


def test_selects_layers_of_deep_models_evenly():
    model = nn.Sequential(*(FlexConv1d(1, 1, 5) for _ in range(30)))
    figure = plot_masks(model, most=4)
    assert [panel.get_title().split("\n")[0] for panel in figure.axes] == ["0", "10", "19", "29"]
    assert "4 of 30 FlexConv layers" in title_of(figure)
    assert "30 FlexConv layers" in title_of(plot_masks(model, most=30))


def test_shortens_long_names_in_the_middle():
    deep = FlexConv1d(1, 1, 5)
    for name in ("flexconv", "residual_branch", "12", "blocks"):
        deep = nn.ModuleDict({name: deep})
    name = plot_masks(deep).axes[0].get_title().split("\n")[0]
    assert name == "blocks.12…exconv"


def test_rejects_invalid_arguments():
    with pytest.raises(ValueError, match="Sequential has no FlexConv layer"):
        plot_masks(nn.Sequential(nn.Conv2d(1, 1, 3)))
    with pytest.raises(TypeError, match=r"plot_masks .*torch.nn.Module.* dict"):
        plot_masks({})
    with pytest.raises(ValueError, match="most must be at least 1"):
        plot_masks(FlexConv1d(1, 1, 5), most=0)


@pytest.mark.parametrize("layer", [FlexConv1d, FlexConv2d, FlexConv3d])
def test_masks_per_channel_are_drawn_for_every_figure(layer, draw):
    dims = layer.dims
    made = layer(3, 3, 9, groups=3, mask=ChannelGaussianMask(dims, 3, sigma=0.2, largest_sigma=0.7))
    (panel,) = draw(plot_masks(made)).axes
    if dims == 1:  # the largest value of all channels
        curve = panel.lines[0]
        np.testing.assert_allclose(curve.get_ydata(), np.exp(-0.5 * (curve.get_xdata() / 0.7) ** 2), atol=1e-5)
    draw(plot_kernel(made))
    draw(plot_spectrum(made))
    draw(plot_gabors(made))
