"""The size of a kernel follows its mask: `layer.extent`, `layer.taps` and `refresh_extents`."""

from __future__ import annotations

import contextlib
import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, RotatedGaussianMask, refresh_extents
from tests.nn.helpers import make_network, set_value, single_channel_layer, tiny_magnet

# dynamo instantiates every autograd.Function that it traces, which torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")

DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
REACH = math.sqrt(-2 * math.log(0.1))  # standard deviations at which a Gaussian falls to the threshold 0.1


def expected_extent(layer):
    """Return the extent of a layer with a GaussianMask by counting taps."""
    counts = []
    for axis, mean, sigma in zip(layer.axes, layer.mask.mean.tolist(), layer.mask.sigma.tolist(), strict=True):
        places = torch.linspace(-1, 1, axis.size, dtype=torch.float64)
        reach = max(abs(sigma) * REACH, 1.5 * axis.spacing)
        counts.append(int(((places - mean).abs() < reach).sum()))
    return tuple(counts)


# --- extent of one layer ----------------------------------------------------------------------------------------------


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def test_extent_follows_changes_in_place(device):
    layer = single_channel_layer().to(device)
    for sigma in (0.02, 0.1, 0.3, -0.2, 5.0, 0.05):
        layer.mask.set_(sigma=[sigma])
        assert layer.extent == expected_extent(layer)
        assert layer.kernel().shape[2:] == expected_extent(layer)
    assert layer.extent == (3,)
    layer.mask.set_(mean=[0.5])
    assert layer.extent == (3,)
    assert layer.taps == ((23, 26),)


def test_extent_follows_writes_to_data_on_the_cpu():
    layer = single_channel_layer(mask=GaussianMask(1, sigma=0.1, form="guarded"))
    assert layer.extent == (7,)
    layer.mask.sigma.data.fill_(0.3)
    assert layer.extent == expected_extent(layer) == (21,)
    layer.mask.sigma.data = torch.tensor([0.02])
    assert layer.extent == (3,)
    layer.mask.sigma = nn.Parameter(torch.tensor([5.0]))
    assert layer.extent == (33,)


@pytest.mark.parametrize("assign", [False, True])
def test_extent_follows_load_state_dict(device, assign):
    wide, layer = single_channel_layer(sigma=0.4).to(device), single_channel_layer(sigma=0.05).to(device)
    assert layer.extent == (3,)
    layer.load_state_dict(wide.state_dict(), assign=assign)
    assert layer.extent == wide.extent == (27,)
    torch.testing.assert_close(layer.kernel(), wide.kernel(), rtol=0, atol=0)


