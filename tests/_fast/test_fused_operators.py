"""Kernels of layers in compiled code. Without a GPU, Triton interprets the kernels, or plain code replaces them."""

from __future__ import annotations

import copy
import functools
import importlib.util

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from flexconv import FlexConv1d, FlexConv2d, RotatedGaussianMask, create_model, refresh_extents
from flexconv._fast import compiled_kernels, compiled_norm, fused_sampler, many_launches
from flexconv.errors import UsageError
from flexconv.nn import sample_together
from tests.conftest import relative_error

# dynamo instantiates every autograd.Function that it traces, which torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAX_NODES = 48  # of one FlexConv, without placeholders; half of them are views


class Nodes:
    """A compile backend that counts the nodes of every graph."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, _):
        self.graphs.append([node for node in graph.graph.nodes if node.op not in ("placeholder", "output")])
        return graph.forward

    def count(self, name):
        return sum(name in str(node.target).split(".") for graph in self.graphs for node in graph)


@pytest.fixture
def supported(monkeypatch):
    """Layers on a CPU are supported, for which Triton's interpreter runs the kernels."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_sampler, "supports_device", lambda _: True)
    yield
    torch._dynamo.reset()


@pytest.fixture
def plain_launches(supported, monkeypatch):
    """Plain versions of the launches. Masks are left out: they need their layer, which a launch does not know."""

    def split(packed, kind):
        filters, hidden = kind.layers + 1, kind.hidden
        shapes = [(filters, hidden, kind.dims), (filters, hidden), (kind.layers, hidden, hidden), (kind.layers, hidden)]
        shapes += [(filters, hidden, kind.dims), (filters, hidden, kind.gammas)] if kind.gammas else []
        pieces = packed.split([torch.Size(shape).numel() for shape in shapes])
        tensors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return tensors + [None] * (7 - len(tensors))

    def features(grid, packed, kind):
        rows = [fused_sampler.plain_features(grid.points(), *split(row, kind)) for row in packed]
        return torch.stack(rows), packed.new_zeros(len(packed), kind.layers, grid.taps, kind.hidden)

    def features_backward(grid, packed, kind, kept, grad):
        given = packed.detach().requires_grad_()
        with torch.enable_grad():
            found = features(grid, given, kind)[0]
        return torch.autograd.grad(found, given, grad)[0]

    monkeypatch.setattr(many_launches, "launch_features", features)
    monkeypatch.setattr(many_launches, "launch_features_backward", features_backward)
    monkeypatch.setattr(many_launches, "launch_masks", lambda features, *_: features.clone())
    monkeypatch.setattr(
        many_launches, "launch_masks_backward", lambda *given: (given[5].clone(), torch.zeros_like(given[3]))
    )


def network(parametrization="paper", **options):
    """Three layers. The interpreter takes a second for each tile of taps."""
    torch.manual_seed(0)
    shape = {"in_channels": 3, "num_classes": 4, "image_size": 6, "widths": [4], "dropout": 0.0}
    shape["generator_options"] = {"hidden": 32, "layers": 2}
    net = create_model("flexnet7", **{**shape, "algorithm": "dft", "parametrization": parametrization, **options})
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return net.to(DEVICE)


def compare_training(net, x, limit=1e-5):
    """Check result, gradients and buffers of a compiled network, and return the nodes of its graph."""
    plain, precise, nodes = copy.deepcopy(net), copy.deepcopy(net).double(), Nodes()
    expected, truth = plain(x), precise(x.double())
    found = torch.compile(net, backend=nodes, fullgraph=True)(x)
    assert relative_error(found, expected) < limit
    found.square().sum().backward()
    expected.square().sum().backward()
    truth.square().sum().backward()
    exact = dict(precise.named_parameters())
    for (name, parameter), other in zip(net.named_parameters(), plain.named_parameters(), strict=True):
        grad, rounded, true = parameter.grad, other[1].grad, exact[name].grad
        assert (grad is None) == (rounded is None), name
        if grad is not None and true.norm() > 1e-4:  # the gradients of biases before norms are zero
            # some are small differences of large numbers, also in the plain version
            assert relative_error(grad, true) < max(1e-4, 3 * relative_error(rounded, true)), name
    for (name, buffer), other in zip(net.named_buffers(), plain.buffers(), strict=True):
        assert relative_error(buffer.double(), other.double()) < limit, name
    return nodes


