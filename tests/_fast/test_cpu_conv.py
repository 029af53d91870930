"""Direct convolutions on a CPU with the channels last in memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flexconv._fast import cpu_conv
from flexconv.ops import conv2d
from tests.conftest import relative_error


def operands(batch=8, channels=16, out=20, taps=(5, 7), **options):
    torch.manual_seed(0)
    x = torch.randn(batch, channels, 9, 8, requires_grad=True, **options)
    return x, torch.randn(out, channels, *taps, requires_grad=True, **options)


def test_values_and_gradients_equal_those_of_torch(monkeypatch):
    tensors = operands()
    calls = []
    original = cpu_conv._ChannelsLast.apply
    monkeypatch.setattr(cpu_conv._ChannelsLast, "apply", lambda each: calls.append(1) or original(each))
    y, expected = conv2d(*tensors, algorithm="direct"), F.conv2d(*tensors, padding=(2, 3))
    assert len(calls) == 2
    assert y.is_contiguous()
    assert relative_error(y, expected) < 1e-6
    cotangent = torch.randn_like(expected)
    found, truths = (torch.autograd.grad(each, tensors, cotangent) for each in (y, expected))
    assert max(map(relative_error, found, truths)) < 1e-6
    assert all(gradient.is_contiguous() for gradient in found)


def test_second_derivatives_are_right():
    x, weight = operands()
    derivatives = []
    for conv in (lambda: conv2d(x, weight, algorithm="direct"), lambda: F.conv2d(x, weight, padding=(2, 3))):
        (gradient,) = torch.autograd.grad(conv().square().sum(), x, create_graph=True)
        derivatives.append(torch.autograd.grad(gradient.square().sum(), weight)[0])
    assert relative_error(*derivatives) < 1e-5


@pytest.mark.parametrize(
    "other", [{"batch": 2}, {"channels": 8}, {"taps": (3, 5)}, {"taps": (17, 17)}, {"dtype": torch.float64}]
)
def test_other_shapes_are_left_to_torch(other):
    x, weight = operands(**other)
    ones = (1, 1)
    padding = tuple(n // 2 for n in weight.shape[2:])
    assert cpu_conv.convolve(x, weight, None, ones, padding, ones, 1) is NotImplemented
