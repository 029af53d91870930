"""The receptive field of the page equals what gradients of simple networks are by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, create_model
from flexconv.explorer import Network
from flexconv.explorer._field import receptive_field
from flexconv.explorer._pack import LARGEST, unpack


def values(field):
    return unpack(field["values"]).reshape(field["size"])


def test_field_of_one_layer_is_its_kernel():
    torch.manual_seed(0)
    layer = FlexConv2d(1, 1, 9, mask=GaussianMask(2, sigma=(0.2, 0.4)))
    field = receptive_field(layer, (1, 1, 21, 25))
    assert field["position"] == [10, 12]
    assert [before + after + 1 for before, after in field["reach"]] == list(layer.extent)
    kernel = layer.kernel()[0, 0].detach().abs().double().numpy()
    (above, below), (left, right) = ((int(before), int(after)) for before, after in field["reach"])
    inside = values(field)[10 - above : 10 + below + 1, 12 - left : 12 + right + 1]
    np.testing.assert_allclose(inside, kernel, atol=2 * kernel.max() / LARGEST)
    assert values(field).sum() == pytest.approx(inside.sum(), rel=1e-4)


def test_causal_networks_look_back_from_the_last_position():
    torch.manual_seed(0)
    model = nn.Sequential(*(FlexConv1d(1, 1, 12, padding="causal", mask=None) for _ in range(2)))
    field = receptive_field(model, (1, 1, 40))
    assert field["position"] == [39]
    assert field["reach"] == [[22, 0]]
    assert not values(field)[: 39 - 22].any()
    assert values(field)[39 - 22 :].all()


def test_strides_and_pools_widen_the_theoretical_field():
    model = nn.Sequential(nn.Conv1d(1, 1, 3, stride=2, padding=1), nn.MaxPool1d(2), FlexConv1d(1, 1, 5, mask=None))
    field = receptive_field(model, (1, 1, 64))
    assert field["reach"] == [[1 + 0 + 2 * 4, 1 + 1 * 2 + 2 * 4]]


def test_radii_contain_half_and_nine_tenths_of_the_field():
    model = create_model("flexnet3", in_channels=3, num_classes=4, image_size=16, widths=[4, 4])
    field = receptive_field(model, (1, 3, 16, 16))
    rows, columns = np.meshgrid(*(np.arange(16) - 8,) * 2, indexing="ij")
    distance = np.hypot(rows, columns)
    for name, share in (("half", 0.5), ("most", 0.9)):
        radius = field["radius"][name]
        assert values(field)[distance <= radius].sum() >= share * values(field).sum() * 0.999
        assert values(field)[distance < radius].sum() <= share * values(field).sum() * 1.001


def test_random_signs_estimate_the_gradients_of_all_channels():
    torch.manual_seed(0)
    layer = FlexConv1d(2, 3, 9, mask=None)
    samples = torch.zeros(2000, 2, 15)
    field = values(receptive_field(layer, samples.shape, samples))
    exact = layer.kernel().detach().double().square().sum(0).mean(0).sqrt().numpy()
    np.testing.assert_allclose(field[7 - 4 : 7 + 5], exact, rtol=0.1)


def test_field_does_not_change_the_model_or_the_random_state():
    model = create_model("flextcn2", in_channels=1, num_classes=3, length=20, widths=[2])
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    learned = [p.requires_grad for p in model.parameters()]
    first = receptive_field(model, (1, 1, 20))
    assert first == receptive_field(model, (1, 1, 20))
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == learned
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_any_precision_have_a_field(dtype):
    torch.manual_seed(0)
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[4])
    exact = receptive_field(model, (1, 1, 8, 8))
    field = receptive_field(model.to(dtype), (1, 1, 8, 8))
    assert next(model.parameters()).dtype == dtype
    assert field["radius"]["half"] == pytest.approx(exact["radius"]["half"], abs=1)


def test_samples_are_standardized():
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[2])
    from flexconv.models import Inputs

    model.inputs = Inputs(size=(8, 8), scale=1 / 255, mean=(0.5,), std=(0.25,), classes=("a", "b"))
    raw = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    field = Network(model, samples=raw).numbers()["field"]
    assert (field["samples"], field["noise"]) == (3, False)
    standardized = model.inputs(raw)
    assert field == receptive_field(model, standardized.shape, standardized)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(FlexConv2d(1, 1, 5), None), (FlexConv3d(1, 1, 5), (1, 1, 6, 6, 6)), (nn.Flatten(), (1, 1, 6, 6))],
    ids=["no input shape", "3D", "no feature map"],
)
def test_there_is_no_field_without_positions(model, shape):
    if not list(model.parameters()):
        model = nn.Sequential(model, nn.Linear(36, 2))
    assert receptive_field(model, shape) is None
