"""Accuracy of long kernels in half and single precision."""

from __future__ import annotations

import copy

import pytest
import torch

from flexconv import materialize
from flexconv.nn import FlexConv1d, GaussianMask
from tests.conftest import relative_error


def long_layer(taps, **options):
    return FlexConv1d(4, 8, taps, padding="causal", mask=GaussianMask(1, sigma=0.354), **options)


@pytest.mark.parametrize("taps", [1024, 16_000])
def test_rounding_parameters_changes_kernel_more_than_rounding_kernel(taps):
    layer = long_layer(taps)
    exact = layer.kernel()
    rounded = copy.deepcopy(layer)
    rounded.generator.bfloat16()
    assert relative_error(rounded.kernel(), exact) > 0.05
    plain = materialize(torch.nn.Sequential(layer)).bfloat16()
    (weight,) = [p for p in plain.parameters() if p.ndim == 3]
    assert relative_error(weight, exact) < 0.004


def test_float32_is_accurate_for_16_000_taps():
    layer = long_layer(16_000)
    assert relative_error(layer.kernel(), copy.deepcopy(layer).double().kernel()) < 1e-3


def test_frequencies_of_16_000_taps_overflow_float16():
    layers = [long_layer(16_000, parametrization="paper") for _ in range(24)]
    highest = [float(layer.generator.frequency.detach().abs().max()) for layer in layers]
    assert max(highest) > torch.finfo(torch.float16).max
