"""Fused blocks of the fast engines, compared with the plain networks."""

import contextlib
import copy
from functools import partial

import pytest
import torch
from torch import nn

from flexconv import FlexConv2d
from flexconv._fast import blocks
from flexconv._fast.blocks import fused_blocks
from flexconv._fast.regions import compiled_regions
from flexconv.models import CIFARResNet, FlexNet, FlexTCN

SMALL = {"num_classes": 3, "generator_options": {"hidden": 4}}


def flexnet(**options):
    return FlexNet(in_channels=2, image_size=6, widths=[3, 4], **SMALL, **options)


def flextcn(**options):
    return FlexTCN(in_channels=2, length=8, widths=[3, 4], readout="mean", **SMALL, **options)


def resnet(dropout):
    return CIFARResNet(in_channels=2, image_size=6, depth=8, width=2, shortcut="conv", conv="flex", **SMALL)


MODELS = {
    "flexnet": flexnet,
    "flexnet with layer norm": partial(flexnet, norm="layer"),
    "flextcn": flextcn,
    "resnet": resnet,
}


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch):
    for region in (blocks._add_relu, blocks._norm_relu):
        compiled = torch.compile(region.function, backend="aot_eager", fullgraph=True, dynamic=False)
        monkeypatch.setitem(region.__dict__, "compiled", compiled)


def random_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fuse", [True, False])
def test_compiled_fused_blocks_equal_plain_networks(name, fuse):
    """With dropout, whose random numbers differ, both networks are fused and one of them is compiled."""
    torch.manual_seed(0)
    model = random_biases(MODELS[name](dropout=0.3 if fuse else 0.0)).double()
    other = copy.deepcopy(model)
    x = torch.randn(5, 2, *[8] if model.dims == 1 else [6, 6], dtype=torch.float64)
    for _ in range(2):
        model.zero_grad()
        other.zero_grad()
        torch.manual_seed(1)
        with fused_blocks(model) if fuse else contextlib.nullcontext():
            y = model(x)
        torch.manual_seed(1)
        with compiled_regions(), fused_blocks(other):
            z = other(x)
        y.square().sum().backward()
        z.square().sum().backward()
    torch.testing.assert_close(z, y)
    for (key, mine), yours in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(yours.grad, mine.grad, rtol=1e-6, atol=1e-9, msg=lambda text, key=key: key + text)
    for (key, mine), yours in zip(model.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(yours[1], mine, msg=lambda text, key=key: key + text)
    gradients = [p.grad.data_ptr() for p in other.parameters() if p.requires_grad]
    assert len(set(gradients)) == len(gradients)  # clipping gradients in place must not change two of them


def test_bias_before_batch_norm_has_zero_gradient():
    model = random_biases(flexnet(dropout=0.3))
    with compiled_regions(), fused_blocks(model):
        model(torch.randn(5, 2, 6, 6)).sum().backward()
    biases = [module.bias for module in model.modules() if isinstance(module, FlexConv2d)]
    assert len(biases) == 5
    assert all(bias.grad.shape == bias.shape and not bias.grad.any() for bias in biases)
    assert not any(torch.equal(model.blocks[1].shortcut.bias.grad, bias.grad) for bias in biases)


@pytest.mark.parametrize(
    ("conv", "is_product"),
    [
        (nn.Conv2d(2, 3, 1), True),
        (nn.Conv2d(2, 3, 1, bias=False), True),
        (nn.Conv2d(2, 3, 3), False),
        (nn.Conv2d(2, 3, 1, stride=2), False),
        (nn.Conv2d(2, 4, 1, groups=2), False),
        (nn.Conv2d(2, 3, 1, padding=1), False),
        (nn.Conv2d(2, 3, 1, padding="same"), False),
        (nn.Identity(), False),
    ],
    ids=str,
)
def test_pointwise_convolution_is_computed_as_matrix_product(conv, is_product, monkeypatch):
    x = torch.randn(4, 2, 5, 5)
    products = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *args: products.append(1) or bmm(*args))
    with compiled_regions():
        y, bias = blocks.without_bias(conv, x)
    assert bool(products) == is_product
    torch.testing.assert_close(y if bias is None else y + bias[:, None, None], conv(x))
    y, bias = blocks.without_bias(conv, x)
    assert bias is None
    assert torch.equal(y, conv(x))


