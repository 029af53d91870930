"""Fused blocks of SepFlexNet, compared with the plain network."""

import copy

import pytest
import torch
from torch import nn

from flexconv._fast import separable_blocks
from flexconv._fast.blocks import fused_blocks
from flexconv._fast.regions import compiled_regions
from flexconv.models import SepFlexNet
from flexconv.nn import _conv
from flexconv.ops import conv_nd

REGIONS = ("_norm", "_gelu", "_activate_and_add")


def network(dims=1, **options):
    size = {"length": 8} if dims == 1 else {"image_size": 6}
    small = {"width": 4, "depth": 2, "generator_options": {"hidden": 4}}
    return SepFlexNet(in_channels=2, num_classes=3, **size, **small | options)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Use a quick compiler, and list the regions that were called."""
    called = []
    for name in REGIONS:
        region = getattr(separable_blocks, name)
        compiled = torch.compile(region.function, backend="aot_eager", fullgraph=True, dynamic=False)

        def call(*args, name=name, compiled=compiled, **kwargs):
            called.append(name)
            return compiled(*args, **kwargs)

        monkeypatch.setitem(region.__dict__, "compiled", call)
    return called


def inputs(model):
    return torch.randn(5, 2, *[8] if model.dims == 1 else [6, 6], dtype=torch.float64)


def compare(model, x, **arguments):
    """Compare outputs, gradients and buffers of two steps with those of the plain network."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    model = model.double()
    other = copy.deepcopy(model)
    for _ in range(2):
        model.zero_grad()
        other.zero_grad()
        torch.manual_seed(1)
        y = model(x, **arguments)
        torch.manual_seed(1)
        with compiled_regions(), fused_blocks(other):
            z = other(x, **arguments)
        y.square().sum().backward()
        z.square().sum().backward()
    torch.testing.assert_close(z, y)
    for (key, mine), yours in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(yours.grad, mine.grad, rtol=1e-6, atol=1e-9, msg=lambda text, key=key: key + text)
    for (key, mine), yours in zip(model.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(yours[1], mine, msg=lambda text, key=key: key + text)


def test_float16_is_left_to_the_plain_network(calls):
    torch.manual_seed(0)
    model = network().train()
    nn.init.constant_(model.blocks[0].mix.bias, 1e5)  # float16 could not represent the sum
    x = inputs(model).float()
    with torch.autocast("cpu", torch.float16):
        y = copy.deepcopy(model)(x)
        with compiled_regions(), fused_blocks(model):
            z = model(x)
    assert calls == []
    assert y.isfinite().all()
    torch.testing.assert_close(z, y)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.3, "drop_path": 0.3},
        {"mix": "glu", "dropout_in": 0.2},
        {"small_kernel": 3, "mask": "per_channel", "train_features": True},
    ],
    ids=str,
)
def test_fused_blocks_equal_plain_network(dims, options, calls):
    torch.manual_seed(0)
    model = network(dims, **options)
    compare(model, inputs(model))
    assert calls == ["_norm", *["_norm", "_gelu", "_activate_and_add"] * 2, "_norm"] * 2


@pytest.mark.parametrize(("sigma", "number"), [(0.9, 1), (0.01, 2)], ids=["covered", "not covered"])
@pytest.mark.parametrize("options", [{}, {"dims": 2}, {"causal": False}], ids=str)
def test_small_kernels_are_added_to_large_ones(options, sigma, number, monkeypatch):
    torch.manual_seed(0)
    model = network(**options, small_kernel=5, mask_options={"sigma": sigma}, depth=1)
    convolved = []

    def convolve(*args):
        convolved.append(args[2].shape)
        return conv_nd(*args)

    for module in (separable_blocks, _conv):
        monkeypatch.setattr(module, "conv_nd", convolve)
    for name in REGIONS:
        region = getattr(separable_blocks, name)
        monkeypatch.setitem(region.__dict__, "compiled", region.function)
    x = inputs(model).float()
    with compiled_regions(), fused_blocks(model):
        copy.deepcopy(model)(x)
    assert len(convolved) == 2 * number  # of the stem and of the block
    compare(model, inputs(model))


def test_replaced_depthwise_convolutions_take_the_plain_forward(calls):
    torch.manual_seed(0)
    model = network()
    model.blocks[0].conv.depthwise = nn.Conv1d(4, 4, 3, padding=1, groups=4)
    compare(model, inputs(model))
    assert calls == ["_norm", *["_norm", "_gelu", "_activate_and_add"], "_norm"] * 2


@pytest.mark.parametrize("readout", ["last", "every"])
def test_blocks_of_other_readouts_are_fused(readout, calls):
    torch.manual_seed(0)
    model = network(readout=readout)
    compare(model, inputs(model))
    assert calls == ["_norm", "_gelu", "_activate_and_add"] * 4


def test_lengths_and_missing_samples_take_the_plain_forward(calls):
    torch.manual_seed(0)
    model = network()
    x = inputs(model)
    compare(model, x, lengths=torch.tensor([8, 3, 5, 8, 1]))
    compare(model, x, observed=torch.rand(5, 8) > 0.3)
    model = network(norm="layer")
    compare(model, x)
    assert calls == []


def test_changed_blocks_take_the_plain_forward(calls):
    torch.manual_seed(0)
    model = network()
    called = []
    model.blocks[0].conv.depthwise.register_forward_hook(lambda *_: called.append(1))
    model.blocks[1].activation = nn.ReLU()
    compare(model, inputs(model))
    assert calls == ["_norm", "_norm"] * 2
    assert called


def test_networks_in_evaluation_take_the_plain_forward(calls):
    model = network().eval()
    x = inputs(model).float()
    with compiled_regions(), fused_blocks(model):
        torch.testing.assert_close(model(x), model(x))
    assert calls == []
    assert model.norm.num_batches_tracked == 0
