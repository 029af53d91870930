"""Sizes that grow: training, the extent that follows by itself, refreshing a model, compiled code."""

from __future__ import annotations

import contextlib
import copy
import math
from functools import partial

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, RotatedGaussianMask, ops, refresh_extents
from flexconv.nn import GENERATORS, MAGNet, NJet
from flexconv.nn._grid import ladder
from tests.conftest import relative_error

# dynamo makes an instance of every autograd.Function it traces, which torch calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")

DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
REACH = math.sqrt(-2 * math.log(0.1))

tiny = partial(MAGNet, hidden=3, layers=1)


def small(taps=33, *, sigma=0.1, **options):
    """One channel in, one out; σ in units of the grid."""
    options = {"generator": tiny, "algorithm": "direct"} | options
    return FlexConv1d(1, 1, taps, mask=options.pop("mask", GaussianMask(1, sigma=sigma)), **options)


def set_(parameter, value):
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(value))


def taps_of(layer):
    """The extent of a centred GaussianMask, counted tap by tap."""
    counts = []
    for axis, mean, sigma in zip(layer.axes, layer.mask.mean.tolist(), layer.mask.sigma.tolist(), strict=True):
        places = torch.linspace(-1, 1, axis.size, dtype=torch.float64)
        reach = max(abs(sigma) * REACH, 1.5 * axis.spacing)
        counts.append(int(((places - mean).abs() < reach).sum()))
    return tuple(counts)


def network():
    """Three layers in a model, one of them without a mask, one sized by its generator."""
    return nn.Sequential(
        FlexConv1d(1, 2, 33, generator=tiny, mask=GaussianMask(1, sigma=0.1)),
        nn.GELU(),
        nn.Sequential(FlexConv1d(2, 2, 9, generator=tiny, mask=None), nn.BatchNorm1d(2)),
        FlexConv1d(2, 1, 17, generator=partial(NJet, order=1), mask=None, padding="causal"),
    )


class SeenSizes:
    """A compile backend that notes how large the kernels of the graphs are, and how many graphs there are."""

    def __init__(self):
        self.sizes = []

    def __call__(self, graph, _):
        for node in graph.graph.nodes:
            if node.op == "call_function" and "conv" in str(node.target):
                self.sizes.append(tuple(node.args[1].meta["example_value"].shape[2:]))
        return graph.forward


# --- training ---------------------------------------------------------------------------------------------------------


def target_filter(layer):
    """A Gabor filter of energy 1, as wide as the layer's grid."""
    profiles = []
    for axis in layer.axes:
        x = torch.linspace(-1, 1, axis.size) - axis.home
        profiles.append(torch.exp(-0.5 * (x / 0.4).square()) * torch.cos((4 if axis.causal else 8) * x))
    values = profiles[0] if layer.dims == 1 else profiles[0][:, None] * profiles[1]
    return (values / values.norm())[None, None]


def kernel_loss(layer, target):
    with torch.no_grad():
        return (layer.sample(layer._extent.whole) - target).square().sum().item()


def train(layer, target, *, model=None, steps=200, optimizer=None):
    """A bare loop: white noise in, so that the loss is ‖kernel − target‖². Returns the loss at the end."""
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


def best_of_the_first_size(layer, target):
    """The energy of the target outside the layer's present window: no kernel of this size does better."""
    assert all(n < k for n, k in zip(layer.extent, layer.kernel_size, strict=True))
    inside = target[(..., *(slice(start, stop) for start, stop in layer.taps))]
    return 1 - inside.square().sum().item()


@pytest.mark.parametrize("backend", [None, "aot_eager"])  # inductor takes 40 s to compile this here
@pytest.mark.parametrize("padding", ["same", "causal"])
def test_a_layer_outgrows_its_first_size(backend, padding):
    layer = small(17, sigma=0.12, padding=padding, bias=False, generator=partial(MAGNet, hidden=16, layers=2))
    model = layer if backend is None else torch.compile(layer, backend=backend, fullgraph=True)
    target = target_filter(layer)
    first, floor = layer.extent, best_of_the_first_size(layer, target)
    final = train(layer, target, model=model)
    assert final < floor / 4
    assert layer.extent[0] >= first[0] + 3


