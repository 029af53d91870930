"""Training changes the size of a kernel."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch._dynamo.testing
from torch.utils.checkpoint import checkpoint

from flexconv import FlexConv2d, GaussianMask, ops
from flexconv.nn import MAGNet
from tests.nn.helpers import make_network, single_channel_layer, whole_kernel

# dynamo instantiates every autograd.Function that it traces, which torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")


# Only layers with the parametrization of the paper train the features of their generator, and so fit any target.
paper_layer = partial(
    single_channel_layer, 17, bias=False, generator=partial(MAGNet, hidden=16, layers=2), parametrization="paper"
)


def target_filter(layer):
    """Return a Gabor filter with energy 1 on the layer's grid."""
    profiles = []
    for axis in layer.axes:
        x = torch.linspace(-1, 1, axis.size) - axis.current
        profiles.append(torch.exp(-0.5 * (x / 0.4).square()) * torch.cos((4 if axis.causal else 8) * x))
    values = profiles[0] if layer.dims == 1 else profiles[0][:, None] * profiles[1]
    return (values / values.norm())[None, None]


def kernel_loss(layer, target):
    """Return ‖kernel − target‖² over the whole grid."""
    with torch.no_grad():
        return (whole_kernel(layer) - target).square().sum().item()


def train(layer, target, *, model=None, steps=200, optimizer=None):
    """Train the layer to imitate the target filter and return the final `kernel_loss`.

    The inputs are white noise, so the expected training loss is `kernel_loss`.
    """
    model = layer if model is None else model
    groups = [{"params": layer.generator.parameters()}, {"params": layer.mask.parameters(), "lr": 0.05}]
    optimizer = optimizer or torch.optim.Adam(groups, lr=0.02)
    convolve = ops.conv1d if layer.dims == 1 else ops.conv2d
    size = (64,) if layer.dims == 1 else (16, 16)
    for _ in range(steps):
        x = torch.randn(16 if layer.dims == 1 else 8, 1, *size)
        truth = convolve(x, target, padding=layer.padding)
        loss = (model(x) - truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return kernel_loss(layer, target)


def lowest_loss_at_current_size(layer, target):
    """Return the energy of the target outside the current taps: the lowest `kernel_loss` without growing."""
    assert all(n < k for n, k in zip(layer.extent, layer.kernel_size, strict=True))
    inside = target[(..., *(slice(start, stop) for start, stop in layer.taps))]
    return 1 - inside.square().sum().item()


@pytest.mark.parametrize("backend", [None, "aot_eager"])  # inductor would take 40 s
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_layer_grows_to_fit_target(backend, padding):
    layer = paper_layer(sigma=0.12, padding=padding)
    model = layer if backend is None else torch.compile(layer, backend=backend, fullgraph=True)
    target = target_filter(layer)
    first, floor = layer.extent, lowest_loss_at_current_size(layer, target)
    final = train(layer, target, model=model)
    assert final < floor / 4
    assert layer.extent[0] >= first[0] + 3


def test_layer_grows_only_along_axes_of_larger_target():
    kernel = partial(MAGNet, hidden=16, layers=2)
    mask = GaussianMask(2, sigma=0.12)
    layer = FlexConv2d(1, 1, 17, bias=False, mask=mask, generator=kernel, parametrization="paper")
    assert layer.extent == (5, 5)
    target = target_filter(layer)
    target[:, :, :6] = target[:, :, 11:] = 0  # 5 rows, 17 columns
    target /= target.norm()
    floor = lowest_loss_at_current_size(layer, target)
    assert train(layer, target) < floor / 4
    assert layer.extent[0] <= 8
    assert layer.extent[1] >= 11


@pytest.mark.parametrize("sigma", [1e-6, -1e-6, 0.0, -0.05])
def test_layer_recovers_from_vanishing_sigma(sigma):
    layer = paper_layer()
    layer.mask.set_(sigma=[sigma])
    assert layer.extent == (3,)
    target = target_filter(layer)
    floor = lowest_loss_at_current_size(layer, target)
    assert train(layer, target) < floor / 2
    assert layer.extent[0] > 5


@pytest.mark.parametrize("mean", [1.5, -1.5])
def test_layer_recovers_from_mean_outside_grid(mean):
    layer = paper_layer(sigma=0.3)
    layer.mask.set_(mean=[mean])
    assert layer.kernel().abs().max() > 0
    target = target_filter(layer)
    floor = lowest_loss_at_current_size(layer, target)
    assert train(layer, target) < floor / 4
    assert layer.mask.mean.abs().item() < 1


def test_frozen_mask_keeps_size_during_training():
    layer = single_channel_layer(17, sigma=0.3, bias=False, generator=partial(MAGNet, hidden=16, layers=2))
    layer.mask.requires_grad_(False)
    target = target_filter(layer)
    before, size, sigma = kernel_loss(layer, target), layer.extent, layer.mask.sigma.clone()
    optimizer = torch.optim.Adam((p for p in layer.parameters() if p.requires_grad), lr=0.02)
    assert train(layer, target, optimizer=optimizer, steps=80) < before / 4
    assert layer.extent == size
    torch.testing.assert_close(layer.mask.sigma, sigma, rtol=0, atol=0)


def test_checkpointing_keeps_gradients():
    model = make_network().double()
    x = torch.randn(2, 1, 40, dtype=torch.float64, requires_grad=True)
    wanted = [x, *model.parameters()]
    plain = torch.autograd.grad(model(x).square().sum(), wanted)
    again = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), wanted)
    for ours, theirs in zip(again, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