# --- groups of layers -------------------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.usefixtures("supported")
@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
def test_a_network_samples_its_kernels_together(parametrization):
    net = network(parametrization)
    nodes = compare_training(net, torch.randn(2, 3, 6, 6, device=DEVICE))
    assert nodes.count("sample_features") == nodes.count("apply_mask") == nodes.count("mix_maps") == 1
    assert all(layer._provider.prepared is None for layer in net.modules() if isinstance(layer, FlexConv2d))


@needs_triton
@pytest.mark.usefixtures("supported")
def test_layers_with_other_windows_are_sampled_separately():
    net = network("paper", image_size=10)
    net.blocks[0].conv1.mask.set_(sigma=0.1)
    net.stem.mask.set_(sigma=2.0)
    refresh_extents(net)
    windows = {module.window for module in net.modules() if isinstance(module, FlexConv2d)}
    nodes = compare_training(net, torch.randn(2, 3, 10, 10, device=DEVICE))
    assert nodes.count("sample_features") == len(windows) > 1


@needs_triton
@pytest.mark.usefixtures("supported")
def test_direct_convolutions_use_the_kernels_of_a_group():
    nodes = compare_training(network(algorithm="direct"), torch.randn(2, 3, 6, 6, device=DEVICE))
    assert nodes.count("sample_features") == 1


@needs_triton
@pytest.mark.usefixtures("supported")
def test_layers_with_recompute_are_left_out():
    net = network()
    net.stem.recompute = True
    nodes = compare_training(net, torch.randn(2, 3, 6, 6, device=DEVICE))
    layers = [node.args[1] for graph in nodes.graphs for node in graph if "flexconv.join" in str(node.target)]
    assert layers[0] == 2  # of three


@needs_triton
@pytest.mark.usefixtures("supported")
@pytest.mark.parametrize("form", ["guarded", "scaled"])
def test_a_layer_with_a_rotated_mask(form):
    torch.manual_seed(0)
    mask = RotatedGaussianMask(2, sigma=0.3, form=form)
    layer = FlexConv2d(2, 3, 9, mask=mask, algorithm="dft").to(DEVICE)
    with torch.no_grad():
        layer.mask.angle.fill_(0.4)
    nodes = compare_training(layer, torch.randn(2, 2, 12, 12, device=DEVICE), limit=1e-4)
    assert nodes.count("apply_mask") == 1


@needs_triton
@pytest.mark.usefixtures("supported")
def test_kernels_of_a_group_equal_those_of_its_layers():
    torch.manual_seed(0)
    layers = [FlexConv2d(2, width, 7, parametrization="paper").to(DEVICE) for width in (2, 3, 2)]
    group = compiled_kernels._sample(layers, layers[0].window)
    for index, layer in enumerate(layers):
        kernel = compiled_kernels.CompiledKernel(group, index, torch.float32)
        assert kernel.shape == layer.kernel().shape
        assert relative_error(kernel.tensor(), layer.sample(layer.window)) < 1e-5
        part = kernel.narrow(2, 1, 2)
        assert relative_error(part.tensor(), layer.sample(layer.window)[:, :, 1:3]) < 1e-5


@pytest.mark.usefixtures("supported")
def test_layers_on_other_devices_and_with_other_precisions_are_other_groups():
    first, other, elsewhere, precise = (FlexConv2d(2, 2, 5).to(DEVICE) for _ in range(4))
    elsewhere.to("meta")
    precise.mask.double()
    keys = [compiled_kernels._group_key(layer, first.window) for layer in (first, other, elsewhere, precise)]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
    assert keys[0] != keys[3]


