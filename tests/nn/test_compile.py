"""`torch.compile` of a FlexConv layer, whose window `refresh_extents` sets."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from flexconv import FlexConv2d, RotatedGaussianMask, refresh_extents
from flexconv.nn import GENERATORS
from flexconv.nn._grid import window_sizes
from tests.conftest import relative_error
from tests.nn.helpers import single_channel_layer, tiny_magnet

# dynamo instantiates every autograd.Function that it traces, which torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")


class KernelSizes:
    """A compile backend that records the kernel size of every compiled convolution."""

    def __init__(self):
        self.sizes = []

    def __call__(self, graph, _):
        for node in graph.graph.nodes:
            if node.op == "call_function" and "conv" in str(node.target):
                self.sizes.append(tuple(node.args[1].meta["example_value"].shape[2:]))
        return graph.forward


def test_compiled_code_uses_whole_grid_unless_extents_are_refreshed():
    layer, backend, x = single_channel_layer(sigma=0.1), KernelSizes(), torch.randn(2, 1, 80)
    layer(x)  # an eager forward pass does not set the window of compiled code
    compiled = torch.compile(layer, backend=backend, fullgraph=True)

    def last_size():
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
        return backend.sizes[-1]

    assert last_size() == (33,)
    assert refresh_extents(layer) == {"": (7,)}
    assert last_size() == (9,)
    layer.mask.set_(sigma=[0.3])
    assert refresh_extents(layer) == {"": (21,)}
    assert last_size() == (25,)
    layer.load_state_dict(single_channel_layer(sigma=0.5).state_dict())
    backend.sizes.clear()
    torch._dynamo.reset()
    assert last_size() == (33,)


@pytest.mark.parametrize(
    "change",
    [lambda layer: layer.load_state_dict(single_channel_layer(sigma=5.0).state_dict()), nn.Module.double],
    ids=["load_state_dict", "double"],
)
def test_new_weights_or_dtype_reset_window_of_compiled_code(change):
    layer = single_channel_layer(sigma=0.05)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    refresh_extents(layer)
    x = torch.randn(2, 1, 40)
    compiled(x)
    change(layer)
    x = x.to(layer.mask.sigma.dtype)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
    assert layer._extent.compiled_windows == layer._extent.whole


@pytest.mark.parametrize(("generator", "mask"), [*[(g, RotatedGaussianMask) for g in GENERATORS], ("njet", None)])
def test_generators_compile_without_graph_breaks(generator, mask):
    options = {"padding": ("causal", "same"), "padding_mode": "replicate", "stride": (1, 2)}
    layer = FlexConv2d(2, 1, 9, generator=generator, mask=mask and mask(2, sigma=0.2), **options)
    refresh_extents(layer)
    x = torch.randn(1, 2, 10, 12)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-3, atol=1e-4)


def test_number_of_compiled_graphs_is_bounded_by_ladder():
    layer = single_channel_layer(sigma=0.02).requires_grad_()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    x = torch.randn(2, 1, 40, requires_grad=True)
    wanted = [x, *layer.parameters()]
    for sigma in torch.linspace(0.02, 0.6, 24).tolist():
        layer.mask.set_(sigma=[sigma])
        refresh_extents(layer)
        ours, theirs = compiled(x), layer(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        ours, theirs = (torch.autograd.grad(y.square().sum(), wanted) for y in (ours, theirs))
        for one, other in zip(ours, theirs, strict=True):
            assert relative_error(one, other) < 1e-4
    assert counter.frame_count <= len(window_sizes(33, False)) == 5


def test_axes_growing_in_turn_stay_below_recompile_limit():
    """The windows of the two axes go through 9 combinations here, and dynamo compiles at most 8 graphs."""
    layer = FlexConv2d(1, 1, 33, bias=False, generator=tiny_magnet, algorithm="direct")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    x = torch.randn(1, 1, 12, 12)
    sizes = [0.05, 0.1, 0.2, 0.3, 0.5]
    for before, after in itertools.pairwise([0.05, *sizes]):
        for sigma in ((after, before), (after, after)):
            layer.mask.set_(sigma=sigma)
            refresh_extents(layer)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)
    assert layer.window == ((0, 33), (0, 33))


@pytest.mark.parametrize("algorithm", ["auto", "direct", "fft"])
def test_compiled_code_accepts_dynamic_input_shape(algorithm):
    layer = single_channel_layer(sigma=0.1, algorithm=algorithm)
    refresh_extents(layer)
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for batch, length in ((2, 40), (3, 51), (3, 7)):
        x = torch.randn(batch, 1, length)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-6)
