"""Complex products at every frequency, compared with complex tensors of torch."""

import pytest
import torch

from flexconv.ops._complex_product import complex_product
from flexconv.ops._operators import custom_operators
from tests.conftest import relative_error

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
def test_values_strides_and_gradients(shape, conjugate):
    a, b = (each.requires_grad_() for each in operands(shape))
    c = complex_product(a, b, conjugate, b.shape[-1], False)
    assert c.transpose(2, 3).is_contiguous()
    assert relative_error(c, truth(a, b, conjugate)) < 1e-14
    cotangent = torch.randn_like(c)
    results = torch.autograd.grad(c, (a, b), cotangent)
    truths = torch.autograd.grad(truth(a, b, conjugate), (a, b), cotangent)
    assert max(map(relative_error, results, truths)) < 1e-13


@pytest.mark.parametrize("conjugate", [False, True])
def test_gradgradcheck(conjugate):
    leaves = [each.requires_grad_() for each in operands((2, 2, 2, 3, 2))]
    assert torch.autograd.gradgradcheck(lambda a, b: complex_product(a, b, conjugate, b.shape[-1], False), leaves)


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("columns", [3, 4, 9])
def test_surplus_terms_are_ignored_and_extra_columns_are_zero(columns, conjugate):
    a, b = (each.requires_grad_() for each in operands((3, 1, 5, 6, 4)))
    c = complex_product(a[..., :5], b, conjugate, columns, True)
    expected = truth(a[..., :5], b[..., :5, :], conjugate)
    expected = torch.nn.functional.pad(expected, (0, 5))[..., :columns]
    assert c.is_contiguous()
    assert relative_error(c, expected) < 1e-14
    cotangent = torch.randn_like(c)
    results, truths = (torch.autograd.grad(each, (a, b), cotangent) for each in (c, expected))
    assert max(map(relative_error, results, truths)) < 1e-13


def test_operator_passes_opcheck():
    a, b = (each.requires_grad_() for each in operands(SHAPES[1]))
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(custom_operators["complex_product"], (a, b, True, 6, False), test_utils=checks)
