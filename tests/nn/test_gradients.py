"""Gradients of FlexConv layers, compared with an uncropped convolution and with finite differences."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from torch.autograd import gradcheck
from torch.func import functional_call

from flexconv import GaussianMask, RotatedGaussianMask
from flexconv.nn import GENERATORS
from tests.nn.helpers import layers_and_sizes, make_layer, noise, plain_convolution


@given(layers_and_sizes())
@settings(max_examples=40)
def test_cropped_gradients_equal_uncropped(case):
    layer, size = case
    x = noise(1, layer.in_channels, *size).requires_grad_()
    wanted = [x, *layer.parameters()]
    weights = torch.randn_like(layer(x))
    cropped = torch.autograd.grad((layer(x) * weights).sum(), wanted, allow_unused=True)
    plain = torch.autograd.grad((plain_convolution(layer, x) * weights).sum(), wanted, allow_unused=True)
    scale = max(1.0, *(p.abs().max().item() for p in plain if p is not None))
    for ours, theirs in zip(cropped, plain, strict=True):
        # taps that multiply only padding are not computed, so a missing gradient counts as zero
        ours, theirs = (torch.zeros(()) if g is None else g for g in (ours, theirs))
        assert (ours - theirs).abs().max().item() < 1e-9 * scale


SMALL = {name: {"hidden": 2, "layers": 2} for name in GENERATORS} | {
    "magnet": {"hidden": 2, "layers": 1},
    "gabor": {"hidden": 2, "layers": 1},
    "fourier": {"hidden": 2, "layers": 1},
    "njet": {"order": 2, "reach": 1.0},
}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", "rotated", None])
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_gradcheck_of_generators_and_masks(generator, mask, algorithm):
    # the gradients of scaled masks are damped
    gaussian = {"mean": (0.11, -0.06), "sigma": (0.31, 0.42), "form": "guarded", "dtype": torch.float64}
    masks = {
        "gaussian": GaussianMask(2, **gaussian),
        "rotated": RotatedGaussianMask(2, angle=0.4, **gaussian),
        None: None,
    }
    kernel = partial(GENERATORS[generator], **SMALL[generator])
    layer = make_layer(
        2, 1, 1, (5, 7), generator=kernel, mask=masks[mask], algorithm=algorithm, padding=("causal", "same")
    )
    with torch.no_grad():
        for parameter in layer.generator.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))  # avoid the kink of ReLU
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    x = noise(1, 1, 4, 3).requires_grad_()
    assert gradcheck(run, (x, *parameters), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("dims", [1, 3])
def test_gradcheck_with_stride_dilation_and_groups(dims, algorithm):
    mask = GaussianMask(dims, mean=0.7, sigma=0.4, form="guarded", dtype=torch.float64)
    layer = make_layer(dims, 2, 2, 4, stride=2, dilation=2, groups=2, padding="causal", mask=mask, algorithm=algorithm)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        return functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    x = noise(1, 2, *(5, 3, 2)[:dims]).requires_grad_()
    assert gradcheck(run, (x, *parameters), atol=1e-6, rtol=1e-4)
