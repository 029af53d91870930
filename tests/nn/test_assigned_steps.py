"""`layer.stride` and `layer.dilation` that are assigned after construction."""

from __future__ import annotations

import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d
from flexconv.errors import ArgumentError, ArgumentTypeError
from tests.conftest import mentions


@pytest.mark.parametrize("name", ["stride", "dilation"])
@pytest.mark.parametrize("value", [2, (2, 2), [2, 2]])
def test_assigned_steps_equal_those_of_the_constructor(name, value):
    layer, x = FlexConv2d(2, 3, 5), torch.randn(1, 2, 9, 8)
    made = FlexConv2d(2, 3, 5, **{name: value})
    made.load_state_dict(layer.state_dict())
    setattr(layer, name, value)
    assert getattr(layer, name) == (2, 2)
    torch.testing.assert_close(layer(x), made(x))


@torch.no_grad()
def test_kernels_that_are_kept_in_evaluation_are_used_with_assigned_steps():
    layer, x = FlexConv2d(2, 3, 5).eval(), torch.randn(1, 2, 9, 8)
    before = layer(x), layer(x)
    layer.stride = 2
    torch.testing.assert_close(layer(x), before[1][..., ::2, ::2])
    layer.stride = 1
    assert torch.equal(layer(x), before[1])


@pytest.mark.parametrize("name", ["stride", "dilation"])
def test_impossible_steps_are_refused_when_assigned(name):
    layer = FlexConv1d(1, 1, 5)
    for wrong, kind in (
        (0, ArgumentError),
        ((1, 1), ArgumentError),
        (1.5, ArgumentTypeError),
        ("2", ArgumentTypeError),
    ):
        with pytest.raises(kind, match=mentions(name)):
            setattr(layer, name, wrong)
    assert getattr(layer, name) == (1,)


def test_dilation_that_does_not_fit_the_padding_is_refused():
    layer = FlexConv1d(1, 1, 4, dilation=2)
    with pytest.raises(ArgumentError, match="same"):
        layer.dilation = 1
    assert layer.dilation == (2,)
