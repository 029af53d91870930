"""Dropout of the network input, `dropout_in`."""

import pytest
import torch
from torch import nn

from flexconv import create_model

NETWORKS = {
    "flexnet3": ({"image_size": 6, "widths": [4]}, (3, 2, 6, 6)),
    "flextcn2": ({"length": 20, "widths": [4]}, (3, 2, 20)),
    "cktcn2": ({"length": 20, "widths": [4]}, (3, 2, 20)),
}


def make_model_and_input(name, **options):
    sizes, shape = NETWORKS[name]
    options = {"norm": "layer", "dropout": 0.0} | sizes | options
    return create_model(name, in_channels=2, num_classes=3, **options), torch.randn(shape)


def make_with_same_weights(model, name, **options):
    other = create_model(name, **model.config | options)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("name", NETWORKS)
def test_input_dropout_is_applied_to_input_in_training(name):
    model, x = make_model_and_input(name, dropout_in=0.4)
    assert model.config["dropout_in"] == 0.4
    assert torch.equal(model.eval()(x), make_with_same_weights(model, name, dropout_in=0.0).eval()(x))
    torch.manual_seed(5)
    y = model.train()(x)
    torch.manual_seed(5)
    dropped = nn.Dropout(0.4)(x)
    assert 0 < (dropped == 0).float().mean() < 1
    torch.testing.assert_close(y, model.eval()(dropped))


@pytest.mark.parametrize("name", NETWORKS)
def test_input_dropout_has_no_state_and_is_disabled_by_default(name):
    model, x = make_model_and_input(name)
    assert model.config["dropout_in"] == 0.0
    assert not [key for key in model.state_dict() if "dropout" in key]
    before = torch.get_rng_state()
    assert torch.equal(model.train()(x), model(x))
    assert torch.equal(before, torch.get_rng_state()), "no random numbers are used"


def test_input_dropout_ignores_padding():
    model, x = make_model_and_input("flextcn2", dropout_in=0.4)
    x[0, :, 7:] = float("nan")
    torch.manual_seed(5)
    assert model.train()(x, [7, 20, 20]).isfinite().all()
