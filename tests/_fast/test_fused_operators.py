"""Operators of fused kernel sampling in compiled code, with launches replaced by plain code: no GPU is needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexconv import FlexConv2d, create_model
from flexconv._fast import fused_operators, fused_sampler, sampler_launches
from tests.conftest import relative_error

# dynamo instantiates every autograd.Function that it traces, which torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")

MAX_NODES = 48  # of one FlexConv, without placeholders; half of them are views


class Nodes:
    """A compile backend that counts the nodes of every graph."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, _):
        self.graphs.append([node for node in graph.graph.nodes if node.op not in ("placeholder", "output")])
        return graph.forward


@pytest.fixture
def plain_launches(monkeypatch):
    """Plain versions of the launches. Masks are left out: they need their layer, which a launch does not know."""

    def features(grid, tensors, *, keep):
        layers, hidden, _ = tensors[2].shape
        values = fused_sampler.plain_features(grid.points(), *tensors)
        return values, values.new_zeros(layers, grid.taps, hidden) if keep else None

    def sums(grid, tensors, kept, grad):
        present = [t for t in tensors if t is not None]
        given = [None if t is None else t.detach().requires_grad_() for t in tensors]
        with torch.enable_grad():
            found = fused_sampler.plain_features(grid.points(), *given)
        gradients = torch.autograd.grad(found, [t for t in given if t is not None], grad)
        assert len(gradients) == len(present)
        return torch.cat([g.flatten() for g in gradients])

    monkeypatch.setattr(fused_sampler, "supports_device", lambda _: True)
    monkeypatch.setattr(fused_sampler, "launch_features", features)
    monkeypatch.setattr(sampler_launches, "launch_feature_sums", sums)
    monkeypatch.setattr(fused_sampler, "launch_mask", lambda features, *_: features.clone())
    monkeypatch.setattr(sampler_launches, "launch_mask_sums", lambda *given, **_: (given[4].clone(), torch.zeros(8)))
    yield
    torch._dynamo.reset()


def example(layer):
    tensors = fused_sampler.feature_tensors(layer.generator)
    grid = fused_sampler.make_grid(layer, layer.window)
    return grid, [None if t is None else t.detach() for t in tensors]


def test_constant_grid_equals_that_of_eager_code():
    layer = FlexConv2d(2, 2, (9, 5), padding=("causal", "same"))
    window = ((2, 9), (0, 5))
    grid = fused_sampler.make_grid(layer, window)
    axes = tuple((axis.size, axis.causal) for axis in layer.axes)
    floors = tuple(layer.mask.sigma_floor(layer.axes))
    arguments = axes, window, floors, torch.float32, torch.device("cpu")
    lines, limits = fused_operators.constant_grid(*arguments)
    assert torch.equal(lines, grid.lines)
    assert torch.equal(limits, grid.limits)
    assert fused_operators.constant_grid(*arguments)[0] is lines


@pytest.mark.usefixtures("plain_launches")
@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
@pytest.mark.parametrize("algorithm", ["direct", "dft"])
def test_a_layer_is_a_bounded_number_of_nodes(parametrization, algorithm):
    layer = FlexConv2d(3, 4, 9, parametrization=parametrization, algorithm=algorithm)
    nodes = Nodes()
    y = torch.compile(layer, backend=nodes, fullgraph=True)(torch.randn(2, 3, 16, 16))
    assert y.shape == (2, 4, 16, 16)
    (graph,) = nodes.graphs
    names = [str(node.target) for node in graph]
    assert sum("sample_features" in name for name in names) == 1
    assert sum("apply_mask" in name for name in names) == 1
    assert len(graph) <= MAX_NODES, names


@pytest.mark.usefixtures("plain_launches")
def test_a_network_is_one_graph_that_optimizer_steps_do_not_change():
    torch.manual_seed(0)
    net = create_model("flexnet7", in_channels=3, num_classes=4, image_size=8, widths=[4])
    nodes = Nodes()
    compiled = torch.compile(net, backend=nodes, fullgraph=True)
    layers = sum(isinstance(module, FlexConv2d) for module in net.modules())
    others = sum(isinstance(module, nn.BatchNorm2d | nn.Linear | nn.Dropout) for module in net.modules())
    x = torch.randn(2, 3, 8, 8)
    # masks have no gradient here, and features none in the scaled parametrization
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()
    (graph,) = nodes.graphs
    assert len(graph) <= MAX_NODES * layers + 6 * others


@pytest.mark.usefixtures("plain_launches")
@pytest.mark.parametrize("batched", [(0,), (0, 3), (4,)])
def test_vmap_of_features_equals_a_loop(batched):
    layer = FlexConv2d(2, 2, 5, parametrization="paper")
    grid, tensors = example(layer)
    dims = [0 if index in batched else None for index in range(len(tensors))]
    given = [torch.stack([t, 0.9 * t, 1.1 * t]) if d == 0 else t for t, d in zip(tensors, dims, strict=True)]

    def features(*tensors):
        return torch.ops.flexconv.sample_features(grid.lines, list(grid.sizes), *tensors)[0]

    mapped = torch.vmap(features, in_dims=tuple(dims))(*given)
    for index in range(3):
        each = [t[index] if d == 0 else t for t, d in zip(given, dims, strict=True)]
        assert relative_error(mapped[index], features(*each)) < 1e-6


@pytest.mark.usefixtures("plain_launches")
def test_vmap_of_features_backward_and_mask():
    layer = FlexConv2d(2, 2, 5, parametrization="paper")
    grid, tensors = example(layer)
    features, kept = torch.ops.flexconv.sample_features(grid.lines, list(grid.sizes), *tensors)
    grads = torch.randn(3, *features.shape)

    def backward(grad):
        return torch.ops.flexconv.sample_features_backward(grid.lines, list(grid.sizes), *tensors, kept, grad)

    assert relative_error(torch.vmap(backward)(grads), torch.stack([backward(g) for g in grads])) < 1e-6
    mask = [p.detach() for p in layer.mask.size_parameters()]

    def masked(features):
        return torch.ops.flexconv.apply_mask(
            features, grid.lines, grid.limits, list(grid.sizes), *mask, None, None, "guarded", 2.0, 1.0
        )

    assert torch.vmap(masked)(grads).shape == grads.shape