def test_a_layer_grows_along_the_axes_that_need_it():
    kernel = partial(MAGNet, hidden=16, layers=2)
    layer = FlexConv2d(1, 1, 17, bias=False, mask=GaussianMask(2, sigma=0.12), generator=kernel)
    assert layer.extent == (5, 5)
    target = target_filter(layer)
    target[:, :, :6] = target[:, :, 11:] = 0  # 5 rows, 17 columns
    target /= target.norm()
    floor = best_of_the_first_size(layer, target)
    assert train(layer, target) < floor / 4
    assert layer.extent[0] <= 8
    assert layer.extent[1] >= 11


@pytest.mark.parametrize("sigma", [1e-6, -1e-6, 0.0, -0.05])
def test_a_layer_whose_sigma_vanished_recovers(sigma):
    layer = small(17, bias=False, generator=partial(MAGNet, hidden=16, layers=2))
    set_(layer.mask.sigma, [sigma])
    assert layer.extent == (3,)
    target = target_filter(layer)
    floor = best_of_the_first_size(layer, target)
    assert train(layer, target) < floor / 2
    assert layer.extent[0] > 5


@pytest.mark.parametrize("mean", [1.5, -1.5])
def test_a_layer_whose_mean_left_the_grid_recovers(mean):
    layer = small(17, sigma=0.3, bias=False, generator=partial(MAGNet, hidden=16, layers=2))
    set_(layer.mask.mean, [mean])
    assert layer.kernel().abs().max() > 0
    target = target_filter(layer)
    floor = best_of_the_first_size(layer, target)
    assert train(layer, target) < floor / 4
    assert layer.mask.mean.abs().item() < 1


def test_a_frozen_mask_keeps_its_size_while_the_rest_learns():
    layer = small(17, sigma=0.3, bias=False, generator=partial(MAGNet, hidden=16, layers=2))
    layer.mask.requires_grad_(False)
    target = target_filter(layer)
    before, size, sigma = kernel_loss(layer, target), layer.extent, layer.mask.sigma.clone()
    optimizer = torch.optim.Adam((p for p in layer.parameters() if p.requires_grad), lr=0.02)
    assert train(layer, target, optimizer=optimizer, steps=80) < before / 4
    assert layer.extent == size
    torch.testing.assert_close(layer.mask.sigma, sigma, rtol=0, atol=0)


