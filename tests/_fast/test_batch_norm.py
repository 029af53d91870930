"""Batch norm that sums over short pieces, compared with `torch.nn.functional.batch_norm`."""

import pytest
import torch
import torch.nn.functional as F

from flexconv._fast.batch_norm import batch_norm, piece_length
from tests.conftest import relative_error


@pytest.mark.parametrize("shape", [(4, 3, 50), (5, 2, 2000), (3, 4, 6, 7), (2, 3, 64, 48), (8, 3)], ids=str)
def test_values_statistics_and_gradients_equal_torch(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).double() * 3 + 100
    scale, shift = torch.randn(2, shape[1], generator=generator).double()
    leaves = [each.requires_grad_() for each in (x, scale, shift)]
    y, mean, variance = batch_norm(*leaves, 1e-5)
    expected = F.batch_norm(x, None, None, scale, shift, True, 0.1, 1e-5)
    assert relative_error(y, expected) < 1e-12
    axes = [axis for axis in range(x.ndim) if axis != 1]
    assert relative_error(mean, x.mean(axes)) < 1e-14
    assert relative_error(variance, x.var(axes, unbiased=False)) < 1e-12
    cotangent = torch.randn(y.shape, generator=generator).double()
    results = torch.autograd.grad(y, leaves, cotangent)
    truths = torch.autograd.grad(expected, leaves, cotangent)
    assert max(map(relative_error, results, truths)) < 1e-10


def test_statistics_of_half_precision_are_float32():
    x = (torch.randn(16, 2, 4096) + 300).bfloat16()
    y, mean, variance = batch_norm(x, torch.ones(2), torch.zeros(2), 1e-5)
    assert (y.dtype, mean.dtype) == (torch.bfloat16, torch.float32)
    assert relative_error(mean, x.double().mean((0, 2))) < 1e-6
    assert relative_error(variance, x.double().var((0, 2), unbiased=False)) < 1e-4


@pytest.mark.parametrize(
    ("row", "piece"), [(1, 1), (784, 784), (1024, 1024), (16000, 1000), (9216, 1024), (16001, 16001)]
)
def test_rows_are_divided_into_equal_pieces(row, piece):
    assert piece_length(row) == piece
