"""Gradients of masks on resampled grids: guarded once, alike in every way that kernels are sampled."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from flexconv import at_resolution
from flexconv._fast.kernel_sampler import KernelSampler
from flexconv.nn import FlexConv1d, FlexConv2d, GaussianMask, RotatedGaussianMask

LIMIT = 1 / 3 * 0.25  # of σ: a third of the spacing of 9 taps


guarded = functools.partial(GaussianMask, 1, form="guarded", dtype=torch.float64)


def network(mean, sigma, *, make_mask=GaussianMask, conv=FlexConv1d, form="guarded"):
    dims = conv.dims
    masks = [make_mask(dims, form=form, mean=mean, sigma=sigma, dtype=torch.float64) for _ in range(2)]
    return nn.Sequential(*(conv(1, 1, 9, mask=mask, dtype=torch.float64) for mask in masks))


def mask_gradients(net, *, together):
    """Gradients of the parameters of all masks."""
    parameters = [p for layer in net for p in layer.mask.parameters()]
    x = torch.linspace(-1, 1, 21, dtype=torch.float64).sin().expand(1, 1, *(21,) * net[0].dims)
    if together:
        sampler = KernelSampler(net)
        assert not sampler.alone
        with sampler.ahead():
            loss = net(x).square().sum()
    else:
        loss = net(x).square().sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


@pytest.mark.parametrize("form", ["guarded", "scaled"])
@pytest.mark.parametrize(("mean", "sigma"), [(0.0, 0.02), (0.0, -0.02), (1.3, 0.3), (-1.3, 0.01), (0.2, 0.4)])
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_kernels_sampled_together_have_same_mask_gradients(form, mean, sigma, scale):
    torch.manual_seed(0)
    net = at_resolution(network(mean, abs(sigma) if form == "scaled" else sigma, form=form), scale)
    expected = mask_gradients(net, together=False)
    torch.testing.assert_close(mask_gradients(net, together=True), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.02, 0.4])
def test_rotated_masks_sampled_together_have_same_gradients(sigma):
    torch.manual_seed(0)
    net = at_resolution(network(0.1, sigma, make_mask=RotatedGaussianMask, conv=FlexConv2d), 2)
    expected = mask_gradients(net, together=False)
    torch.testing.assert_close(mask_gradients(net, together=True), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [1, 2, 3])
@pytest.mark.parametrize("weight", [1.0, -1.0])
@pytest.mark.parametrize("tap", [0, 1, 2])
def test_gradient_at_limit_is_that_inside_or_zero(scale, weight, tap):
    """The sum of all terms is kept or dropped, never one term of it."""
    layer = at_resolution(FlexConv1d(1, 1, 9, mask=guarded(sigma=0.2), dtype=torch.float64), scale)
    (axis,) = layer.axes
    (line,) = layer.coordinates([axis.whole])

    def gradient(sigma):
        layer.mask.set_(sigma=sigma)
        value = weight * layer.mask([line], [axis])[len(line) // 2 + tap * scale]
        (found,) = torch.autograd.grad(value, layer.mask.sigma)
        return found.item()

    inside, below = gradient(LIMIT * (1 + 1e-9)), gradient(LIMIT * (1 - 1e-9))
    assert below == pytest.approx(
        min(inside, 0.0), rel=1e-6, abs=1e-12
    )  # descent with a negative gradient makes σ grow


@pytest.mark.parametrize("scale", [0.5, 1, 2, 3])
def test_gradients_inside_limits_agree_with_finite_differences(scale):
    torch.manual_seed(0)
    layer = at_resolution(FlexConv1d(1, 1, 17, mask=guarded(mean=0.3, sigma=0.25), dtype=torch.float64), scale)
    (axis,) = layer.axes
    lines = layer.coordinates([axis.whole])
    random = torch.randn(axis.size, dtype=torch.float64)

    def loss(mean, sigma):
        return (layer.mask.evaluate(layer.mask.guarded(mean, sigma, [axis]), lines, [axis]) * random).sum()

    values = [v.detach().clone().requires_grad_() for v in (layer.mask.mean, layer.mask.sigma)]
    assert torch.autograd.gradcheck(loss, values)
    expected = torch.autograd.grad(loss(*values), values)
    found = torch.autograd.grad((layer.mask(lines, [axis]) * random).sum(), list(layer.mask.parameters()))
    torch.testing.assert_close(found, expected)
