"""What all plots have in common: no side effects, one style, clear errors."""

from __future__ import annotations

import ast
import importlib
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, viz
from flexconv.nn import MAGNet
from flexconv.viz.style import THEMES

PLOTS = {
    "kernel": viz.plot_kernel,
    "spectrum": viz.plot_spectrum,
    "gabors": viz.plot_gabors,
    "masks": viz.plot_masks,
}
PLOTS_OF_ONE_LAYER = ["kernel", "spectrum", "gabors"]
SMALL = partial(MAGNet, hidden=2, layers=1)  # few panels, because rendering takes most of the time


@pytest.mark.parametrize("name", PLOTS)
def test_plots_do_not_change_layer_gradients_or_random_state(name, draw):
    layer = FlexConv2d(1, 2, 9, generator=SMALL, mask=GaussianMask(2, sigma=0.3)).requires_grad_()
    layer(torch.randn(1, 1, 9, 9)).sum().backward()
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    grads = {key: p.grad.clone() for key, p in layer.named_parameters()}
    attributes = {key: value for key, value in vars(layer).items() if key != "_extent"}
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    draw(PLOTS[name](layer))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert all(torch.equal(value, state[key]) for key, value in layer.state_dict().items())
    assert all(torch.equal(p.grad, grads[key]) and p.requires_grad for key, p in layer.named_parameters())
    assert {key: value for key, value in vars(layer).items() if key != "_extent"} == attributes
    assert layer.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_draws_layers_of_any_dtype(name, dtype, draw):
    draw(PLOTS[name](FlexConv1d(1, 1, 9, generator=SMALL, dtype=dtype)))


@pytest.mark.parametrize("name", PLOTS)
def test_draws_axes_with_a_single_tap(name, draw):
    draw(PLOTS[name](FlexConv2d(1, 1, (1, 5), generator=SMALL)))


@pytest.mark.parametrize("name", PLOTS)
def test_figures_fit_a_page_and_use_an_available_font(name, draw, caplog):
    with caplog.at_level(logging.WARNING, logger="matplotlib"):
        figure = draw(PLOTS[name](FlexConv2d(1, 2, 9)))
    assert isinstance(figure, Figure)
    assert figure.get_figwidth() <= 7.21
    assert not caplog.records


def test_ignores_and_keeps_the_matplotlib_settings_of_the_user():
    layer = FlexConv1d(1, 1, 9)
    with mpl.rc_context({"figure.facecolor": "black", "text.color": "yellow", "font.size": 30, "axes.grid": True}):
        before = dict(mpl.rcParams)
        figure = viz.plot_kernel(layer)
        assert dict(mpl.rcParams) == before
    assert figure.get_facecolor() == (1, 1, 1, 1)
    assert figure.axes[0].title.get_color() == figure.axes[0].xaxis.label.get_color() != "yellow"


@pytest.mark.parametrize("name", PLOTS)
def test_dark_theme_has_light_text_on_a_dark_background(name, draw):
    layer = FlexConv2d(1, 2, 9, generator=SMALL)
    with viz.use_theme("dark"):
        figure = draw(PLOTS[name](layer))
    assert brightness(figure.get_facecolor()) < 0.2
    panels = [panel for panel in figure.axes if panel.get_title()]
    assert panels
    assert all(brightness(panel.title.get_color()) > 0.8 for panel in panels)
    assert all(brightness(text.get_color()) > 0.8 for each in figure.legends for text in each.get_texts())
    assert PLOTS[name](layer).get_facecolor() == (1, 1, 1, 1)  # outside of the block


def brightness(colour):
    return sum(mpl.colors.to_rgb(colour)) / 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_zero_has_the_color_of_the_background(theme):
    colours = THEMES[theme]
    background = np.array(mpl.colors.to_rgb(colours.background))
    for colormap, value in ((colours.signed, 0.5), (colours.share, 0.0), (colours.energy, 0.0)):
        np.testing.assert_allclose(colormap(value)[:3], background, atol=0.05)


def test_rejects_an_unknown_theme():
    with pytest.raises(ValueError, match=r"theme 'sepia'.*'light', 'dark'"), viz.use_theme("sepia"):
        pass


