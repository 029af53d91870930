"""Depthwise convolutions by Monarch transforms, compared with torch in float64.

Without a GPU, Triton interprets the kernels.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from flexconv import FlexConv1d, FlexConv2d
from flexconv._fast import depthwise_conv, monarch
from flexconv.ops import conv1d, conv2d
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]

CASES = {  # batch, channels, samples, taps, padding
    "causal, 16 columns": (3, 2, 700, 700, (699, 0)),
    "centered, 32 columns": (2, 1, 1500, 301, (150, 150)),
    "causal, 64 columns": (5, 2, 4096, 4096, (4095, 0)),
    "no padding": (2, 1, 3000, 1001, (0, 0)),
    "reversed in time": (1, 2, 900, 500, (0, 499)),
    "causal, several chunks": (1, 2, 9000, 9000, (8999, 0)),
    "centered, several chunks": (2, 1, 9001, 5001, (2500, 2500)),
    "few taps, several chunks": (2, 1, 8192, 7, (6, 0)),
    "more outputs than inputs": (1, 1, 300, 5000, (4900, 2000)),
    "more padding than taps": (1, 1, 200, 3, (5000, 100)),
}


@pytest.fixture(autouse=True)
def _use_interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(depthwise_conv, "supports_device", lambda _: True)


@pytest.fixture
def launched(monkeypatch):
    """The sizes of the convolutions that were computed by the kernels."""
    sizes = []
    function = monarch.convolve

    def convolve(x, *rest):
        sizes.append(tuple(x.shape))
        return function(x, *rest)

    monkeypatch.setattr(monarch, "convolve", convolve)
    return sizes


def random_tensors(batch, channels, size, taps, dtype=torch.float32):
    """Inputs, and kernels for outputs of about unit variance."""
    x = torch.randn(batch, channels, size, device=DEVICE).to(dtype)
    w = (torch.randn(channels, 1, taps, device=DEVICE) / taps**0.5).to(dtype)
    return x.requires_grad_(), w.requires_grad_()


def reference(x, w, bias, pads):
    """The convolution by the FFT in float64."""
    bias = None if bias is None else bias.double()
    return conv1d(x.double(), w.double(), bias, padding=[pads], groups=x.shape[1], algorithm="fft")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_convolution_and_gradients_equal_torch(case, launched):
    *shape, pads = case
    x, w = random_tensors(*shape)
    bias = torch.randn(x.shape[1], device=DEVICE, requires_grad=True)
    y = conv1d(x, w, bias, padding=[pads], groups=x.shape[1], algorithm="monarch")
    assert launched
    expected = reference(x, w, bias, pads)
    assert relative_error(y, expected) < 3e-6
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w, bias), grad)
    for one, other in zip(found, torch.autograd.grad(expected, (x, w, bias), grad.double()), strict=True):
        assert relative_error(one, other) < 3e-6


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_half_precision_is_at_most_twice_as_inaccurate_as_direct(case, dtype):
    *shape, pads = case
    x, w = (each.detach().double() for each in random_tensors(*shape))
    expected = reference(x, w, None, pads)
    y = conv1d(x.to(dtype), w.to(dtype), padding=[pads], groups=x.shape[1], algorithm="monarch")
    assert y.dtype == dtype
    direct = reference(x.to(dtype), w.to(dtype), None, pads).to(dtype)  # exact, up to the rounding of its arguments
    assert relative_error(y, expected) < 2 * relative_error(direct, expected)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", [CASES["causal, 64 columns"], CASES["centered, several chunks"]], ids=["one", "many"])
def test_gradients_in_half_precision(case, dtype):
    *shape, pads = case
    x, w = random_tensors(*shape, dtype)
    y = conv1d(x, w, padding=[pads], groups=x.shape[1], algorithm="monarch")
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w), grad)
    expected = torch.autograd.grad(reference(x, w, None, pads), (x, w), grad.double())
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < (8e-4 if dtype == torch.float16 else 3e-3)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("size", [700, 5000])
def test_very_large_and_very_small_numbers(dtype, size):
    large = 3e4 if dtype == torch.float16 else 1e10
    x, w = (each.detach() for each in random_tensors(3, 2, size, 300))
    x = (x * torch.tensor([1.0, large / x.abs().max(), 1e-3], device=DEVICE)[:, None, None]).to(dtype)
    x[2, 1] = 0.0
    w = (1e-3 * w).to(dtype)
    y = conv1d(x, w, padding="causal", groups=2, algorithm="monarch")
    expected = reference(x, w, None, (299, 0))
    assert torch.equal(y[2, 1], torch.zeros_like(y[2, 1]))
    for one, other in zip(y[:2], expected[:2], strict=True):
        assert relative_error(one, other) < {torch.float32: 1e-6, torch.float16: 8e-4, torch.bfloat16: 3e-3}[dtype]


def test_few_outputs_in_half_precision_are_left_to_the_fft(launched):
    x, w = random_tensors(2, 3, 100, 90, torch.float16)
    y = conv1d(x, w, padding="valid", groups=3, algorithm="monarch")
    assert not launched
    assert relative_error(y, reference(x, w, None, (0, 0))) < 6e-4


@pytest.mark.parametrize("size", [40, 4500])
def test_second_derivatives(size):
    x, w = random_tensors(2, 2, size, 7)

    def penalty(conv):
        y = conv(x, w)
        of_x, of_w = torch.autograd.grad((y**2).sum(), (x, w), create_graph=True)
        return torch.autograd.grad((of_x**2).sum() + (of_w**3).sum(), (x, w))

    found = penalty(lambda x, w: conv1d(x, w, padding=3, groups=2, algorithm="monarch"))
    expected = penalty(lambda x, w: F.conv1d(x.double(), w.double(), padding=3, groups=2))
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-5


IMAGES = {  # batch, channels, size, taps, padding
    "one chunk, even pitch": (3, 2, (32, 32), (33, 33), ((16, 16), (16, 16))),
    "one chunk, odd pitch": (2, 2, (56, 56), (31, 31), ((15, 15), (15, 15))),
    "one chunk, asymmetric": (2, 1, (20, 33), (4, 9), ((0, 3), (7, 2))),
    "no padding": (1, 2, (30, 17), (5, 6), ((0, 0), (0, 0))),
    "more padding than taps": (1, 1, (9, 11), (3, 3), ((5, 4), (6, 12))),
    "several chunks": (2, 1, (70, 64), (21, 31), ((10, 10), (15, 15))),
    "odd rows": (2, 2, (33, 33), (7, 7), ((3, 3), (3, 3))),
    "odd rows of inputs": (2, 1, (9, 21), (3, 4), ((1, 1), (0, 0))),
    "odd rows of outputs": (1, 2, (9, 20), (3, 4), ((1, 1), (1, 1))),
    "odd rows, several chunks": (1, 1, (91, 73), (5, 9), ((2, 2), (4, 4))),
    "odd rows that fill the chunk": (1, 1, (32, 31), (3, 1), ((1, 1), (0, 0))),
}


@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_images(case, dtype, launched):
    batch, channels, size, taps, pads = case
    x = torch.randn(batch, channels, *size, device=DEVICE).to(dtype).requires_grad_()
    w = (torch.randn(channels, 1, *taps, device=DEVICE) / (taps[0] * taps[1]) ** 0.5).to(dtype).requires_grad_()
    y = conv2d(x, w, padding=pads, groups=channels, algorithm="monarch")
    assert launched
    expected = conv2d(x.double(), w.double(), padding=pads, groups=channels, algorithm="fft")
    grad = torch.randn_like(y)
    found = y, *torch.autograd.grad(y, (x, w), grad)
    limit = {torch.float32: 3e-6, torch.float16: 8e-4, torch.bfloat16: 3e-3}[dtype]
    limits = limit, limit, 2 * limit  # the gradient of a kernel with few taps may be small by chance
    truth = expected, *torch.autograd.grad(expected, (x, w), grad.double())
    for one, other, most in zip(found, truth, limits, strict=True):
        assert relative_error(one, other) < most


@pytest.mark.parametrize("needed", [(True, False), (False, True)], ids=["of x", "of the kernel"])
@pytest.mark.parametrize("size", [100, 4500])
def test_one_gradient(size, needed):
    x, w = random_tensors(2, 3, size, 60)
    for tensor, each in zip((x, w), needed, strict=True):
        tensor.requires_grad_(each)
    tensor = x if needed[0] else w
    y = conv1d(x, w, padding="causal", groups=3, algorithm="monarch")
    (found,) = torch.autograd.grad(y.square().sum(), tensor)
    (expected,) = torch.autograd.grad(reference(x, w, None, (59, 0)).square().sum(), tensor)
    assert relative_error(found, expected) < 3e-6


def test_several_outputs_per_channel(launched):
    x, w = torch.randn(2, 3, 40, device=DEVICE), torch.randn(6, 1, 5, device=DEVICE)
    y = conv1d(x, w, groups=3, algorithm="monarch")
    assert launched
    assert relative_error(y, F.conv1d(x.double(), w.double(), padding=2, groups=3)) < 1e-6


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"dilation": 2}, {"dtype": torch.float64}, {"groups": 1}, {"batch": 0}], ids=str
)
def test_other_convolutions_are_left_to_the_fft(options, launched):
    batch, dtype, groups = options.pop("batch", 2), options.pop("dtype", torch.float32), options.pop("groups", 4)
    x = torch.randn(batch, 4, 30, device=DEVICE, dtype=dtype)
    w = torch.randn(4, 4 // groups, 5, device=DEVICE, dtype=dtype)
    found = conv1d(x, w, padding=4, groups=groups, algorithm="monarch", **options)
    expected = F.conv1d(x, w, padding=4, groups=groups, **options)
    assert not launched
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("layer", [FlexConv1d(4, 4, 31, groups=4), FlexConv2d(4, 4, 9, groups=4)], ids=["1D", "2D"])
def test_layers(layer, launched):
    layer.to(DEVICE)
    x = torch.randn(2, 4, *(24,) * layer.dims, device=DEVICE)
    layer.algorithm = "direct"
    expected = layer(x)
    layer.algorithm = "monarch"
    assert relative_error(layer(x), expected) < 1e-5
    assert launched


def test_operators_for_compiled_code():
    x, w = random_tensors(2, 3, 40, 7)
    w = w.detach().squeeze(1).requires_grad_()
    grad = torch.randn(2, 3, 36, device=DEVICE)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    operators = torch.ops.flexconv
    rest = [1, 1], "monarch"
    torch.library.opcheck(operators.depthwise_conv, (x, w, None, *rest), test_utils=checks)
    torch.library.opcheck(operators.depthwise_input_gradient, (grad, w, [40], *rest), test_utils=checks[:3])
    torch.library.opcheck(operators.depthwise_weight_gradient, (x, grad, [7], *rest), test_utils=checks[:3])


def test_compiled_layer():
    layer = FlexConv1d(4, 4, 31, groups=4, algorithm="monarch").to(DEVICE)
    x = torch.randn(2, 4, 50, device=DEVICE, requires_grad=True)
    trained = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    expected = torch.autograd.grad(layer(x).square().sum(), trained)
    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), trained)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-4
