"""What stands behind a convolution, as compiled regions and step by step."""

import copy

import pytest
import torch
from torch import nn

from flexconv import FlexConv2d
from flexconv._regions import compiled_regions
from flexconv.models import CIFARResNet, FlexNet, FlexTCN, _norm

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's compiler looking at its inputs

SMALL = {"num_classes": 3, "generator_options": {"hidden": 4}}
MODELS = {
    "flexnet": lambda: FlexNet(in_channels=2, image_size=6, widths=[3, 4], dropout=0.0, **SMALL),
    "flexnet layer": lambda: FlexNet(in_channels=2, image_size=6, widths=[3, 4], dropout=0.0, norm="layer", **SMALL),
    "flextcn": lambda: FlexTCN(in_channels=2, length=8, widths=[3, 4], dropout=0.0, readout="mean", **SMALL),
    "resnet": lambda: CIFARResNet(in_channels=2, image_size=6, depth=8, width=2, shortcut="conv", conv="flex", **SMALL),
}


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch):
    for region in (_norm.add_relu, _norm._norm_relu):
        compiled = torch.compile(region.function, backend="aot_eager", fullgraph=True, dynamic=False)
        monkeypatch.setitem(region.__dict__, "compiled", compiled)


def random_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_regions_compute_what_the_modules_do(name):
    torch.manual_seed(0)
    model = random_biases(MODELS[name]()).double()
    other = copy.deepcopy(model)
    x = torch.randn(5, 2, *[8] if model.dims == 1 else [6, 6], dtype=torch.float64)
    for _ in range(2):
        model.zero_grad()
        other.zero_grad()
        y = model(x)
        with compiled_regions():
            z = other(x)
        y.square().sum().backward()
        z.square().sum().backward()
    torch.testing.assert_close(z, y)
    for (key, mine), yours in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(yours.grad, mine.grad, rtol=1e-6, atol=1e-9, msg=lambda text, key=key: key + text)
    for (key, mine), yours in zip(model.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(yours[1], mine, msg=lambda text, key=key: key + text)
    gradients = [p.grad.data_ptr() for p in other.parameters()]
    assert len(set(gradients)) == len(gradients)  # or clipping one would clip two


def test_a_bias_before_a_batch_norm_has_a_gradient_of_zero():
    model = random_biases(MODELS["flexnet"]())
    with compiled_regions():
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
def test_a_pointwise_convolution_is_a_product(conv, is_product, monkeypatch):
    x = torch.randn(4, 2, 5, 5)
    products = []
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *args: products.append(1) or bmm(*args))
    with compiled_regions():
        y, bias = _norm.without_bias(conv, x)
    assert bool(products) == is_product
    torch.testing.assert_close(y if bias is None else y + bias[:, None, None], conv(x))
    y, bias = _norm.without_bias(conv, x)
    assert bias is None
    assert torch.equal(y, conv(x))


def test_hooks_see_their_modules_called():
    block = MODELS["flexnet"]().blocks[1]
    calls = []
    for module in (block.shortcut, block.conv2, block.norm2):
        module.register_forward_hook(lambda module, *_: calls.append(module))
    with compiled_regions():
        block(torch.randn(4, 3, 6, 6))
    assert {id(module) for module in calls} == {id(block.shortcut), id(block.conv2), id(block.norm2)}


def test_batches_are_counted_once_whoever_counts():
    model = MODELS["flexnet"]()
    model.stem_norm.register_forward_hook(lambda *_: None)  # so that it runs by itself
    model.blocks[0].norm1.eval()
    with compiled_regions():
        for _ in range(2):
            model(torch.randn(4, 2, 6, 6))
    counts = {name: int(buffer) for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert counts.pop("blocks.0.norm1.num_batches_tracked") == 0
    assert set(counts.values()) == {2}


def test_modules_of_users_are_called():
    class Twice(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Shifted(FlexConv2d):
        def forward(self, x):
            return super().forward(x) + torch.arange(36.0).view(6, 6)

    torch.manual_seed(0)
    model = MODELS["flexnet"]()
    model.stem_norm, model.stem, model.blocks[0] = Twice(3), Shifted(2, 3, 5), nn.Identity()
    other = copy.deepcopy(model)
    x = torch.randn(4, 2, 6, 6)
    with compiled_regions():
        y = other(x)
    torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
    assert other.stem_norm.num_batches_tracked == 1