OPTIMIZERS = {
    "foreach": partial(torch.optim.Adam, foreach=True),
    "single": partial(torch.optim.Adam, foreach=False),
    "fused": partial(torch.optim.Adam, fused=True),  # does not increase the version of parameters
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


VARIANTS = [
    (form, variant, name)
    for form in ("guarded", "scaled")
    for variant in ("plain", "read before step", "two steps", "accumulated", "compiled")
    for name in OPTIMIZERS
    if variant != "compiled" or (form == "guarded") == (name in ("foreach", "fused"))  # compiling takes seconds
]


@pytest.mark.parametrize(("form", "variant", "name"), VARIANTS)
def test_extent_follows_optimizer(device, name, variant, form):
    """Includes reading the extent between backward and step, and gradients from compiled code."""
    layer = single_channel_layer(mask=GaussianMask(1, sigma=0.1, form=form)).to(device)
    width = layer.mask.sigma if form == "guarded" else layer.mask.growth
    model = torch.compile(layer, backend="aot_eager", fullgraph=True) if variant == "compiled" else layer
    optimizer = OPTIMIZERS[name]([width], lr=0.02)
    x = torch.randn(2, 1, 40, device=device)
    sizes = {layer.extent}
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(2 if variant == "accumulated" else 1):
            (0 * model(x).sum() - width.sum()).backward()  # this gradient increases σ
        if variant == "read before step":
            assert layer.extent == expected_extent(layer)
            assert repr(layer)
        optimizer.step()
        if variant == "two steps":
            optimizer.step()
        assert layer.extent == expected_extent(layer)
        sizes.add(layer.extent)
    assert len(sizes) > 2


def test_extent_is_current_in_functional_call(device):
    """Each σ is a new tensor, possibly at the address of the previous one."""
    mask = GaussianMask(1, sigma=0.1, form="guarded")
    layer = single_channel_layer(bias=False, padding="valid", mask=mask).to(device).double()
    x = torch.zeros(1, 1, 65, dtype=torch.float64, device=device)
    x[..., 32] = 1
    for sigma in (0.05, 0.3, 0.1, 5.0, 0.02, 0.3):
        value = torch.full((1,), sigma, dtype=torch.float64, device=device)
        response = functional_call(layer, {"mask.sigma": value}, (x,))
        del value
        expected = min(33, max(3, 2 * math.ceil(16 * sigma * REACH) - 1))
        assert int((response != 0).sum()) == expected


def test_extent_does_not_depend_on_earlier_forward_pass():
    layer = single_channel_layer(sigma=0.1)
    twin = copy.deepcopy(layer)
    layer(torch.randn(1, 1, 40)).sum().backward()
    for each in (layer, twin):
        each.mask.set_(sigma=[0.3])
    assert layer.extent == twin.extent == single_channel_layer(sigma=0.3).extent


# --- refresh_extents --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def count_host_copies(monkeypatch):
    """Count the calls of `Tensor.cpu`."""
    count = [0]
    real = torch.Tensor.cpu

    def cpu(self, *args, **kwargs):
        count[0] += 1
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", cpu)
        yield count


def test_refresh_extents_returns_extent_of_every_layer():
    model = make_network()
    assert refresh_extents(model) == {"0": (7,), "2.0": (9,), "3": (4,)}
    model[0].mask.set_(sigma=[0.3])
    set_value(model[3].generator.scale, [1.0])
    assert refresh_extents(model) == {"0": (21,), "2.0": (9,), "3": (6,)}
    assert refresh_extents(nn.ReLU()) == {}
    assert refresh_extents(single_channel_layer(sigma=0.3)) == {"": (21,)}


def test_refresh_extents_of_rotated_mask():
    layer = FlexConv2d(1, 1, 33, generator=tiny_magnet, mask=RotatedGaussianMask(2, sigma=(0.05, 0.3)))
    assert refresh_extents(layer) == {"": (3, 21)}
    set_value(layer.mask.angle, [math.pi / 2])
    assert refresh_extents(layer) == {"": (21, 3)}


def test_refresh_extents_copies_to_host_once(monkeypatch, device):
    model = nn.Sequential(*[single_channel_layer() for _ in range(5)], make_network()).to(device)
    with count_host_copies(monkeypatch) as copies:
        refresh_extents(model)
        assert copies == [1]
        for layer in model[:5]:
            layer.mask.set_(sigma=[0.3])
        assert set(refresh_extents(model).values()) >= {(21,)}
        assert copies == [2]
        model(torch.randn(1, 1, 40, device=device))
        assert copies == [2]  # the forward pass does not copy again


def test_refresh_extents_does_not_change_parameters_or_gradients():
    model = make_network()
    model(torch.randn(2, 1, 40)).sum().backward()
    before = [(p.clone(), p.grad.clone()) for p in model.parameters()]
    refresh_extents(model)
    for parameter, (value, grad) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, grad)


@pytest.mark.parametrize("make_mask", [lambda: None, lambda: GaussianMask(1, sigma=0.5)], ids=["no mask", "wide mask"])
def test_extent_follows_replaced_mask(make_mask):
    layer, x = FlexConv1d(1, 1, 33), torch.randn(1, 1, 40)
    layer(x)
    layer.mask = make_mask()
    assert layer.extent == (33,)
    assert torch.equal(layer(x), FlexConv1d.forward(layer, x))


def test_extent_follows_replaced_mask_with_another_threshold():
    layer = FlexConv1d(1, 1, 33, mask=GaussianMask(1, sigma=0.1))
    before = layer.extent
    layer.mask = GaussianMask(1, mean=0.0, sigma=0.1, threshold=0.5)
    assert layer.extent < before
