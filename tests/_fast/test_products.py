"""The Triton kernels of complex and row products, compared with the plain versions in `flexconv.ops`."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from flexconv._fast.products import four_products
from flexconv._fast.triton_support import fits_32_bits
from flexconv._registry import fast_version, plain_version
from flexconv.ops import conv1d
from flexconv.ops._complex_product import _real_block_product, complex_product
from flexconv.ops._row_product import row_product
from tests.conftest import relative_error
from tests.ops.test_complex_product import SHAPES as COMPLEX_SHAPES
from tests.ops.test_complex_product import operands
from tests.ops.test_complex_product import truth as complex_truth
from tests.ops.test_row_product import LARGE as LARGE_ROW_SHAPES
from tests.ops.test_row_product import SHAPES as ROW_SHAPES
from tests.ops.test_row_product import truth as row_truth

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_products_are_registered_and_leave_other_inputs_to_the_plain_versions():
    a, b = operands(COMPLEX_SHAPES[0])
    assert fast_version("ops.complex_product")(a, b, False, b.shape[-1], False) is NotImplemented
    assert fast_version("ops.row_product")(torch.ones(2, 3), torch.ones(4, 6), 2, 4) is NotImplemented


def test_fits_32_bits():
    assert fits_32_bits(torch.empty(2, 2**30, device="meta"))
    assert not fits_32_bits(torch.empty(2, 2**30 + 1, device="meta"))
    assert fits_32_bits(torch.empty(1, device="meta").expand(2, 2**40))  # a single element


# Triton's interpreter does not support bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float16])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", COMPLEX_SHAPES, ids=str)
def test_complex_product_kernel_equals_plain_version(shape, conjugate, dtype):
    launch = pytest.importorskip("flexconv._fast.complex_product_triton").launch
    a, b = operands(shape, dtype, DEVICE)
    c = a.new_full((2, *a.shape[1:4], b.shape[-1]), torch.nan)
    launch(a, b, c, conjugate)
    assert relative_error(c, complex_truth(a, b, conjugate)) < 4e-3
    wider = a.new_full((2, *a.shape[1:4], b.shape[-1] + 3), torch.nan)
    launch(a, b, wider, conjugate)
    assert torch.equal(wider, torch.nn.functional.pad(c, (0, 3)))
    if DEVICE == "cpu":
        assert (
            relative_error(_real_block_product(a.float(), b.float(), conjugate), complex_truth(a, b, conjugate)) < 1e-6
        )


@pytest.fixture
def triton_operator(monkeypatch):
    """The operator whose kernel compilers launch themselves. Interpreted kernels cannot be wrapped for a compiler."""
    module = pytest.importorskip("flexconv._fast.complex_product_operator")

    class Wrapped:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda a, *given, **named: type(a) is torch.Tensor and self.kernel[grid](a, *given, **named)

    if DEVICE == "cpu":
        monkeypatch.setattr(module, "wrap_triton", Wrapped)
    return torch.ops.flexconv.complex_product_triton


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", COMPLEX_SHAPES, ids=str)
def test_operator_for_compilers_and_its_gradients(shape, conjugate, triton_operator):
    a, b = (each.requires_grad_() for each in operands(shape, torch.float16, DEVICE))
    for columns, contiguous in ((b.shape[-1], False), (b.shape[-1] + 3, True)):
        plain = plain_version("ops.complex_product")(a, b, conjugate, columns, contiguous)
        found = triton_operator(a, b, conjugate, columns, contiguous)
        expected = torch.nn.functional.pad(complex_truth(a, b, conjugate), (0, columns - b.shape[-1]))
        assert found.stride() == plain.stride()
        assert relative_error(found, expected) < 4e-3
        cotangent = torch.randn_like(found)
        results = torch.autograd.grad(found, (a, b), cotangent)
        truths = torch.autograd.grad(expected, (a, b), cotangent.to(expected))
        assert max(map(relative_error, results, truths)) < 4e-3


def test_sizes_that_are_symbols_and_large_tensors_are_left_to_the_opaque_operator(triton_operator, monkeypatch):
    a, b = operands(COMPLEX_SHAPES[0], torch.float16, DEVICE)
    names = []

    def compiler(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if "complex_product" in str(node.target))
        return make_boxed_func(graph.forward)

    def product(a, b):
        return triton_operator(a, b, True, b.shape[-1], False)

    def compiled(dynamic):
        torch._dynamo.reset()
        return torch.compile(product, backend=aot_autograd(fw_compiler=compiler), fullgraph=True, dynamic=dynamic)(a, b)

    compiled(dynamic=False)
    assert names == []  # the operator was replaced by the launch of its kernel
    assert relative_error(compiled(dynamic=True), complex_truth(a, b, True)) < 4e-3
    monkeypatch.setattr("flexconv._fast.complex_product_operator.fits_32_bits", lambda _: False)
    assert relative_error(compiled(dynamic=False), complex_truth(a, b, True)) < 4e-3
    assert names == ["flexconv.complex_product.default"] * 2


def test_compiled_code_uses_the_operator_for_compilers(triton_operator, monkeypatch):
    monkeypatch.setattr("flexconv._fast.products.compiler_can_launch", lambda _: True)
    a, b = operands(COMPLEX_SHAPES[0], torch.float16, DEVICE)
    names = []

    def backend(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def product(a, b):
        return complex_product(a, b, True, b.shape[-1], False)

    found = torch.compile(product, backend=backend, fullgraph=True)(a, b)
    assert names == ["flexconv.complex_product_triton"]
    assert relative_error(found, complex_truth(a, b, True)) < 4e-3
    assert relative_error(product(a, b), complex_truth(a, b, True)) < 4e-3


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", [shape for shape in COMPLEX_SHAPES if shape[1] == 1], ids=str)
def test_four_real_products_equal_the_complex_product(shape, conjugate, contiguous):
    a, b = operands(shape, torch.float32, DEVICE)
    for columns in (b.shape[-1], b.shape[-1] + 3):
        plain = plain_version("ops.complex_product")(a, b, conjugate, columns, contiguous)
        found = four_products(a, b, conjugate, columns, contiguous)
        assert relative_error(found, plain) < 1e-5
        assert found.stride() == plain.stride()
    assert torch.equal(found[..., b.shape[-1] :], torch.zeros_like(found[..., b.shape[-1] :]))


# Triton's interpreter does not support bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float16])
@pytest.mark.parametrize("shape", ROW_SHAPES + (LARGE_ROW_SHAPES if DEVICE == "cuda" else []), ids=str)
@pytest.mark.parametrize("streamed", [False, True])
def test_row_product_kernel_equals_plain_version(streamed, shape, dtype):
    kernels = pytest.importorskip("flexconv._fast.row_product_triton")
    rows, terms, width, length, wanted = shape
    x = torch.randn(300 if DEVICE == "cuda" else 3, length, device=DEVICE).to(dtype)
    stored = torch.randn(terms, rows, device=DEVICE).to(dtype)
    for matrix in (stored.t().contiguous(), stored.t()):
        y = x.new_full((len(x), wanted), torch.nan)
        kernels.launch(matrix, x, y, width, config=kernels.STREAMED if streamed else None)
        assert relative_error(y, row_truth(matrix, x, width, wanted)) < 4e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("stored", ["transposed", "every other", "expanded"])
def test_row_product_accepts_any_strides(stored):
    x = {
        "transposed": torch.randn(6000, 3, device=DEVICE).t(),
        "every other": torch.randn(3, 12000, device=DEVICE)[:, ::2],
        "expanded": torch.randn((), device=DEVICE).expand(3, 6000),
    }[stored].bfloat16()
    matrix = torch.randn(64, 47, device=DEVICE).bfloat16()
    assert relative_error(row_product(matrix, x, 128, 8000), row_truth(matrix, x, 128, 8000)) < 4e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_gradient_of_a_sum_has_expanded_strides():
    x = torch.randn(2, 4, 5000, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4, 4, 5000, device=DEVICE, dtype=torch.bfloat16) / 100
    conv1d(x, weight, padding="causal", algorithm="dft").sum().backward()
    truth = x.detach().double().requires_grad_()
    conv1d(truth, weight.double(), padding="causal", algorithm="fft").sum().backward()
    assert relative_error(x.grad, truth.grad) < 1e-2