def test_checkpointing_gives_the_same_gradients():
    model = network().double()
    x = torch.randn(2, 1, 40, dtype=torch.float64, requires_grad=True)
    wanted = [x, *model.parameters()]
    plain = torch.autograd.grad(model(x).square().sum(), wanted)
    again = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), wanted)
    for ours, theirs in zip(again, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# --- the extent follows -----------------------------------------------------------------------------------------------


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def test_extent_follows_changes_in_place(device):
    layer = small().to(device)
    for sigma in (0.02, 0.1, 0.3, -0.2, 5.0, 0.05):
        set_(layer.mask.sigma, [sigma])
        assert layer.extent == taps_of(layer)
        assert layer.kernel().shape[2:] == taps_of(layer)
    assert layer.extent == (3,)
    set_(layer.mask.mean, [0.5])
    assert layer.extent == (3,)
    assert layer.taps == ((23, 26),)


def test_extent_follows_writes_to_data_on_the_cpu():
    layer = small()
    assert layer.extent == (7,)
    layer.mask.sigma.data.fill_(0.3)
    assert layer.extent == taps_of(layer) == (21,)
    layer.mask.sigma.data = torch.tensor([0.02])
    assert layer.extent == (3,)
    layer.mask.sigma = nn.Parameter(torch.tensor([5.0]))
    assert layer.extent == (33,)


@pytest.mark.parametrize("assign", [False, True])
def test_extent_follows_load_state_dict(device, assign):
    wide, layer = small(sigma=0.4).to(device), small(sigma=0.05).to(device)
    assert layer.extent == (3,)
    layer.load_state_dict(wide.state_dict(), assign=assign)
    assert layer.extent == wide.extent == (27,)
    torch.testing.assert_close(layer.kernel(), wide.kernel(), rtol=0, atol=0)


OPTIMIZERS = {
    "foreach": partial(torch.optim.Adam, foreach=True),
    "single": partial(torch.optim.Adam, foreach=False),
    "fused": partial(torch.optim.Adam, fused=True),  # does not count up parameters' versions
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("when", ["after", "between", "twice", "accumulated", "compiled"])
def test_extent_follows_every_optimizer(device, name, when):
    """Also where something looked at the size between backward and step, or the gradient came from compiled code."""
    layer = small(sigma=0.1).to(device)
    model = torch.compile(layer, backend="aot_eager", fullgraph=True) if when == "compiled" else layer
    optimizer = OPTIMIZERS[name]([layer.mask.sigma], lr=0.02)
    x = torch.randn(2, 1, 40, device=device)
    sizes = {layer.extent}
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(2 if when == "accumulated" else 1):
            (0 * model(x).sum() - layer.mask.sigma.sum()).backward()  # a gradient that makes it grow
        if when == "between":
            assert layer.extent == taps_of(layer)
            assert repr(layer)
        optimizer.step()
        if when == "twice":
            optimizer.step()
        assert layer.extent == taps_of(layer)
        sizes.add(layer.extent)
    assert len(sizes) > 2


def test_extent_is_never_stale_in_functional_calls(device):
    """Each σ is a new tensor, perhaps at the address of the last."""
    layer = small(bias=False, padding="valid").to(device).double()
    x = torch.zeros(1, 1, 65, dtype=torch.float64, device=device)
    x[..., 32] = 1
    for sigma in (0.05, 0.3, 0.1, 5.0, 0.02, 0.3):
        value = torch.full((1,), sigma, dtype=torch.float64, device=device)
        response = functional_call(layer, {"mask.sigma": value}, (x,))
        del value
        expected = min(33, max(3, 2 * math.ceil(16 * sigma * REACH) - 1))
        assert int((response != 0).sum()) == expected


def test_extent_does_not_depend_on_who_asked_before():
    layer = small(sigma=0.1)
    twin = copy.deepcopy(layer)
    layer(torch.randn(1, 1, 40)).sum().backward()
    for each in (layer, twin):
        set_(each.mask.sigma, [0.3])
    assert layer.extent == twin.extent == small(sigma=0.3).extent


# --- a whole model at once --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_copies(monkeypatch):
    """Count the copies to the host that `.cpu()` makes."""
    count = [0]
    real = torch.Tensor.cpu

    def cpu(self, *args, **kwargs):
        count[0] += 1
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", cpu)
        yield count


def test_refresh_extents_names_every_layer():
    model = network()
    assert refresh_extents(model) == {"0": (7,), "2.0": (9,), "3": (4,)}
    set_(model[0].mask.sigma, [0.3])
    set_(model[3].generator.scale, [1.0])
    assert refresh_extents(model) == {"0": (21,), "2.0": (9,), "3": (6,)}
    assert refresh_extents(nn.ReLU()) == {}
    assert refresh_extents(small(sigma=0.3)) == {"": (21,)}


def test_refresh_extents_knows_turned_masks_and_both_axes():
    layer = FlexConv2d(1, 1, 33, generator=tiny, mask=RotatedGaussianMask(2, sigma=(0.05, 0.3)))
    assert refresh_extents(layer) == {"": (3, 21)}
    set_(layer.mask.angle, [math.pi / 2])
    assert refresh_extents(layer) == {"": (21, 3)}


def test_refresh_extents_copies_once_for_the_whole_model(monkeypatch, device):
    model = nn.Sequential(*[small() for _ in range(5)], network()).to(device)
    with counted_copies(monkeypatch) as copies:
        refresh_extents(model)
        assert copies == [1]
        for layer in model[:5]:
            set_(layer.mask.sigma, [0.3])
        assert set(refresh_extents(model).values()) >= {(21,)}
        assert copies == [2]
        model(torch.randn(1, 1, 40, device=device))
        assert copies == [2]  # eager code finds the sizes up to date


def test_refresh_extents_leaves_parameters_and_gradients_alone():
    model = network()
    model(torch.randn(2, 1, 40)).sum().backward()
    before = [(p.clone(), p.grad.clone()) for p in model.parameters()]
    refresh_extents(model)
    for parameter, (value, grad) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, grad)


# --- compiled code ----------------------------------------------------------------------------------------------------


def test_compiled_code_uses_the_grid_until_given_a_size_and_again_after_loading():
    layer, seen, x = small(sigma=0.1), SeenSizes(), torch.randn(2, 1, 80)
    layer(x)  # eager use is no promise to compiled code
    compiled = torch.compile(layer, backend=seen, fullgraph=True)

    def last_size():
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
        return seen.sizes[-1]

    assert last_size() == (33,)
    assert refresh_extents(layer) == {"": (7,)}
    assert last_size() == (9,)
    set_(layer.mask.sigma, [0.3])
    assert refresh_extents(layer) == {"": (21,)}
    assert last_size() == (25,)
    layer.load_state_dict(small(sigma=0.5).state_dict())
    seen.sizes.clear()
    torch._dynamo.reset()
    assert last_size() == (33,)


@pytest.mark.parametrize("load", [lambda layer: layer.load_state_dict(small(sigma=5.0).state_dict()), nn.Module.double])
def test_new_weights_or_a_new_precision_take_a_given_size_back(load):
    layer = small(sigma=0.05)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    refresh_extents(layer)
    x = torch.randn(2, 1, 40)
    compiled(x)
    load(layer)
    x = x.to(layer.mask.sigma.dtype)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
    assert layer._extent.given == layer._extent.whole


@pytest.mark.parametrize(("generator", "mask"), [*[(g, RotatedGaussianMask) for g in GENERATORS], ("njet", None)])
def test_every_generator_compiles_to_one_graph(generator, mask):
    options = {"padding": ("causal", "same"), "padding_mode": "replicate", "stride": (1, 2)}
    layer = FlexConv2d(2, 1, 9, generator=generator, mask=mask and mask(2, sigma=0.2), **options)
    refresh_extents(layer)
    x = torch.randn(1, 2, 10, 12)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)


