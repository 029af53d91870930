"""The plot of a spectrum shows the bounds of the formulas and the energies of the Fourier transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, spectrum
from flexconv.nn import Axis
from flexconv.viz import _spectrum_numbers as numbers
from flexconv.viz import plot_spectrum

from .conftest import marked, title_of


def positions(panel, gid):
    return [line.get_xdata()[0] for line in marked(panel, gid)]


def curves(figure):
    return [panel for panel in figure.axes if "cycles per sample" in panel.get_xlabel() and not panel.images]


def per_sample(layer, frequencies):
    """Frequencies in cycles per sample of the layer's grid. Those of `flexconv.spectrum` are in cycles per unit."""
    return [value * axis.spacing for value, axis in zip(list(frequencies), layer.axes, strict=True)]


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_bounds_equal_max_frequency(dims, mask, draw):
    layer = [FlexConv1d, FlexConv2d, FlexConv3d][dims - 1](1, 2, 7 if dims == 3 else 17)
    figure = draw(plot_spectrum(layer, mask=mask, cutoff=1.5))
    for formula in spectrum.FORMULAS:
        bound = per_sample(layer, spectrum.max_frequency(layer, mask=mask, cutoff=1.5, formula=formula).tolist())
        drawn = [positions(panel, f"bound {formula}")[0] for panel in curves(figure)]
        assert drawn == pytest.approx(bound)
    assert len(curves(figure)) == dims


def test_2d_images_have_boxes_for_bounds_and_nyquist_frequencies(draw):
    layer = FlexConv2d(1, 2, (17, 9), mask=GaussianMask(2, sigma=(0.2, 0.4)))
    figure = draw(plot_spectrum(layer))
    pictures = [panel for panel in figure.axes if panel.images and "taps" in panel.get_title()]
    titles = ["sampled at 17 × 9 taps (resolution of the layer)", "sampled at 33 × 17 taps"]
    assert [panel.get_title() for panel in pictures] == titles
    for panel in pictures:
        boxes = {artist.get_gid(): artist for artist in panel.patches}
        expected = {f"bound {name}": spectrum.max_frequency(layer, formula=name).tolist() for name in spectrum.FORMULAS}
        expected |= {"nyquist 1": [4.0, 2.0], "nyquist 2": [8.0, 4.0], "measured": spectrum.measured_bandwidth(layer)}
        assert {*boxes} == {*expected}
        for name, frequencies in expected.items():
            height, width = per_sample(layer, frequencies)
            assert (boxes[name].get_height() / 2, boxes[name].get_width() / 2) == pytest.approx((height, width))


def test_nyquist_lines_equal_the_nyquist_frequencies_of_the_grids():
    layer = FlexConv1d(1, 1, 33)
    (panel,) = curves(plot_spectrum(layer, scales=(1, 2, 0.5)))
    spacing = 2 / 32
    assert positions(panel, "nyquist 1") == [spacing * spectrum.nyquist(33)] == [0.5]
    assert positions(panel, "nyquist 2") == [spacing * spectrum.nyquist(65)]
    assert positions(panel, "nyquist 0.5") == [spacing * spectrum.nyquist(17)]
    assert marked(panel, "spectrum 2")[0].get_xdata()[-1] == spacing * spectrum.nyquist(65)
    labels = {text.get_position()[0]: text.get_text() for text in panel.texts}
    assert labels == {0.5: "Nyquist,\n33 taps", 1.0: "Nyquist,\n65 taps", 0.25: "Nyquist,\n17 taps"}


@pytest.mark.parametrize("kernel", ["magnet", "siren", "njet"])
@pytest.mark.parametrize("dims", [1, 2])
def test_measured_line_equals_measured_bandwidth(dims, kernel):
    layer = (FlexConv1d, FlexConv2d)[dims - 1](2, 2, 17, generator=kernel, mask=GaussianMask(dims, sigma=0.3))
    figure = plot_spectrum(layer, energy=0.95)
    drawn = [positions(panel, "measured")[0] for panel in curves(figure)]
    bin_width = 1 / (2 * 2 * 4)  # of the zero-padded transform
    measured = per_sample(layer, spectrum.measured_bandwidth(layer, energy=0.95))
    assert drawn == pytest.approx(measured, abs=1.01 * bin_width * layer.axes[0].spacing)


def test_generators_without_a_formula_have_no_bound(draw):
    figure = draw(plot_spectrum(FlexConv2d(1, 2, 9, generator="siren")))
    assert not [a for panel in figure.axes for a in panel.get_children() if str(a.get_gid()).startswith("bound")]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert not any("bound" in label for label in labels)
    assert any("99 % of the energy" in label for label in labels)


def test_njet_has_only_the_exact_bound():
    (panel,) = curves(plot_spectrum(FlexConv1d(1, 2, 17, generator="njet", mask=None)))
    assert marked(panel, "bound exact")
    assert not marked(panel, "bound authors")


