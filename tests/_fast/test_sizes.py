"""Asynchronous copies of mask parameters. Without a GPU, the copies are simulated."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, _registry
from flexconv._fast import sizes
from flexconv._fast.sizes import Copy, SizeCopies
from flexconv._registry import plain_version
from flexconv.nn import _extent
from tests.conftest import no_synchronization

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class LateCopy(Copy):
    """A copy that arrives when somebody waits for it. It holds the values of the time at which it was started."""

    started, waits = 0, 0

    def _start(self, tensors):
        self.values = [n for t in tensors for n in t.detach().flatten().tolist()]
        LateCopy.started += 1

    def _finish(self):
        LateCopy.waits += 1
        return self.values


class SimulatedCopies(SizeCopies):
    copy = LateCopy

    def supports(self, _):
        return True


@pytest.fixture
def copies(monkeypatch):
    """Copies of parameters in host memory that behave as on a GPU, and a count of reads that would stall it."""
    simulated = SimulatedCopies()
    simulated.stalls = 0
    hook = register_optimizer_step_post_hook(simulated.after_step)

    def read(parameters):
        values = simulated.read(parameters)
        simulated.stalls += values is NotImplemented
        return values

    monkeypatch.setitem(_registry._versions, "nn.read_values", read)
    monkeypatch.setattr(_extent, "_remember", _extent.Versions)  # values on a GPU are not compared
    monkeypatch.setattr(LateCopy, "started", 0)
    monkeypatch.setattr(LateCopy, "waits", 0)
    yield simulated
    hook.remove()


def network():
    return nn.Sequential(FlexConv1d(2, 2, 65, parametrization="paper"), FlexConv1d(2, 2, 65))


def train(net, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(1, 2, 70)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_steps_after_the_first_do_not_stall(copies, fused):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05, fused=fused)
    train(net, optimizer)
    assert copies.stalls == 2
    train(net, optimizer, 5)
    assert copies.stalls == 2
    assert LateCopy.started == 6 + 5  # for all layers: one after each step, one when its values are used
    assert LateCopy.waits == 5 + 4


@pytest.mark.parametrize("rate", [0.01, 10.0])
def test_windows_fit_the_current_masks_whatever_the_step(copies, rate):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(6):
        optimizer.zero_grad()
        y = net(torch.ones(1, 2, 70))
        for layer in net:
            expected = copy.deepcopy(layer)
            assert layer.window == expected.window
            assert layer.taps == expected.taps
        assert torch.equal(y, copy.deepcopy(net)(torch.ones(1, 2, 70)))
        y.square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for p in net.parameters():
                p.nan_to_num_(0.5).clamp_(-2, 2)  # also a change that the copy does not know


def test_changes_after_a_copy_are_noticed(copies):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    train(net, optimizer, 2)
    stalls = copies.stalls
    net[0].mask.set_(sigma=0.5)
    train(net, optimizer)
    assert copies.stalls == stalls + 1
    assert net[0].extent == copy.deepcopy(net[0]).extent
    stalls = copies.stalls
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    other.step()  # may have changed anything
    train(net, optimizer)
    assert copies.stalls == stalls + 2


def test_writes_that_no_version_shows_are_noticed(copies):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    train(net, optimizer, 3)
    net[0].mask.sigma.data.fill_(0.5)
    train(net, optimizer)  # uses the old window
    with pytest.warns(UserWarning, match=r"\.data"):
        train(net, optimizer)
    stalls = copies.stalls
    net[0].mask.sigma.data.fill_(0.2)
    train(net, optimizer, 2)
    assert copies.stalls == stalls + 4
    assert net[0].extent == copy.deepcopy(net[0]).extent


def test_layers_are_not_copied_any_more_if_they_are_not_used(copies):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    train(net, optimizer, 2)
    for _ in range(sizes.UNREAD_COPIES + 1):
        optimizer.step()
    assert not copies._followed
    train(net, optimizer, 2)
    assert len(copies._followed) == 2


def test_only_layers_of_the_optimizer_are_copied(copies):
    net, other = network(), network()
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in (net, other)]
    train(net, optimizers[0])
    train(other, optimizers[1])
    started = LateCopy.started
    optimizers[0].step()
    assert LateCopy.started == started + 1
    assert len(next(iter(copies._followed.values())).copy.values) == 2 + 4  # mean, σ; start, shift, growth


def test_number_of_followed_layers_is_bounded(copies, monkeypatch):
    monkeypatch.setattr(sizes, "MOST_LAYERS", 8)
    for _ in range(30):
        network()(torch.ones(1, 2, 70))
    assert len(copies._followed) <= 8


def test_parameters_can_be_swapped(copies):
    net = network()
    train(net, torch.optim.Adam(net.parameters(), lr=1e-3), 2)
    assert copies._followed
    net.zero_grad()
    torch.utils.swap_tensors(net[0].mask.sigma, nn.Parameter(torch.tensor([0.3])))
    assert net[0].extent == copy.deepcopy(net[0]).extent


def test_reading_without_gradients_uses_the_last_copy(copies):
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    train(net, optimizer, 2)
    stalls = copies.stalls
    with torch.no_grad():
        net(torch.ones(1, 2, 70))
    assert copies.stalls == stalls


@pytest.mark.parametrize("detached", [False, True])
def test_function_transforms_read_the_stored_parameters(copies, detached):
    """Transforms wrap tensors, and the wrappers have no memory. Versions are recorded, as on a GPU."""
    layer, x = FlexConv1d(2, 2, 65), torch.randn(1, 2, 70)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def loss(state):
        return torch.func.functional_call(layer, state, (x,)).square().sum()

    for sigma in (0.1, 0.5, 0.2):
        layer.mask.set_(sigma=sigma)
        state = {name: p.detach() if detached else p for name, p in layer.named_parameters()}
        optimizer.zero_grad()
        loss(dict(layer.named_parameters())).backward()
        stalls = copies.stalls
        found = torch.func.grad(loss)(state)
        assert copies.stalls == stalls + detached  # other tensors are read again
        assert layer.extent == copy.deepcopy(layer).extent
        for name, parameter in layer.named_parameters():
            if parameter.requires_grad:
                torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)
        second = torch.func.grad(lambda state: torch.func.grad(loss)(state)["mask.growth"].sum())(state)
        assert second["mask.growth"].isfinite().all()
        optimizer.step()


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["guarded", "scaled", "authors"])
@pytest.mark.parametrize(
    "make",
    [
        lambda mask: FlexConv1d(1, 1, 33, mask=mask(1)),
        lambda mask: FlexConv1d(1, 1, 33, padding="causal", mask=mask(1)),
        lambda mask: FlexConv2d(1, 1, (3, 33), mask=mask(2)),
        lambda mask: FlexConv3d(1, 1, (1, 5, 9), mask=mask(3)),
    ],
    ids=["1D", "causal", "2D", "3D"],
)
def test_bounds_in_numbers_equal_those_of_the_mask(form, make):
    layer = make(lambda dims: GaussianMask(dims, form=form))
    check_bounds(layer)


@pytest.mark.parametrize("form", ["guarded", "scaled"])
def test_bounds_of_rotated_masks(form):
    check_bounds(FlexConv2d(1, 1, (9, 33), mask=RotatedGaussianMask(form=form)))


def test_bounds_without_threshold():
    check_bounds(FlexConv2d(1, 1, 9, mask=GaussianMask(2, threshold=None)))


def check_bounds(layer):
    for _ in range(50):
        values = [torch.randn_like(p).tolist() for p in layer.mask.size_parameters()]
        found = sizes.size_bounds(layer.mask, values, layer.axes)
        expected = plain_version("nn.size_bounds")(layer.mask, values, layer.axes)
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)


class OtherMask(GaussianMask):
    def bounds(self, parameters, axes):
        return super().bounds(parameters, axes) / 2


def test_other_masks_compute_their_own_bounds():
    layer = FlexConv1d(1, 1, 33, mask=OtherMask(1, sigma=0.4))
    assert sizes.size_bounds(layer.mask, [[0.0], [0.4]], layer.axes) is NotImplemented
    assert layer.extent[0] < FlexConv1d(1, 1, 33, mask=GaussianMask(1, sigma=0.4)).extent[0]


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
@pytest.mark.parametrize("sigma", [None, 2.0])
def test_training_steps_do_not_synchronize(parametrization, sigma):
    net = nn.Sequential(
        FlexConv2d(3, 8, 33, parametrization=parametrization),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        FlexConv2d(8, 8, 33, parametrization=parametrization),
    ).cuda()
    if sigma is not None:
        for layer in (net[0], net[3]):
            layer.mask.set_(sigma=sigma)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, fused=True)
    x = torch.randn(8, 3, 32, 32, device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            net(x).square().mean().backward()
        optimizer.step()

    step()
    step()
    with no_synchronization():
        for _ in range(20):
            step()
    for layer in (net[0], net[3]):
        assert layer.extent == copy.deepcopy(layer).cpu().extent


@gpu
def test_copy_has_the_values_after_the_step():
    net = nn.Sequential(FlexConv1d(2, 2, 65, parametrization="paper"), FlexConv1d(2, 2, 65)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
    x = torch.randn(8, 2, 70, device="cuda")
    for _ in range(5):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        for layer in net:
            parameters = layer.mask.size_parameters()
            assert sizes.copies.read(parameters) == [p.tolist() for p in parameters]
