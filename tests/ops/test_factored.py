"""Kernels by their factors: the same convolution as with the kernel itself."""

import pytest
import torch
import torch.nn.functional as F

from flexconv.ops._conv import conv_nd
from flexconv.ops._dft import dft_conv
from flexconv.ops._direct import direct_conv
from flexconv.ops._factored import FactoredKernel, KernelBatch
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


def factored(taps, out, fan_in, rank=8, dtype=torch.float64):
    basis, mix = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((*taps, rank), (out, fan_in, rank)))
    return FactoredKernel(KernelBatch([lambda dtype: (basis.to(dtype), mix.to(dtype))], dtype))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case, dtype):
    size, taps, groups, fan_in, multiplier, style = case
    torch.manual_seed(0)
    kernel = factored(taps, groups * multiplier, fan_in, dtype=dtype)
    x = torch.randn(3, groups * fan_in, *size).to(dtype).requires_grad_()
    geometry = geometry_of(size, taps, groups)
    y = dft_conv(x, kernel, None, geometry, style=style)
    cotangent = torch.randn(y.shape).to(dtype)
    results = y, *torch.autograd.grad(y, (x, kernel.basis, kernel.mix), cotangent)
    factors = [each.detach().double().requires_grad_() for each in (x, kernel.basis, kernel.mix)]
    whole = FactoredKernel(KernelBatch([lambda _: (factors[1], factors[2])], torch.float64)).tensor()
    truth = direct_conv(factors[0], whole, None, geometry)
    truths = truth, *torch.autograd.grad(truth, factors, cotangent.double())
    assert [each.dtype for each in results] == [dtype] * 4
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.parametrize("algorithm", ["auto", "direct", "fft", "dft", "reference"])
def test_every_algorithm_takes_them(algorithm):
    kernel, x = factored((9, 9), 4, 2), torch.randn(2, 4, 3, 12).double()  # a kernel higher than the image: taps unread
    arguments = None, 1, "same", 1, 2, algorithm
    assert (
        relative_error(conv_nd(2, x, kernel, *arguments), conv_nd(2, x, kernel.tensor(), *arguments[:-1], "direct"))
        < 1e-12
    )


def test_what_a_tensor_says_of_itself():
    kernel = factored((5, 3), 4, 2)
    whole = kernel.tensor()
    assert (kernel.shape, kernel.ndim, kernel.dtype) == (whole.shape, whole.ndim, whole.dtype)
    assert (kernel.device, kernel.requires_grad) == (whole.device, True)
    assert relative_error(kernel.narrow(3, 1, 2).tensor(), whole.narrow(3, 1, 2)) < 1e-12
    assert kernel.narrow(2, 1, 3).to(torch.float32).shape == (4, 2, 3, 3)
    assert relative_error(kernel.to(torch.float32).tensor(), whole) < 1e-6


def test_a_kernel_is_rounded_once_whoever_lowers_it():
    torch.manual_seed(0)
    kernel = factored((5, 3), 4, 2, dtype=torch.float32)
    whole = kernel.tensor()
    assert torch.equal(kernel.to(torch.bfloat16).tensor(), whole.to(torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kernel.tensor(), whole)


@pytest.mark.parametrize(("size", "style"), [((12, 12), "whole"), ((12, 12), "axes"), ((40,), "long")])
def test_kernels_alike_are_transformed_at_once(size, style, monkeypatch):
    torch.manual_seed(0)
    taps = (9,) * len(size)
    factors = [[torch.randn(shape).double() for shape in ((*taps, 8), (out, 3, 8))] for out in (2, 5)]
    leaves = [leaf.requires_grad_() for pair in factors for leaf in pair]
    sources = [lambda dtype, pair=pair: (pair[0].to(dtype), pair[1].to(dtype)) for pair in factors]
    x, geometry = torch.randn(2, 3, *size).double(), geometry_of(size, (7, *taps[1:]), 1)

    def results(kernels):
        outputs = [dft_conv(x, kernel.narrow(2, 1, 7), None, geometry, style=style) for kernel in kernels]
        return *outputs, *torch.autograd.grad(sum(y.square().sum() for y in outputs), leaves)

    alone = results([FactoredKernel(KernelBatch([source], torch.float64)) for source in sources])
    bases = []
    transformed = KernelBatch.transformed
    monkeypatch.setattr(
        KernelBatch,
        "transformed",
        lambda self, name, function: transformed(
            self, name, lambda basis: bases.append(basis.shape) or function(basis)
        ),
    )
    batch = KernelBatch(sources, torch.float64)
    together = results([FactoredKernel(batch, 0), FactoredKernel(batch, 1)])
    assert [each[-1] for each in bases] == [16]
    assert max(map(relative_error, together, alone)) < 1e-12


def test_channels_are_added_to_kernels_alike_at_once():
    factors = [(torch.randn(9, 8), torch.randn(out, 3, 8)) for out in (4, 2, 4)]
    batch = KernelBatch(
        [lambda dtype, pair=pair: (pair[0].to(dtype), pair[1].to(dtype)) for pair in factors], torch.float32
    )
    mixes = [FactoredKernel(batch, number).wide_mix(8) for number in range(3)]
    for (_, mix), wide in zip(factors, mixes, strict=True):
        assert torch.equal(wide, F.pad(mix, (0, 0, 0, 5)))
    first, second, third = (wide.untyped_storage().data_ptr() for wide in mixes)
    assert first == third != second


def test_what_was_computed_without_gradients_is_computed_again_for_them():
    kernel = factored((12,), 4, 4)
    x, geometry = torch.randn(2, 4, 12).double(), geometry_of((12,), (12,), 1)
    with torch.no_grad():
        assert not dft_conv(x, kernel, None, geometry).requires_grad
    assert dft_conv(x, kernel, None, geometry).requires_grad
