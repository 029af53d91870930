"""The page marks a layer by the measured energy of its kernel, not by the bound on its frequencies."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from flexconv import FlexConv1d, GaussianMask
from flexconv.explorer import write_page
from flexconv.nn import FourierNet

from .reading import find, needs_browser

pytestmark = needs_browser


def waves(frequency):
    """A layer of 33 taps, with Nyquist frequency 8, whose kernel has this frequency and a bound far above it."""
    layer = FlexConv1d(
        1,
        1,
        33,
        generator=partial(FourierNet, hidden=2, layers=1),
        mask=GaussianMask(1, sigma=0.3),
        parametrization="paper",
    )
    with torch.no_grad():
        layer.generator.mix_bias.zero_()
        layer.generator.output.bias.zero_()
        layer.generator.frequency.zero_()
        layer.generator.phase.fill_(torch.pi / 2)
        layer.generator.frequency[0, 0] = 2 * torch.pi * frequency
        layer.generator.frequency[0, 1] = 100 * torch.pi  # a channel that counts for the bound alone
        layer.generator.mix_weight[..., 1] = 0
    return layer


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    write_page(waves(2.0), folder / "smooth.html")
    write_page(waves(14.0), folder / "rough.html")
    return folder


@pytest.mark.parametrize(("name", "aliased"), [("smooth", False), ("rough", True)])
def test_marks_a_layer_only_if_much_energy_is_folded(visit, name, aliased):
    page = visit(name)
    assert bool(page.find_elements("css selector", "#numbers .beyond")) == aliased
    text = find(page, "#numbers").text
    assert "Energy beyond Nyquist" in text
    assert ("costs accuracy" in text) == aliased
    shown = page.execute_script("return explorer.current().layer")
    assert shown["frequency"][0] > 3 * shown["nyquist"][0]