class TwoLayers(nn.Module):
    """Two layers without masks, of which the first runs inside of a function."""

    def __init__(self, around):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (FlexConv1d(2, 2, 9, mask=None, algorithm="direct") for _ in range(2))
        self.around = around

    def forward(self, x):
        with sample_together(self):
            return self.second(self.around(self.first)(x))


def without_gradients(layer):
    def call(x):
        with torch.no_grad():  # torch 2.11 cannot compile functions decorated by it
            return layer(x)

    return call


@pytest.mark.usefixtures("plain_launches")
def test_a_layer_without_gradients_does_not_take_them_from_the_others():
    net = TwoLayers(without_gradients).to(DEVICE)
    plain, x = copy.deepcopy(net), torch.randn(2, 2, 12, device=DEVICE)
    for each in (torch.compile(net, backend="eager", fullgraph=True), plain):
        each(x).square().sum().backward()
    found, expected = ([p.grad for p in each.second.parameters() if p.grad is not None] for each in (net, plain))
    assert len(found) == len(expected) > 1
    assert all(relative_error(grad, other) < 1e-3 for grad, other in zip(found, expected, strict=True))


@pytest.mark.usefixtures("plain_launches")
def test_networks_with_checkpoints_sample_every_kernel_when_it_is_used(monkeypatch):
    monkeypatch.setattr(compiled_norm, "_applies_to", lambda _: True)
    net = network(image_size=10)
    net.stem = FlexConv2d(3, 4, 5).to(DEVICE)  # its kernel belongs to no group
    for layer in net.modules():
        if isinstance(layer, FlexConv2d):
            layer.mask = None  # there is no plain version of its launch
    net.blocks[0] = checkpoint_wrapper(net.blocks[0])
    plain, x = copy.deepcopy(net), torch.randn(4, 3, 10, 10, device=DEVICE)
    for each in (torch.compile(net, backend="aot_eager", fullgraph=True), plain):
        each(x).square().sum().backward()
    weight, expected = (each.stem.generator.output.weight for each in (net, plain))
    assert relative_error(weight.grad, expected.grad) < 1e-4
    assert net.blocks[0].norm1.num_batches_tracked == 1


@pytest.mark.usefixtures("plain_launches")
def test_second_derivatives_of_compiled_layers_are_refused():
    layer = FlexConv1d(2, 2, 9, mask=None, parametrization="paper", algorithm="direct").to(DEVICE)
    y = torch.compile(layer, backend="eager", fullgraph=True)(torch.randn(2, 2, 12, device=DEVICE))
    with pytest.raises(UsageError, match="create_graph"):
        torch.autograd.grad(y.square().sum(), layer.generator.frequency, create_graph=True)


def test_eager_code_samples_every_kernel_when_it_is_used():
    net = network()
    with sample_together(net):
        assert net.stem._provider.prepared is None


# --- norms ------------------------------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.usefixtures("supported")
@pytest.mark.parametrize("name", ["flexnet7", "flextcn2"])
def test_compiled_norms_leave_out_the_bias(monkeypatch, name):
    monkeypatch.setattr(compiled_norm, "_applies_to", lambda _: True)
    if name == "flexnet7":
        net, x = network(), torch.randn(4, 3, 6, 6, device=DEVICE)
    else:
        net = network_of_sequences()
        x = torch.randn(4, 3, 24, device=DEVICE)
    nodes = compare_training(net, x)
    targets = [str(node.target) for graph in nodes.graphs for node in graph]
    assert sum("_foreach_add_" in target for target in targets) == 1  # all counts of batches
    layers = [module for module in net.modules() if isinstance(module, FlexConv1d | FlexConv2d)]
    assert not any(layer.bias.grad.any() for layer in layers)


