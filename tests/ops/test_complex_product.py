"""Complex products at every frequency: torch's own complex numbers say the same."""

import pytest
import torch

from flexconv._fast.triton_support import fits_32_bits
from flexconv.ops._complex_product import _as_blocks, complex_product
from flexconv.ops._steps import _opaque
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: frequencies, groups, rows, terms, columns
SHAPES = [(5, 1, 4, 3, 2), (3, 2, 5, 4, 6), (2, 1, 70, 36, 48), (2, 3, 1, 1, 130)]


def operands(shape, dtype=torch.float64, device="cpu"):
    frequencies, groups, rows, terms, columns = shape
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, frequencies, rows, groups, terms, generator=generator).transpose(2, 3)
    b = torch.randn(2, frequencies, groups, columns, terms, generator=generator).mT
    return a.to(device, dtype), b.to(device, dtype)


def truth(a, b, conjugate):
    a, b = torch.complex(*a.double()), torch.complex(*b.double())
    c = a @ (b.conj() if conjugate else b)
    return torch.stack([c.real, c.imag])


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_layout_and_gradients(shape, conjugate):
    a, b = (each.requires_grad_() for each in operands(shape))
    c = complex_product(a, b, conjugate, b.shape[-1], False)
    assert c.transpose(2, 3).is_contiguous()
    assert relative_error(c, truth(a, b, conjugate)) < 1e-14
    cotangent = torch.randn_like(c)
    results = torch.autograd.grad(c, (a, b), cotangent)
    truths = torch.autograd.grad(truth(a, b, conjugate), (a, b), cotangent)
    assert max(map(relative_error, results, truths)) < 1e-13


@pytest.mark.parametrize("conjugate", [False, True])
def test_second_gradients(conjugate):
    leaves = [each.requires_grad_() for each in operands((2, 2, 2, 3, 2))]
    assert torch.autograd.gradgradcheck(lambda a, b: complex_product(a, b, conjugate, b.shape[-1], False), leaves)


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("columns", [3, 4, 9])
def test_spare_terms_and_columns(columns, conjugate):
    a, b = (each.requires_grad_() for each in operands((3, 1, 5, 6, 4)))
    c = complex_product(a[..., :5], b, conjugate, columns, True)
    expected = truth(a[..., :5], b[..., :5, :], conjugate)
    expected = torch.nn.functional.pad(expected, (0, 5))[..., :columns]
    assert c.is_contiguous()
    assert relative_error(c, expected) < 1e-14
    cotangent = torch.randn_like(c)
    results, truths = (torch.autograd.grad(each, (a, b), cotangent) for each in (c, expected))
    assert max(map(relative_error, results, truths)) < 1e-13


def test_compilers_are_told_the_truth():
    a, b = (each.requires_grad_() for each in operands(SHAPES[1]))
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(_opaque["complex_product"], (a, b, True, 6, False), test_utils=checks)


def test_tensors_too_large_for_the_kernel_are_noticed():
    assert fits_32_bits(torch.empty(2, 2**30, device="meta"))
    assert not fits_32_bits(torch.empty(2, 2**30 + 1, device="meta"))
    assert fits_32_bits(torch.empty(1, device="meta").expand(2, 2**40))  # one number


# Triton's interpreter has no arithmetic for bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float16])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_triton_kernel_is_its_twin(shape, conjugate, dtype):
    launch = pytest.importorskip("flexconv._fast.complex_product_triton").launch
    a, b = operands(shape, dtype, DEVICE)
    c = a.new_full((2, *a.shape[1:4], b.shape[-1]), torch.nan)
    launch(a, b, c, conjugate)
    assert relative_error(c, truth(a, b, conjugate)) < 4e-3
    wider = a.new_full((2, *a.shape[1:4], b.shape[-1] + 3), torch.nan)
    launch(a, b, wider, conjugate)
    assert torch.equal(wider, torch.nn.functional.pad(c, (0, 3)))
    if DEVICE == "cpu":
        assert relative_error(_as_blocks(a.float(), b.float(), conjugate), truth(a, b, conjugate)) < 1e-6
