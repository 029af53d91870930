"""Factored kernels: the same results as with the kernel as a tensor."""

import pytest
import torch
import torch.nn.functional as F

from flexconv.ops._conv import conv_nd
from flexconv.ops._dft import dft_conv
from flexconv.ops._direct import direct_conv
from flexconv.ops._factored import FactoredKernel, KernelBatch
from tests.conftest import relative_error

from .test_dft import TOLERANCE, geometry_of

#: size, taps, groups, fan_in, multiplier, kind
CASES = [
    ((64,), (64,), 1, 4, 4, "single"),
    ((64,), (33,), 2, 4, 2, "two-level"),
    ((20, 24), (9, 7), 1, 6, 4, "single"),
    ((20, 24), (9, 7), 3, 2, 2, "single"),
    ((20,), (20,), 1, 3, 5, "single"),
    ((20, 24), (9, 7), 1, 6, 4, "separable"),
    ((12, 12), (5, 5), 4, 1, 1, "single"),
    ((6, 8, 7), (3, 5, 3), 1, 2, 3, "separable"),
]


def factored(taps, out, fan_in, rank=8, dtype=torch.float64):
    basis, mix = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((*taps, rank), (out, fan_in, rank)))
    return FactoredKernel(KernelBatch([lambda dtype: (basis.to(dtype), mix.to(dtype))], dtype))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients(case, dtype):
    size, taps, groups, fan_in, multiplier, kind = case
    torch.manual_seed(0)
    kernel = factored(taps, groups * multiplier, fan_in, dtype=dtype)
    x = torch.randn(3, groups * fan_in, *size).to(dtype).requires_grad_()
    geometry = geometry_of(size, taps, groups)
    y = dft_conv(x, kernel, None, geometry, kind=kind)
    cotangent = torch.randn(y.shape).to(dtype)
    results = y, *torch.autograd.grad(y, (x, kernel.basis, kernel.mix), cotangent)
    factors = [each.detach().double().requires_grad_() for each in (x, kernel.basis, kernel.mix)]
    kernel_truth = FactoredKernel(KernelBatch([lambda _: (factors[1], factors[2])], torch.float64)).tensor()
    truth = direct_conv(factors[0], kernel_truth, None, geometry)
    truths = truth, *torch.autograd.grad(truth, factors, cotangent.double())
    assert [each.dtype for each in results] == [dtype] * 4
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.parametrize("algorithm", ["auto", "direct", "fft", "dft", "reference"])
def test_every_algorithm_accepts_factored_kernels(algorithm):
    kernel, x = factored((9, 9), 4, 2), torch.randn(2, 4, 3, 12).double()  # higher than the image
    arguments = None, 1, "same", 1, 2, algorithm
    assert (
        relative_error(conv_nd(2, x, kernel, *arguments), conv_nd(2, x, kernel.tensor(), *arguments[:-1], "direct"))
        < 1e-12
    )


def test_attributes_equal_those_of_tensor():
    kernel = factored((5, 3), 4, 2)
    whole = kernel.tensor()
    assert (kernel.shape, kernel.ndim, kernel.dtype) == (whole.shape, whole.ndim, whole.dtype)
    assert (kernel.device, kernel.requires_grad) == (whole.device, True)
    assert relative_error(kernel.narrow(3, 1, 2).tensor(), whole.narrow(3, 1, 2)) < 1e-12
    assert kernel.narrow(2, 1, 3).to(torch.float32).shape == (4, 2, 3, 3)
    assert relative_error(kernel.to(torch.float32).tensor(), whole) < 1e-6


def test_kernel_is_rounded_once():
    torch.manual_seed(0)
    kernel = factored((5, 3), 4, 2, dtype=torch.float32)
    whole = kernel.tensor()
    assert torch.equal(kernel.to(torch.bfloat16).tensor(), whole.to(torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(kernel.tensor(), whole)


@pytest.mark.parametrize(("size", "kind"), [((12, 12), "single"), ((12, 12), "separable"), ((40,), "two-level")])
def test_bases_of_a_batch_are_transformed_together(size, kind, monkeypatch):
    torch.manual_seed(0)
    taps = (9,) * len(size)
    factors = [[torch.randn(shape).double() for shape in ((*taps, 8), (out, 3, 8))] for out in (2, 5)]
    leaves = [leaf.requires_grad_() for pair in factors for leaf in pair]
    sources = [lambda dtype, pair=pair: (pair[0].to(dtype), pair[1].to(dtype)) for pair in factors]
    x, geometry = torch.randn(2, 3, *size).double(), geometry_of(size, (7, *taps[1:]), 1)

    def results(kernels):
        outputs = [dft_conv(x, kernel.narrow(2, 1, 7), None, geometry, kind=kind) for kernel in kernels]
        return *outputs, *torch.autograd.grad(sum(y.square().sum() for y in outputs), leaves)

    alone = results([FactoredKernel(KernelBatch([source], torch.float64)) for source in sources])
    bases = []
    transformed = KernelBatch.transform_bases
    monkeypatch.setattr(
        KernelBatch,
        "transform_bases",
        lambda self, name, function: transformed(
            self, name, lambda basis: bases.append(basis.shape) or function(basis)
        ),
    )
    batch = KernelBatch(sources, torch.float64)
    together = results([FactoredKernel(batch, 0), FactoredKernel(batch, 1)])
    assert [each[-1] for each in bases] == [16]
    assert max(map(relative_error, together, alone)) < 1e-12


def test_mixes_of_same_shape_are_padded_together():
    factors = [(torch.randn(9, 8), torch.randn(out, 3, 8)) for out in (4, 2, 4)]
    batch = KernelBatch(
        [lambda dtype, pair=pair: (pair[0].to(dtype), pair[1].to(dtype)) for pair in factors], torch.float32
    )
    mixes = [FactoredKernel(batch, number).padded_mix(8) for number in range(3)]
    for (_, mix), wide in zip(factors, mixes, strict=True):
        assert torch.equal(wide, F.pad(mix, (0, 0, 0, 5)))
    first, second, third = (wide.untyped_storage().data_ptr() for wide in mixes)
    assert first == third != second


def test_results_without_gradients_are_not_reused_for_training():
    kernel = factored((12,), 4, 4)
    x, geometry = torch.randn(2, 4, 12).double(), geometry_of((12,), (12,), 1)
    with torch.no_grad():
        assert not dft_conv(x, kernel, None, geometry).requires_grad
    assert dft_conv(x, kernel, None, geometry).requires_grad
