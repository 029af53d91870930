"""Dropout with random bytes: probabilities, correlations and seeds."""

import pytest
import torch
from torch import nn

from flexconv import create_model
from flexconv._fast.dropout import SECOND_BYTE, draw, keep

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.003, 0.1, 0.2, 1 / 3, 0.5, 0.9, 0.999])
def test_activations_are_dropped_with_probability_p_and_low_correlation(p, device):
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
def test_dropout_of_any_number_of_activations_and_layout(number, device):
    x = torch.ones(2, number, device=device).t()
    y = keep(x, *draw(nn.Dropout(0.5), x))
    assert y.shape == x.shape
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_seed_determines_random_bytes():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first = draw(nn.Dropout(0.5), x)[0]
    second = draw(nn.Dropout(0.5), x)[0]
    torch.manual_seed(3)
    assert torch.equal(first, draw(nn.Dropout(0.5), x)[0])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("device", DEVICES)
def test_network_in_training_compiles_without_graph_breaks(device):
    model = create_model("flextcn2", in_channels=1, num_classes=3, length=20, dropout_in=0.2, device=device)
    model.train()
    explanation = torch._dynamo.explain(model)(torch.randn(2, 1, 20, device=device))
    assert explanation.graph_break_count == 0


def test_no_random_bytes_if_nothing_is_dropped():
    x = torch.ones(3)
    for dropout in (None, nn.Dropout(0.0), nn.Dropout(0.5).eval()):
        assert draw(dropout, x) == (None, 1.0)
    assert keep(x, None, 1.0) is x
