"""One matrix times sequences in rows: the same as with zeros behind their ends, cut."""

import pytest
import torch
import torch.nn.functional as F

from flexconv.ops import conv1d
from flexconv.ops._row_product import row_product
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: rows, terms, width, length of x, length of y
SHAPES = [(16, 4, 8, 32, 128), (16, 4, 8, 30, 121), (40, 24, 24, 560, 905), (130, 70, 64, 4400, 8320)]
LARGE = [(256, 125, 128, 16000, 32768), (125, 256, 128, 32768, 16000), (300, 290, 136, 39435, 40800)]


def truth(matrix, x, width, length):
    x = F.pad(x.double(), (0, matrix.shape[1] * width - x.shape[1])).view(len(x), -1, width)
    return (matrix.double() @ x).flatten(1)[:, :length]


@pytest.mark.parametrize("shape", SHAPES + LARGE, ids=str)
def test_ends_may_be_anywhere(shape):
    rows, terms, width, length, wanted = shape
    matrix, x = torch.randn(rows, terms).double(), torch.randn(2, length).double()
    y = row_product(matrix, x, width, wanted)
    assert y.is_contiguous()
    assert relative_error(y, truth(matrix, x, width, wanted)) < 1e-13


# Triton's interpreter has no arithmetic for bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16] if DEVICE == "cuda" else [torch.float16])
@pytest.mark.parametrize("shape", SHAPES + (LARGE if DEVICE == "cuda" else []), ids=str)
@pytest.mark.parametrize("pieces", [False, True])
def test_the_triton_kernel_is_its_twin(pieces, shape, dtype):
    triton_form = pytest.importorskip("flexconv._fast.row_product_triton")
    rows, terms, width, length, wanted = shape
    x = torch.randn(300 if DEVICE == "cuda" else 3, length, device=DEVICE).to(dtype)
    stored = torch.randn(terms, rows, device=DEVICE).to(dtype)
    for matrix in (stored.t().contiguous(), stored.t()):
        y = x.new_full((len(x), wanted), torch.nan)
        triton_form.launch(matrix, x, y, width, cut=triton_form.IN_PIECES if pieces else None)
        assert relative_error(y, truth(matrix, x, width, wanted)) < 4e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("stored", ["transposed", "every other", "expanded"])
def test_sequences_may_be_stored_in_any_way(stored):
    x = {
        "transposed": torch.randn(6000, 3, device=DEVICE).t(),
        "every other": torch.randn(3, 12000, device=DEVICE)[:, ::2],
        "expanded": torch.randn((), device=DEVICE).expand(3, 6000),
    }[stored].bfloat16()
    matrix = torch.randn(64, 47, device=DEVICE).bfloat16()
    assert relative_error(row_product(matrix, x, 128, 8000), truth(matrix, x, 128, 8000)) < 4e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_the_gradient_of_a_sum():
    x = torch.randn(2, 4, 5000, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4, 4, 5000, device=DEVICE, dtype=torch.bfloat16) / 100
    conv1d(x, weight, padding="causal", algorithm="dft").sum().backward()
    truth = x.detach().double().requires_grad_()
    conv1d(truth, weight.double(), padding="causal", algorithm="fft").sum().backward()
    assert relative_error(x.grad, truth.grad) < 1e-2