def test_save_themes_writes_transparent_and_reproducible_files(tmp_path):
    layer = FlexConv1d(1, 1, 9)
    paths = viz.save_themes(lambda: viz.plot_kernel(layer, channels=1), tmp_path / "kernel.png", dpi=60)
    assert [path.name for path in paths] == ["kernel-light.png", "kernel-dark.png"]
    before = [path.read_bytes() for path in paths]
    assert before[0] != before[1]
    for path, dark in zip(paths, (False, True), strict=True):
        pixels = mpl.image.imread(path)
        assert {*np.unique(pixels[..., 3])} == {0, 1}
        assert pixels[0, 0, 3] == 0
        shown = pixels[pixels[..., 3] == 1][:, :3].mean(1)
        assert (shown.max() > 0.8) if dark else (shown.min() < 0.3)  # the text
    viz.save_themes(lambda: viz.plot_kernel(layer, channels=1), tmp_path / "kernel.png", dpi=60)
    assert [path.read_bytes() for path in paths] == before


def test_figures_are_saved_for_high_resolution_screens():
    assert viz.plot_masks(FlexConv1d(1, 1, 9)).dpi >= 200


@pytest.mark.parametrize("name", PLOTS_OF_ONE_LAYER)
def test_titles_name_the_layer(name):
    layer = FlexConv2d(1, 1, 9, generator=SMALL)
    assert "blocks.0.conv1 (FlexConv2d)" in PLOTS[name](layer, name="blocks.0.conv1").get_suptitle()
    assert "(FlexConv2d)" not in PLOTS[name](layer).get_suptitle()


@pytest.mark.parametrize("name", PLOTS)
def test_boxes_and_contours_are_explained_in_the_legend(name):
    figure = PLOTS[name](FlexConv2d(1, 1, 9, generator=SMALL))
    labels = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    expected = {"kernel": ["kept", "threshold"], "masks": ["kept", "threshold"], "spectrum": ["Nyquist", "bound"]}
    for word in expected.get(name, ["kept", "center", "Nyquist", "standard deviation"]):
        assert word in labels


@pytest.mark.parametrize("path", sorted(Path(viz.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_legends_have_a_fixed_place(path):
    """The default, `loc="best"`, is slow with many points, and matplotlib warns about it."""
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "legend":
            places = [keyword.value.value for keyword in call.keywords if keyword.arg == "loc"]
            assert places
            assert places != ["best"]


def test_does_not_import_pyplot(tmp_path):
    program = (
        "import sys, flexconv; from flexconv import viz; viz.plot_masks(flexconv.FlexConv1d(1, 1, 5)).savefig('m.png');"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    assert result.stdout.strip() == "False"
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_import_error_without_matplotlib_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("flexconv.viz")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[viz\]"'):
        importlib.import_module("flexconv.viz")


@pytest.mark.parametrize("name", PLOTS_OF_ONE_LAYER)
def test_rejects_what_is_not_a_flexconv_layer(name):
    with pytest.raises(TypeError, match=f"plot_{name} .* Conv2d$"):
        PLOTS[name](nn.Conv2d(1, 1, 3))
    with pytest.raises(TypeError, match=f"plot_{name} .* str"):
        PLOTS[name]("layer")
    with pytest.raises(TypeError, match=r"Sequential.* model.get_submodule\('1'\)"):
        PLOTS[name](nn.Sequential(nn.ReLU(), FlexConv2d(1, 1, 3)))


@pytest.mark.parametrize("name", PLOTS)
def test_rejects_layers_on_the_meta_device(name):
    with pytest.raises(ValueError, match=f"plot_{name}.* meta device"):
        PLOTS[name](FlexConv2d(1, 1, 3, device="meta"))


@pytest.mark.parametrize("name", PLOTS)
def test_rejects_a_mask_with_nan(name):
    layer = FlexConv2d(1, 1, 9)
    with torch.no_grad():
        layer.mask.set_(sigma=float("nan"))
    with pytest.raises(ValueError, match="finite"):
        PLOTS[name](layer)


def test_every_public_name_exists():
    assert all(callable(getattr(viz, name)) for name in viz.__all__)
