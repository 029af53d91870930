"""`parameter_groups`: learning rates for a loop of one's own."""

import pytest
import torch
from torch import nn

from flexconv import FlexConv2d, parameter_groups
from flexconv.errors import ArgumentError


def network(**options):
    return nn.Sequential(FlexConv2d(1, 4, 9, **options), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))


def test_generators_and_masks_of_the_paper_get_rates_of_their_own():
    net = network(parametrization="paper")
    groups = {group["name"]: group for group in parameter_groups(net, 1e-3, weight_decay=0.05)}
    assert {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()} == {
        "rest": (1e-3, 0.05),
        "generators": (1e-2, 0.05),
        "masks": (1e-3, 0.0),
    }
    assert {id(p) for p in groups["generators"]["params"]} == {id(p) for p in net[0].generator.parameters()}
    assert {id(p) for p in groups["masks"]["params"]} == {id(p) for p in net[0].mask.parameters()}


def test_scaled_generators_get_the_rate_of_ordinary_layers():
    groups = parameter_groups(network(), 1e-3)
    assert [group["name"] for group in groups] == ["rest", "masks"]


def test_every_parameter_is_in_one_group():
    net = network()
    net[2].weight.requires_grad_(False)
    found = [id(p) for group in parameter_groups(net, 0.1) for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in net.parameters() if p.requires_grad)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_accept_the_groups(optimizer):
    net = network()
    steps = optimizer(parameter_groups(net, 1e-3))
    net(torch.randn(2, 1, 8, 8)).sum().backward()
    steps.step()


@pytest.mark.parametrize("arguments", [{"lr": 0.0}, {"lr": 1e-3, "weight_decay": -1.0}])
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ArgumentError, match=r"0\.0|-1"):
        parameter_groups(network(), **arguments)
