"""Products of matrices that stay exact in float32 while TF32 is allowed."""

from __future__ import annotations

import torch
from torch.func import vmap

from flexconv._matmul import _split, _SplitMatmul
from tests.conftest import relative_error


def test_split_matmul_has_float32_accuracy():
    a, b = torch.randn(9, 17), torch.randn(17, 5)
    high, low = _split(a)
    assert torch.equal(high + low, a)
    assert not (high.view(torch.int32) & 0x1FFF).any()
    assert (low.abs() <= 2**-10 * a.abs()).all()

    def product_and_gradients(multiply, a, b):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        y = multiply(a, b)
        return y, *torch.autograd.grad(y.square().sum(), (a, b))

    truth = product_and_gradients(torch.matmul, a.double(), b.double())
    for result, expected in zip(product_and_gradients(_SplitMatmul.apply, a, b), truth, strict=True):
        assert relative_error(result, expected) < 1e-6
    stacked = vmap(_SplitMatmul.apply, (0, None))(torch.stack([a, 2 * a]), b)
    assert relative_error(stacked[1], 2 * (a.double() @ b.double())) < 1e-6