def test_forward_hooks_are_called_once():
    block = flexnet(dropout=0.3).blocks[1]
    calls = []
    watched = (block.shortcut, block.dropout, block.conv2, block.norm2)
    for module in watched:
        module.register_forward_hook(lambda module, *_: calls.append(module))
    with compiled_regions(), fused_blocks(block):
        block(torch.randn(4, 3, 6, 6))
    assert sorted(map(id, calls)) == sorted(map(id, watched))


def test_batch_norms_count_each_batch_once():
    model = flexnet(dropout=0.3)
    model.stem_norm.register_forward_hook(lambda *_: None)  # a module with a hook is not fused
    model.blocks[0].norm1.eval()
    model.blocks[1].dropout.register_forward_hook(lambda *_: None)
    with compiled_regions(), fused_blocks(model):
        for _ in range(2):
            model(torch.randn(4, 2, 6, 6))
    counts = {name: int(buffer) for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert counts.pop("blocks.0.norm1.num_batches_tracked") == 0
    assert set(counts.values()) == {2}


def test_replaced_modules_are_called():
    class Twice(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Shifted(FlexConv2d):
        def forward(self, x):
            return super().forward(x) + torch.arange(36.0).view(6, 6)

    torch.manual_seed(0)
    model = flexnet(dropout=0.3)
    model.stem_norm, model.stem, model.blocks[0] = Twice(3), Shifted(2, 3, 5), nn.Identity()
    other = copy.deepcopy(model)
    model.blocks[1].dropout, other.blocks[1].dropout = nn.Dropout2d(0.3), nn.Dropout2d(0.3)
    x = torch.randn(4, 2, 6, 6)
    torch.manual_seed(1)
    with compiled_regions(), fused_blocks(other):
        y = other(x)
    torch.manual_seed(1)
    torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
    assert other.stem_norm.num_batches_tracked == 1


def test_dropout_keeps_requested_share_and_mean():
    block = FlexNet(in_channels=2, image_size=6, widths=[3, 4], dropout=0.2, **SMALL).blocks[0]
    x = torch.rand(64, 3, 32, 32) + 1.0
    torch.manual_seed(0)
    y = blocks.conv_norm_relu(nn.Identity(), nn.Identity(), x, dropout=block.dropout)
    assert abs((y == 0).float().mean() - 0.2) < 0.003
    assert torch.allclose(y[y != 0], 1.25 * x[y != 0])
    assert abs(y.mean() - x.mean()) < 0.01
    assert torch.equal(blocks.conv_norm_relu(nn.Identity(), nn.Identity(), x, dropout=block.eval().dropout), x)


def test_dropout_rounds_once_in_half_precision():
    x = torch.rand(10_000).bfloat16()
    y = blocks.conv_norm_relu(nn.Identity(), nn.Identity(), x, dropout=nn.Dropout(0.1))
    assert torch.equal(y[y != 0], (x.float() / 0.9).bfloat16()[y != 0])


def test_dropout_with_p_1_returns_zeros():
    x = torch.ones(4, 3, 5, 5)
    assert not blocks.conv_norm_relu(nn.Identity(), nn.Identity(), x, dropout=nn.Dropout(1.0)).any()


def test_blocks_are_restored_after_an_error():
    model = flexnet(dropout=0.3)
    with pytest.raises(TypeError), fused_blocks(model):
        model(torch.randn(2, 2, 6, 6, dtype=torch.complex64))
    assert not any("forward" in vars(module) for module in model.modules())


def test_custom_forward_is_not_replaced():
    model = flexnet(dropout=0.3)
    model.blocks[0].forward = custom = lambda x: x
    with fused_blocks(model):
        assert model.blocks[0].forward is custom
    assert model.blocks[0].forward is custom


def test_batches_of_blocks_that_are_not_fused_are_counted_once():
    model = FlexNet(in_channels=2, image_size=6, widths=[3, 4], num_classes=3, generator_options={"hidden": 4})

    class Block(type(model.blocks[0])):
        pass

    model.blocks[0].__class__ = Block
    with compiled_regions(), fused_blocks(model):
        model(torch.randn(4, 2, 6, 6))
    counts = {name: int(buffer) for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert set(counts.values()) == {1}, counts
