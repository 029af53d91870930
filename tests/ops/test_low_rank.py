"""Kernels by their factors: the same convolution as with the kernel itself."""

import pytest
import torch

from flexconv.ops._conv import conv_nd
from flexconv.ops._dft import dft_conv
from flexconv.ops._direct import direct_conv
from flexconv.ops._low_rank import LowRank
from tests.conftest import relative_error

from .test_dft import TOLERANCE, geometry_of

#: size, taps, groups, fan_in, multiplier, style
CASES = [
    ((64,), (64,), 1, 4, 4, "whole"),
    ((64,), (33,), 2, 4, 2, "long"),
    ((20, 24), (9, 7), 1, 6, 4, "whole"),
    ((20, 24), (9, 7), 3, 2, 2, "whole"),
    ((20,), (20,), 1, 3, 5, "whole"),
    ((20, 24), (9, 7), 1, 6, 4, "axes"),
    ((12, 12), (5, 5), 4, 1, 1, "whole"),
    ((6, 8, 7), (3, 5, 3), 1, 2, 3, "axes"),
]


def low_rank(taps, out, fan_in, rank=8, dtype=torch.float64):
    basis, mix = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((*taps, rank), (out, fan_in, rank)))
    return LowRank(basis, mix, lambda dtype: (basis.to(dtype), mix.to(dtype)))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case, dtype):
    size, taps, groups, fan_in, multiplier, style = case
    torch.manual_seed(0)
    kernel = low_rank(taps, groups * multiplier, fan_in, dtype=dtype)
    x = torch.randn(3, groups * fan_in, *size).to(dtype).requires_grad_()
    geometry = geometry_of(size, taps, groups)
    y = dft_conv(x, kernel, None, geometry, style=style)
    cotangent = torch.randn(y.shape).to(dtype)
    results = y, *torch.autograd.grad(y, (x, kernel.basis, kernel.mix), cotangent)
    factors = [each.detach().double().requires_grad_() for each in (x, kernel.basis, kernel.mix)]
    whole = LowRank(*factors[1:], lambda _: (factors[1], factors[2])).tensor()
    truth = direct_conv(factors[0], whole, None, geometry)
    truths = truth, *torch.autograd.grad(truth, factors, cotangent.double())
    assert [each.dtype for each in results] == [dtype] * 4
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.parametrize("algorithm", ["auto", "direct", "fft", "dft", "reference"])
def test_every_algorithm_takes_them(algorithm):
    kernel, x = low_rank((9, 9), 4, 2), torch.randn(2, 4, 3, 12).double()  # a kernel higher than the image: taps unread
    arguments = None, 1, "same", 1, 2, algorithm
    assert (
        relative_error(conv_nd(2, x, kernel, *arguments), conv_nd(2, x, kernel.tensor(), *arguments[:-1], "direct"))
        < 1e-12
    )


def test_what_a_tensor_says_of_itself():
    kernel = low_rank((5, 3), 4, 2)
    whole = kernel.tensor()
    assert (kernel.shape, kernel.ndim, kernel.dtype) == (whole.shape, whole.ndim, whole.dtype)
    assert (kernel.device, kernel.requires_grad) == (whole.device, True)
    assert torch.equal(kernel.narrow(3, 1, 2).tensor(), kernel.tensor().narrow(3, 1, 2))
    assert kernel.narrow(2, 1, 3).to(torch.float32).shape == (4, 2, 3, 3)
    assert relative_error(kernel.to(torch.float32).tensor(), whole) < 1e-6


def test_a_kernel_is_rounded_once_whoever_lowers_it():
    torch.manual_seed(0)
    kernel = low_rank((5, 3), 4, 2, dtype=torch.float32)
    whole = kernel.tensor()
    assert torch.equal(kernel.to(torch.bfloat16).tensor(), whole.to(torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kernel.tensor(), whole)
