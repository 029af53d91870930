"""Dropout by bytes: every activation by itself, with the probability that was asked for."""

import pytest
import torch
from torch import nn

from flexconv import create_model
from flexconv._fast.dropout import SECOND_BYTE, draw, keep

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.003, 0.1, 0.2, 1 / 3, 0.5, 0.9, 0.999])
def test_each_activation_is_dropped_with_its_probability_and_hardly_knows_of_others(p, device):
    torch.manual_seed(0)
    x = torch.ones(4_000_003, device=device)
    dropped = (keep(x, *draw(nn.Dropout(p), x)) == 0).float()
    assert abs(dropped.mean() - p) < 4 * (p * (1 - p) / len(x)) ** 0.5 + 2**-16
    for distance in (1, 4, 256):
        assert abs(correlation(dropped, distance)) < 4 / len(x) ** 0.5
    assert abs(correlation(dropped, SECOND_BYTE)) < 0.005


def correlation(x, distance):
    return torch.corrcoef(torch.stack([x[distance:], x[:-distance]]))[0, 1]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 4095])
@pytest.mark.parametrize("device", DEVICES)
def test_any_number_of_activations_and_any_layout(number, device):
    x = torch.ones(2, number, device=device).t()
    y = keep(x, *draw(nn.Dropout(0.5), x))
    assert y.shape == x.shape
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_a_seed_draws_the_same_again():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first = draw(nn.Dropout(0.5), x)[0]
    again = draw(nn.Dropout(0.5), x)[0]
    torch.manual_seed(3)
    assert torch.equal(first, draw(nn.Dropout(0.5), x)[0])
    assert not torch.equal(first, again)


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_network_compiles_in_one_piece(device):
    model = create_model("flextcn2", in_channels=1, num_classes=3, length=20, dropout_in=0.2, device=device)
    model.train()
    found = torch._dynamo.explain(model)(torch.randn(2, 1, 20, device=device))
    assert found.graph_break_count == 0


def test_nothing_is_drawn_where_all_are_kept():
    x = torch.ones(3)
    for dropout in (None, nn.Dropout(0.0), nn.Dropout(0.5).eval()):
        assert draw(dropout, x) == (None, 1.0)
    assert keep(x, None, 1.0) is x


# --- on the input -----------------------------------------------------------------------------------------------------

NETWORKS = {
    "flexnet3": ({"image_size": 6, "widths": [4]}, (3, 2, 6, 6)),
    "flextcn2": ({"length": 20, "widths": [4]}, (3, 2, 20)),
    "cktcn2": ({"length": 20, "widths": [4]}, (3, 2, 20)),
}


def small(name, **options):
    sizes, shape = NETWORKS[name]
    options = {"norm": "layer", "dropout": 0.0} | sizes | options
    return create_model(name, in_channels=2, num_classes=3, **options), torch.randn(shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_input_dropout_acts_on_the_input_in_training_only(name):
    model, x = small(name, dropout_in=0.4)
    assert model.config["dropout_in"] == 0.4
    assert torch.equal(model.eval()(x), small_like(model, name, dropout_in=0.0).eval()(x))
    torch.manual_seed(5)
    y = model.train()(x)
    torch.manual_seed(5)
    dropped = nn.Dropout(0.4)(x)
    assert 0 < (dropped == 0).float().mean() < 1
    torch.testing.assert_close(y, model.eval()(dropped))


@pytest.mark.parametrize("name", NETWORKS)
def test_input_dropout_has_no_state_and_is_off_by_default(name):
    model, x = small(name)
    assert model.config["dropout_in"] == 0.0
    assert not [key for key in model.state_dict() if "dropout" in key]
    before = torch.get_rng_state()
    assert torch.equal(model.train()(x), model(x))
    assert torch.equal(before, torch.get_rng_state()), "nothing is drawn"


def test_input_dropout_leaves_padding_alone():
    model, x = small("flextcn2", dropout_in=0.4)
    x[0, :, 7:] = float("nan")
    torch.manual_seed(5)
    assert model.train()(x, [7, 20, 20]).isfinite().all()


def small_like(model, name, **options):
    other = create_model(name, **model.config | options)
    other.load_state_dict(model.state_dict())
    return other