@needs_triton
@pytest.mark.usefixtures("supported")
def test_a_norm_that_is_used_twice_counts_two_batches(monkeypatch):
    monkeypatch.setattr(compiled_norm, "_applies_to", lambda _: True)
    net = network()
    net.blocks[0].norm2 = net.blocks[0].norm1
    compare_training(net, torch.randn(4, 3, 6, 6, device=DEVICE))
    assert net.blocks[0].norm1.num_batches_tracked == 2
    assert net.stem_norm.num_batches_tracked == 1
    assert compiled_norm.batch_counts.norms is None


@pytest.mark.usefixtures("supported")
def test_exported_norms_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(compiled_norm, "_applies_to", lambda _: True)
    exported = torch.export.export(network(), (torch.randn(4, 3, 6, 6, device=DEVICE),))
    targets = [str(node.target) for node in exported.graph.nodes]
    assert any("batch_norm" in target for target in targets)
    assert not any("_foreach_add_" in target for target in targets)


def network_of_sequences():
    torch.manual_seed(0)
    shape = {"in_channels": 3, "num_classes": 4, "length": 24, "widths": [4, 6], "dropout": 0.0}
    return create_model("flextcn2", **shape, algorithm="dft", parametrization="paper").to(DEVICE)


@pytest.mark.usefixtures("supported")
def test_norms_that_are_not_plain_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(compiled_norm, "_applies_to", lambda _: True)
    x = torch.randn(4, 2, 8, 8)
    conv, norm = FlexConv2d(2, 3, 5), nn.BatchNorm2d(3)
    assert compiled_norm.compiled_conv_norm(conv, norm.eval(), x) is NotImplemented
    assert compiled_norm.compiled_conv_norm(conv, nn.GroupNorm(1, 3), x) is NotImplemented
    assert compiled_norm.compiled_conv_norm(nn.Conv2d(2, 3, 1), norm.train(), x) is NotImplemented
    assert compiled_norm.compiled_conv_norm(FlexConv2d(2, 3, 5, bias=False), norm, x) is NotImplemented


# --- graphs -----------------------------------------------------------------------------------------------------------


def test_constant_grid_equals_that_of_eager_code():
    layer = FlexConv2d(2, 2, (9, 5), padding=("causal", "same"))
    window = ((2, 9), (0, 5))
    grid = fused_sampler.make_grid(layer, window)
    axes = tuple((axis.size, axis.causal) for axis in layer.axes)
    floors = tuple(layer.mask.sigma_floor(layer.axes))
    arguments = axes, window, floors, (0.5, 1.0), torch.float32, torch.device("cpu")
    lines, limits, damping = compiled_kernels.constant_grid(*arguments)
    assert torch.equal(lines, grid.lines)
    assert torch.equal(limits, grid.limits)
    assert damping.tolist() == [0.5, 1.0]
    assert compiled_kernels.constant_grid(*arguments)[0] is lines


@pytest.mark.usefixtures("plain_launches")
@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
@pytest.mark.parametrize("algorithm", ["direct", "dft"])
def test_a_layer_is_a_bounded_number_of_nodes(parametrization, algorithm):
    layer = FlexConv2d(3, 4, 9, parametrization=parametrization, algorithm=algorithm).to(DEVICE)
    nodes = Nodes()
    y = torch.compile(layer, backend=nodes, fullgraph=True)(torch.randn(2, 3, 16, 16, device=DEVICE))
    assert y.shape == (2, 4, 16, 16)
    (graph,) = nodes.graphs
    assert nodes.count("sample_features") == nodes.count("apply_mask") == 1
    assert len(graph) <= MAX_NODES, " ".join(str(node.target) for node in graph)


@pytest.mark.usefixtures("plain_launches")
def test_layers_of_different_sizes_that_are_compiled_separately():
    """Dynamo then replaces float attributes, such as the damping of a mask, by symbols."""
    x = torch.randn(2, 2, 16, device=DEVICE)
    layers = [FlexConv1d(2, 2, size, algorithm="direct").to(DEVICE) for size in (17, 33, 65)]
    for layer in layers:
        assert torch.compile(layer, backend="eager", fullgraph=True)(x).shape == x.shape


