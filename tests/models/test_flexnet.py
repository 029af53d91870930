"""FlexNet and CIFARResNet, compared with a plain forward pass written out here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flexconv.models import create_model
from flexconv.nn import FlexConv2d


def test_flexnet_equals_plain_forward_pass():
    model = create_model("flexnet3", in_channels=3, num_classes=10, image_size=8, widths=[4, 4, 6]).eval()
    x = torch.randn(2, 3, 8, 8)
    h = F.relu(model.stem_norm(model.stem(x)))
    for block in model.blocks:
        branch = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(h)))))
        h = F.relu(branch + (h if block.conv1.in_channels == block.conv1.out_channels else block.shortcut(h)))
    torch.testing.assert_close(model(x), model.head(h.flatten(2).mean(-1)))


def test_cifar_resnet_equals_plain_forward_pass():
    model = create_model("cifar_resnet20", in_channels=3, num_classes=10).eval()
    x = torch.randn(2, 3, 9, 9)
    h = F.relu(model.stem_norm(model.stem(x)))
    for index, block in enumerate(model.blocks):
        branch = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(h)))))
        if index in (3, 6):
            zeros = torch.zeros(2, h.shape[1] // 2, *branch.shape[2:])
            h = torch.cat([zeros, h[:, :, ::2, ::2], zeros], 1)
        h = F.relu(branch + h)
    torch.testing.assert_close(model(x), model.head(h.mean((2, 3))))
    assert [block.conv1.out_channels for block in model.blocks] == [16] * 3 + [32] * 3 + [64] * 3
    assert model.stem.bias is None


def test_kernel_size_of_resnet_follows_size_of_feature_maps():
    model = create_model("cifar_resnet44_flexconv", in_channels=3, num_classes=10, image_size=32, depth=8)
    sizes = [module.kernel_size[0] for module in model.modules() if isinstance(module, FlexConv2d)]
    assert sizes == [33, 33, 33, 33, 17, 17, 9]
    assert isinstance(model.blocks[1].shortcut[0], nn.Conv2d)
    three = create_model("cifar_resnet44_ckconv3", in_channels=3, num_classes=10)
    assert {m.kernel_size for m in three.modules() if isinstance(m, FlexConv2d)} == {(3, 3)}


@pytest.mark.parametrize(("size", "kernel_size"), [(32, (33, 33)), (28, (29, 29)), (15, (15, 15)), ((16, 9), (17, 9))])
def test_kernel_size_is_image_size_rounded_up_to_odd(size, kernel_size):
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=size, device="meta")
    assert model.stem.kernel_size == kernel_size


def test_dropout_is_applied_once_per_block_in_training():
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=4, dropout=0.5, norm="layer")
    x = torch.randn(2, 1, 4, 4)
    assert [m.p for m in model.blocks.modules() if isinstance(m, nn.Dropout)] == [0.5] * 3
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_layer_norm_does_not_mix_images_of_a_batch():
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=6, norm="layer", dropout=0.0)
    x = torch.randn(3, 1, 6, 6)
    torch.testing.assert_close(model.train()(x)[:1], model(x[:1]))


def test_initial_weights_of_heads_equal_authors_code():
    flexnet = create_model("flexnet7", in_channels=1, num_classes=500, image_size=4)
    assert flexnet.head.weight.std().item() == pytest.approx((2 / 48) ** 0.5, rel=0.05)
    flextcn = create_model("flextcn2", in_channels=1, num_classes=500, length=4)
    assert flextcn.head.weight.std().item() == pytest.approx(0.01, rel=0.05)
    resnet = create_model("cifar_resnet20", in_channels=3, num_classes=10)
    assert resnet.blocks[-1].conv2.weight.std().item() == pytest.approx((2 / 576) ** 0.5, rel=0.05)
    assert not flexnet.head.bias.any()
    assert not flextcn.head.bias.any()
