"""What every picture keeps to: nothing changed, one look, clear errors."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, viz
from flexconv.nn import MAGNet

OF_LAYERS = {
    "kernel": viz.plot_kernel,
    "spectrum": viz.plot_spectrum,
    "gabors": viz.plot_gabors,
    "masks": viz.plot_masks,
}
SINGLE = ["kernel", "spectrum", "gabors"]
SMALL = partial(MAGNet, hidden=2, layers=1)  # few panels: rendering is what takes the time


@pytest.mark.parametrize("name", OF_LAYERS)
def test_the_layer_the_gradients_and_random_numbers_stay_as_they_are(name, draw):
    layer = FlexConv2d(1, 2, 9, kernel=SMALL, mask=GaussianMask(2, sigma=0.3)).train()
    layer(torch.randn(1, 1, 9, 9)).sum().backward()
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    grads = {key: p.grad.clone() for key, p in layer.named_parameters()}
    attributes = {key: value for key, value in vars(layer).items() if key != "_extent"}
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    draw(OF_LAYERS[name](layer))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert all(torch.equal(value, state[key]) for key, value in layer.state_dict().items())
    assert all(torch.equal(p.grad, grads[key]) and p.requires_grad for key, p in layer.named_parameters())
    assert {key: value for key, value in vars(layer).items() if key != "_extent"} == attributes
    assert layer.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", OF_LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_any_precision_can_be_drawn(name, dtype, draw):
    draw(OF_LAYERS[name](FlexConv1d(1, 1, 9, kernel=SMALL, dtype=dtype)))


@pytest.mark.parametrize("name", OF_LAYERS)
def test_single_taps_can_be_drawn(name, draw):
    draw(OF_LAYERS[name](FlexConv2d(1, 1, (1, 5), kernel=SMALL)))


@pytest.mark.parametrize("name", OF_LAYERS)
def test_figures_fit_a_page_and_use_a_font_that_is_there(name, draw, caplog):
    with caplog.at_level(logging.WARNING, logger="matplotlib"):
        figure = draw(OF_LAYERS[name](FlexConv2d(1, 2, 9)))
    assert isinstance(figure, Figure)
    assert figure.get_figwidth() <= 7.21
    assert not caplog.records


def test_the_users_style_is_neither_changed_nor_followed():
    layer = FlexConv1d(1, 1, 9)
    with mpl.rc_context({"figure.facecolor": "black", "text.color": "yellow", "font.size": 30, "axes.grid": True}):
        before = dict(mpl.rcParams)
        figure = viz.plot_kernel(layer)
        assert dict(mpl.rcParams) == before
    assert figure.get_facecolor() == (1, 1, 1, 1)
    assert figure.axes[0].title.get_color() == figure.axes[0].xaxis.label.get_color() != "yellow"


def test_pyplot_is_never_loaded(tmp_path):
    program = (
        "import sys, flexconv; from flexconv import viz; viz.plot_masks(flexconv.FlexConv1d(1, 1, 5)).savefig('m.png');"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    assert result.stdout.strip() == "False"
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("flexconv.viz")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'not installed: pip install "flexconv\[viz\]"'):
        importlib.import_module("flexconv.viz")


@pytest.mark.parametrize("name", SINGLE)
def test_what_is_no_flexconv_is_refused(name):
    with pytest.raises(TypeError, match=f"plot_{name} expects a FlexConv layer; got Conv2d$"):
        OF_LAYERS[name](nn.Conv2d(1, 1, 3))
    with pytest.raises(TypeError, match=f"plot_{name} expects a FlexConv layer; got str"):
        OF_LAYERS[name]("layer")
    with pytest.raises(
        TypeError, match=r"got Sequential; it contains FlexConv layers, such as model.get_submodule\('1'\)"
    ):
        OF_LAYERS[name](nn.Sequential(nn.ReLU(), FlexConv2d(1, 1, 3)))


@pytest.mark.parametrize("name", OF_LAYERS)
def test_meta_layers_have_nothing_to_draw(name):
    with pytest.raises(ValueError, match=f"plot_{name}: the layer is on the meta device"):
        OF_LAYERS[name](FlexConv2d(1, 1, 3, device="meta"))


@pytest.mark.parametrize("name", OF_LAYERS)
def test_a_mask_of_nan_is_refused(name):
    layer = FlexConv2d(1, 1, 9)
    with torch.no_grad():
        layer.mask.sigma.fill_(float("nan"))
    with pytest.raises(ValueError, match="finite"):
        OF_LAYERS[name](layer)


def test_every_public_name_exists():
    assert all(callable(getattr(viz, name)) for name in viz.__all__)