@pytest.mark.usefixtures("plain_launches")
@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
def test_a_layer_that_is_compiled_for_dynamic_shapes(parametrization):
    layer = FlexConv1d(2, 2, 17, parametrization=parametrization, algorithm="direct").to(DEVICE)
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for length in (16, 20):
        assert compiled(torch.randn(2, 2, length, device=DEVICE)).shape == (2, 2, length)


@pytest.mark.usefixtures("plain_launches")
def test_a_network_is_one_graph_that_optimizer_steps_do_not_change(monkeypatch):
    monkeypatch.setattr(compiled_norm, "_applies_to", lambda _: True)
    net = network("scaled")
    nodes = Nodes()
    compiled = torch.compile(net, backend=nodes, fullgraph=True)
    layers = sum(isinstance(module, FlexConv2d) for module in net.modules())
    others = sum(isinstance(module, nn.BatchNorm2d | nn.Linear | nn.Dropout) for module in net.modules())
    x = torch.randn(2, 3, 6, 6, device=DEVICE)
    # masks have no gradient here, and features none in the scaled parametrization
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(x).sum().backward()
        optimizer.step()
    (graph,) = nodes.graphs
    assert len(graph) <= MAX_NODES * layers + 6 * others


# --- vmap -------------------------------------------------------------------------------------------------------------


def example(layer):
    """The taps, packed parameters [1, numbers] and kind of a layer's features."""
    tensors = [t.detach() for t in fused_sampler.feature_tensors(layer.generator) if t is not None]
    layers, hidden, _ = tensors[2].shape
    grid = fused_sampler.make_grid(layer, layer.window)
    return grid, torch.cat([t.flatten() for t in tensors]).unsqueeze(0), [hidden, layers, tensors[5].shape[-1], 0]


@pytest.mark.usefixtures("plain_launches")
def test_vmap_of_features_equals_a_loop():
    grid, packed, kind = example(FlexConv2d(2, 2, 5, parametrization="paper"))
    given = torch.stack([packed, 0.9 * packed, 1.1 * packed])
    features = functools.partial(torch.ops.flexconv.sample_features, grid.lines, list(grid.sizes))
    mapped = torch.vmap(lambda packed: features(packed, kind)[0])(given)
    for index in range(3):
        assert relative_error(mapped[index], features(given[index], kind)[0]) < 1e-6


def test_vmap_of_joined_tensors_and_output_maps():
    first, second = torch.randn(3, 2, 4), torch.randn(5)
    joined = torch.vmap(lambda x: torch.ops.flexconv.join([x, second], 1))(first)
    assert torch.equal(joined[:, 0], torch.cat([first.flatten(1), second.expand(3, -1)], 1))
    mix = torch.vmap(lambda w, b: torch.ops.flexconv.mix_maps(w, b, 8, torch.float32))(first, first[..., 0])
    assert torch.equal(mix[1, :, :4], first[1])
    assert torch.equal(mix[1, :, 4], first[1, :, 0])
    assert not mix[..., 5:].any()


@pytest.mark.usefixtures("plain_launches")
def test_vmap_of_features_backward_and_mask():
    layer = FlexConv2d(2, 2, 5, parametrization="paper")
    grid, packed, kind = example(layer)
    sizes = list(grid.sizes)
    features, kept = torch.ops.flexconv.sample_features(grid.lines, sizes, packed, kind)
    grads = torch.randn(3, *features.shape)

    def backward(grad):
        return torch.ops.flexconv.sample_features_backward(grid.lines, sizes, packed, kind, kept, grad)

    assert relative_error(torch.vmap(backward)(grads), torch.stack([backward(g) for g in grads])) < 1e-6
    mask = torch.cat([p.detach() for p in layer.mask.size_parameters()]).unsqueeze(0)

    def masked(features):
        arguments = grid.lines, grid.limits, sizes, mask, torch.ones(1), "guarded", False, 2.0
        return torch.ops.flexconv.apply_mask(features, *arguments)

    assert torch.vmap(masked)(grads).shape == grads.shape