def test_legend_states_the_frequencies():
    layer = FlexConv2d(1, 2, (17, 9), parametrization="paper")
    labels = [text.get_text() for text in plot_spectrum(layer).legends[0].get_texts()]
    exact = per_sample(layer, spectrum.max_frequency(layer).tolist())
    assert "17 × 9 taps, up to the Nyquist frequency 0.50" in labels
    assert f"bound, exact formula: {exact[0]:.2f} × {exact[1]:.2f}" in labels
    assert len([label for label in labels if label.startswith("bound")]) == 3


def smooth_layer():
    layer = FlexConv1d(1, 1, 33, mask=GaussianMask(1, sigma=0.12))
    with torch.no_grad():
        layer.generator.frequency.mul_(0.05)
        layer.generator.gamma.mul_(0.3)
    return layer


def test_spectra_of_a_kernel_without_aliasing_agree_at_all_resolutions():
    (panel,) = curves(plot_spectrum(smooth_layer(), scales=(1, 2)))
    coarse, fine = (marked(panel, f"spectrum {scale}")[0] for scale in (1, 2))
    at = coarse.get_xdata()[coarse.get_xdata() < 6 / 16]
    low, high = (np.interp(at, curve.get_xdata(), curve.get_ydata()) for curve in (coarse, fine))
    loud = low > -50
    assert loud.sum() > 10
    np.testing.assert_allclose(low[loud], high[loud], atol=0.5)


def test_marginal_of_a_constant_generator_is_the_spectrum_of_the_mask():
    """The energy spectrum of the mask is Σ_channels 2π σ² exp(−(2πfσ)²) · √π σ', where σ' is along the other axis."""
    layer = FlexConv2d(2, 3, 33, mask=GaussianMask(2, sigma=(0.1, 0.2)), parametrization="paper")
    with torch.no_grad():
        layer.generator.output.weight.zero_()
        layer.generator.output.bias.fill_(1.0)
    frequency, density = numbers.marginal(layer, 0, layer.axes[0], mask=True)
    frequency = frequency / layer.axes[0].spacing  # in cycles per unit
    expected = 6 * 2 * np.pi * 0.1**2 * np.exp(-((2 * np.pi * frequency * 0.1) ** 2)) * np.sqrt(np.pi) * 0.2
    low = frequency < 3
    np.testing.assert_allclose(density[low], expected[low], rtol=1e-3)
    picture = numbers.plane(layer, layer.axes, mask=True)
    middle = tuple(size // 2 for size in picture.shape)
    assert np.unravel_index(picture.argmax(), picture.shape) == middle
    assert picture.max() == pytest.approx(6 * (2 * np.pi * 0.1 * 0.2) ** 2, rel=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("size", "scale", "taps"), [(33, 2, 65), (33, 1, 33), (33, 1.1, 35), (33, 0.5, 17), (8, 2, 15)]
)
def test_resampled_axes_keep_their_range_and_the_current_sample(size, scale, taps, causal):
    axis = numbers.resampled(Axis(size, causal), scale)
    if scale != 1.1:
        assert axis.size == taps
    assert axis.spacing == pytest.approx(Axis(size, causal).spacing / scale)
    line = axis.coordinates(axis.whole, device=torch.device("cpu"), dtype=torch.float64)
    assert line[0] >= -1 - 1e-9
    assert line[-1] <= 1 + 1e-9
    if causal or size % 2:
        assert line.sub(axis.current).abs().min() < 1e-9


def test_large_layers_show_a_selection_of_channels(monkeypatch):
    monkeypatch.setattr(numbers, "MAX_CHANNELS", 4)
    assert "4 of 6 channels" in title_of(plot_spectrum(FlexConv1d(2, 3, 9)))
    assert "4 channels" in title_of(plot_spectrum(FlexConv1d(2, 2, 9)))


def test_slabs_do_not_change_the_result(monkeypatch):
    layer = FlexConv2d(2, 2, 17)
    whole = numbers.marginal(layer, 1, layer.axes[1], mask=True)[1], numbers.plane(layer, layer.axes, mask=True)
    monkeypatch.setattr(numbers, "BUDGET", 1 << 12)
    monkeypatch.setattr(numbers, "MIN_CHANNELS", 4)
    parts = numbers.marginal(layer, 1, layer.axes[1], mask=True)[1], numbers.plane(layer, layer.axes, mask=True)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-9 * one.max())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": ()}, r"scales must be 1 to 4 different numbers.* \(\)"),
        ({"scales": 2}, "scales must be 1 to 4 different numbers.* 2"),
        ({"scales": (1, 1)}, r"different numbers.* \(1, 1\)"),
        ({"scales": (1, 0)}, "scales must be positive.* 0"),
        ({"scales": (1, float("nan"))}, "scales must be positive.* nan"),
        ({"cutoff": -1.0}, "cutoff must be positive.* -1"),
        ({"energy": 1.0}, "energy must lie between 0 and 1.* 1.0"),
    ],
)
def test_rejects_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        plot_spectrum(FlexConv1d(1, 1, 9), **options)


def test_rejects_a_kernel_with_nan():
    layer = FlexConv1d(1, 1, 9)
    with torch.no_grad():
        layer.generator.output.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        plot_spectrum(layer)