def test_compiled_graphs_are_no_more_than_the_ladder_has_rungs():
    layer = small(sigma=0.02)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    x = torch.randn(2, 1, 40, requires_grad=True)
    wanted = [x, *layer.parameters()]
    for sigma in torch.linspace(0.02, 0.6, 24).tolist():
        set_(layer.mask.sigma, [sigma])
        refresh_extents(layer)
        ours, theirs = compiled(x), layer(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        ours, theirs = (torch.autograd.grad(y.square().sum(), wanted) for y in (ours, theirs))
        for one, other in zip(ours, theirs, strict=True):
            assert relative_error(one, other) < 1e-4
    assert counter.frame_count <= len(ladder(33, False)) == 5


def test_compiled_code_survives_axes_that_grow_in_turn():
    """Refreshed after every step, compiled code meets combinations of rungs: 9 on this way, dynamo's limit is 8."""
    layer = FlexConv2d(1, 1, 33, bias=False, generator=tiny, algorithm="direct")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(1, 1, 12, 12)
    for sigma in (0.05, 0.1, 0.2, 0.3, 0.5):
        for axis in (0, 1):
            set_(layer.mask.sigma[axis], sigma)
            refresh_extents(layer)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
    assert layer._extent.windows == ((0, 33), (0, 33))


@pytest.mark.parametrize("algorithm", ["auto", "direct", "fft"])
def test_compiled_code_follows_the_shape_of_its_input(algorithm):
    layer = small(sigma=0.1, algorithm=algorithm)
    refresh_extents(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for batch, length in ((2, 40), (3, 51), (3, 7)):
        x = torch.randn(batch, 1, length)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
