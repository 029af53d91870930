"""Tests that need a GPU."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

import flexconv
from flexconv import FlexConv1d, FlexConv2d, ops, refresh_extents
from tests.conftest import no_synchronization, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def tf32():
    """Allow TF32 in matrix products."""
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def make_network() -> nn.Module:
    return nn.Sequential(FlexConv2d(3, 8, 33), nn.ReLU(), FlexConv2d(8, 8, 33), nn.ReLU(), FlexConv2d(8, 4, 33)).cuda()


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_convolutions_equal_cpu(algorithm, dtype, tolerance):
    x, weight = torch.randn(4, 6, 21, 18), torch.randn(4, 3, 9, 5)
    truth = ops.conv2d(x.double(), weight.double(), groups=2, algorithm="direct")
    y = ops.conv2d(x.cuda().to(dtype), weight.cuda().to(dtype), groups=2, algorithm=algorithm)
    assert y.dtype == dtype
    assert relative_error(y.cpu(), truth) < tolerance


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_generator_computes_in_float32_if_tf32_is_allowed(tf32, compiled):
    layer = FlexConv2d(16, 16, 33, mask=None).cuda()
    reference = FlexConv2d(16, 16, 33, mask=None).double()
    reference.load_state_dict(layer.state_dict())
    for each in (layer, reference):
        each.generator.requires_grad_()  # the features are constant by default
    kernel = layer.kernel
    if compiled:
        whole = [axis.whole for axis in layer.axes]
        kernel = torch.compile(lambda: layer.sample(whole), fullgraph=True)
    values, exact = kernel(), reference.kernel()
    assert relative_error(values.cpu(), exact) < 5e-6
    cotangent = torch.randn_like(exact)
    gradients = torch.autograd.grad((values * cotangent.cuda().float()).sum(), list(layer.generator.parameters()))
    expected = torch.autograd.grad((exact * cotangent).sum(), list(reference.generator.parameters()))
    for gradient, truth in zip(gradients, expected, strict=True):
        assert relative_error(gradient.cpu(), truth) < 5e-5


def test_training_step_does_not_synchronize_after_refresh_extents():
    model = make_network()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.randn(4, 3, 32, 32, device="cuda")
    for context in (contextlib.nullcontext, no_synchronization, no_synchronization):  # the first step may synchronize
        with context():
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        refresh_extents(model)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}, {"capturable": True}])
def test_extent_follows_optimizer(options):
    layer = FlexConv2d(1, 1, 33).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05, **options)
    for _ in range(8):
        optimizer.zero_grad()
        (-layer(torch.ones(1, 1, 32, 32, device="cuda")).square().mean()).backward()
        optimizer.step()
        layer(torch.ones(1, 1, 32, 32, device="cuda"))
        assert layer.taps == copy.deepcopy(layer).taps  # a copy computes its taps again
    assert min(layer.extent) > 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_keeps_kernel_in_float32(dtype):
    layer = FlexConv1d(4, 4, 128, padding="causal").cuda()
    x = torch.randn(2, 4, 128, device="cuda")
    plain = layer.kernel()
    with torch.autocast("cuda", dtype=dtype):
        assert torch.equal(layer.kernel(), plain)
        y = layer(x)
    assert y.dtype == (torch.float32 if dtype == torch.float16 else dtype)  # float16 outputs could overflow
    assert relative_error(y, layer(x)) < 2e-2


def test_layer_can_move_between_devices_after_use():
    layer = FlexConv2d(3, 4, 17)
    x = torch.randn(2, 3, 16, 16)
    before = layer(x)
    assert relative_error(layer.cuda()(x.cuda()).cpu(), before) < 2e-3
    assert torch.equal(layer.cpu()(x), before)


def test_lengths_on_gpu_equal_single_sequences():
    layer = FlexConv1d(2, 2, 9).cuda()
    x = torch.randn(3, 2, 20, device="cuda")
    lengths = torch.tensor([20, 11, 3], device="cuda")
    y = layer(x, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        assert relative_error(y[row, :, :length], layer(x[row : row + 1, :, :length])[0]) < 2e-3
        assert not y[row, :, length:].any()


def test_streaming_on_gpu_equals_offline_output():
    flexconv.testing.assert_streaming_matches(
        FlexConv1d(2, 3, 40, padding="causal").cuda(), torch.randn(2, 2, 100, device="cuda"), 7, rtol=2e-3
    )


@pytest.mark.filterwarnings("ignore")
def test_cuda_graph_of_network_equals_eager():
    model = make_network()
    refresh_extents(model)
    x = torch.randn(4, 3, 32, 32, device="cuda")
    with torch.no_grad():
        expected = model(x)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
    assert relative_error(y, expected) < 1e-3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("readout", ["last", "mean", "every"])
def test_cuda_graph_with_lengths_equals_eager(readout):
    model = flexconv.models.FlexTCN(in_channels=2, num_classes=3, length=20, widths=[4], readout=readout).cuda().eval()
    refresh_extents(model)
    x = torch.randn(3, 2, 20, device="cuda")
    lengths = torch.tensor([20, 11, 3], device="cuda")
    with torch.no_grad():
        expected = model(x, lengths)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(x, lengths)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x, lengths)
        graph.replay()
    assert relative_error(y, expected) < 1e-3
