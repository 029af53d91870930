"""A matrix times sequences laid out as rows, compared with zero-padded sequences."""

import pytest
import torch
import torch.nn.functional as F

from flexconv.ops._row_product import row_product
from tests.conftest import relative_error

#: rows, terms, width, length of x, length of y
SHAPES = [(16, 4, 8, 32, 128), (16, 4, 8, 30, 121), (40, 24, 24, 560, 905), (130, 70, 64, 4400, 8320)]
LARGE = [(256, 125, 128, 16000, 32768), (125, 256, 128, 32768, 16000), (300, 290, 136, 39435, 40800)]


def truth(matrix, x, width, length):
    x = F.pad(x.double(), (0, matrix.shape[1] * width - x.shape[1])).view(len(x), -1, width)
    return (matrix.double() @ x).flatten(1)[:, :length]


@pytest.mark.parametrize("shape", SHAPES + LARGE, ids=str)
def test_lengths_need_not_be_multiples_of_the_width(shape):
    rows, terms, width, length, wanted = shape
    matrix, x = torch.randn(rows, terms).double(), torch.randn(2, length).double()
    y = row_product(matrix, x, width, wanted)
    assert y.is_contiguous()
    assert relative_error(y, truth(matrix, x, width, wanted)) < 1e-13
