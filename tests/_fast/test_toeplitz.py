"""Depthwise convolutions by Triton kernels, compared with torch in float64. Without a GPU, Triton interprets them."""

import random
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from flexconv import FlexConv1d, FlexConv2d
from flexconv._fast import depthwise_conv, toeplitz
from flexconv.ops import conv1d, conv2d, conv3d
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONVS = {1: conv1d, 2: conv2d, 3: conv3d}
TORCH_CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@pytest.fixture(autouse=True)
def _use_interpreter(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(depthwise_conv, "supports_device", lambda _: True)


@pytest.fixture
def launched(monkeypatch):
    """The sizes of the convolutions that were computed by the kernels."""
    sizes = []
    function = toeplitz.convolve

    def convolve(x, *rest):
        sizes.append(tuple(x.shape))
        return function(x, *rest)

    monkeypatch.setattr(toeplitz, "convolve", convolve)
    return sizes


def reference(x, w, bias, pads):
    """The convolution by torch in float64."""
    x = F.pad(x.double(), [amount for pair in reversed(pads) for amount in pair])
    return TORCH_CONVS[x.ndim - 2](x, w.double(), None if bias is None else bias.double(), groups=x.shape[1])


def random_case(seed: int):
    """Batch, channels, size, taps and padding of a convolution whose output is not empty."""
    rng = random.Random(seed)
    dims = 1 + seed % 3
    size = [
        rng.choice([1, 14, 33, 64, 130] if dims == 1 else [3, 9, 16, 20] if dims == 2 else [2, 5, 6])
        for _ in range(dims)
    ]
    taps = [rng.randint(1, n + 2) for n in size]
    pads = []
    for n, k in zip(size, taps, strict=True):
        left, right = rng.randint(0, k + 1), rng.randint(0, k + 1)
        pads.append((left, max(right, k - n - left)))
    return rng.choice([1, 5, 16]), rng.choice([1, 3]), size, taps, tuple(pads)


SEEDS = {False: range(12), True: range(6)} if DEVICE == "cpu" else {False: range(60), True: range(60)}


@pytest.mark.parametrize(("whole", "seed"), [(whole, seed) for whole, seeds in SEEDS.items() for seed in seeds])
def test_convolution_and_gradients_equal_torch(whole, seed, monkeypatch):
    if whole:  # rows of a program are samples of one tile, and sequences are not packed
        monkeypatch.setitem(toeplitz.MULTIPLY, 4, toeplitz.Launch(16, 4, 2))
        monkeypatch.setitem(toeplitz.CORRELATE, 4, toeplitz.Launch(16, 4, 2))
        monkeypatch.setattr(toeplitz, "SAMPLES", 16)
    torch.manual_seed(seed)
    batch, channels, size, taps, pads = random_case(seed)
    x = torch.randn(batch, channels, *size, device=DEVICE, requires_grad=True)
    w = torch.randn(channels, 1, *taps, device=DEVICE, requires_grad=True)
    bias = torch.randn(channels, device=DEVICE, requires_grad=True)
    y = CONVS[len(size)](x, w, bias, padding=pads, groups=channels, algorithm="toeplitz")
    expected = reference(x, w, bias, pads)
    grad = torch.randn_like(y)
    limit = 1e-6 if DEVICE == "cpu" else 3e-6  # tensor cores do not round the last bit of a sum
    assert relative_error(y, expected) < limit
    *found, of_bias = torch.autograd.grad(y, (x, w, bias), grad)
    *others, of_bias_expected = torch.autograd.grad(expected, (x, w, bias), grad.double())
    for one, other in zip(found, others, strict=True):
        assert relative_error(one, other) < limit
    assert torch.allclose(of_bias, of_bias_expected.float(), rtol=1e-5, atol=1e-5 * grad.norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16])
@pytest.mark.parametrize("shape", [(64, 3, 256), (5, 2, 17, 24)], ids=str)  # without and with packing
def test_half_precision(shape, dtype):
    taps = (31,) * (len(shape) - 2)
    x = torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()
    w = (torch.randn(shape[1], 1, *taps, device=DEVICE) / 31).to(dtype).requires_grad_()
    y = CONVS[len(taps)](x, w, groups=shape[1], algorithm="toeplitz")
    pads = ((15, 15),) * len(taps)
    assert y.dtype == dtype
    limit = 6e-4 if dtype == torch.float16 else 5e-3
    expected = reference(x, w, None, pads)
    assert relative_error(y, expected) < limit
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w), grad)
    for one, other in zip(found, torch.autograd.grad(expected, (x, w), grad.double()), strict=True):
        assert relative_error(one, other) < limit


def test_second_derivatives():
    x = torch.randn(2, 3, 20, device=DEVICE, requires_grad=True)
    w = torch.randn(3, 1, 7, device=DEVICE, requires_grad=True)

    def penalty(conv):
        y = conv(x, w)
        of_x, of_w = torch.autograd.grad((y**2).sum(), (x, w), create_graph=True)
        return torch.autograd.grad((of_x**2).sum() + (of_w**3).sum(), (x, w))

    found = penalty(lambda x, w: conv1d(x, w, padding=3, groups=3, algorithm="toeplitz"))
    expected = penalty(lambda x, w: F.conv1d(x.double(), w.double(), padding=3, groups=3))
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-5


def test_several_outputs_per_channel(launched):
    x = torch.randn(2, 3, 40, device=DEVICE)
    w = torch.randn(6, 1, 5, device=DEVICE)
    y = conv1d(x, w, groups=3, algorithm="toeplitz")
    assert launched
    assert relative_error(y, F.conv1d(x.double(), w.double(), padding=2, groups=3)) < 1e-6


@pytest.mark.parametrize(
    "options", [{"stride": 2}, {"dilation": 2}, {"dtype": torch.float64}, {"groups": 1}, {"batch": 0}], ids=str
)
def test_other_convolutions_are_left_to_torch(options, launched):
    batch, dtype, groups = options.pop("batch", 2), options.pop("dtype", torch.float32), options.pop("groups", 4)
    x = torch.randn(batch, 4, 30, device=DEVICE, dtype=dtype)
    w = torch.randn(4, 4 // groups, 5, device=DEVICE, dtype=dtype)
    found = conv1d(x, w, padding=4, groups=groups, algorithm="toeplitz", **options)
    expected = F.conv1d(x, w, padding=4, groups=groups, **options)
    assert not launched
    assert torch.allclose(found, expected, atol=1e-5)


def test_samples_that_are_never_read():
    x, w = torch.randn(1, 2, 30, device=DEVICE), torch.randn(2, 1, 5, device=DEVICE)
    found = conv1d(x, w, padding=[(-3, 1)], groups=2, algorithm="toeplitz")
    assert relative_error(found, reference(x[..., 3:], w, None, ((0, 1),))) < 1e-6


def test_channels_in_parts(monkeypatch):
    monkeypatch.setattr(toeplitz, "MATRIX_BYTES", 2**18)
    x = torch.randn(2, 7, 9, 12, device=DEVICE, requires_grad=True)
    w = torch.randn(7, 1, 3, 5, device=DEVICE, requires_grad=True)
    bias = torch.randn(7, device=DEVICE)
    y = conv2d(x, w, bias, groups=7, algorithm="toeplitz")
    expected = reference(x, w, bias, ((1, 1), (2, 2)))
    assert relative_error(y, expected) < 1e-6
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, w), grad)
    for one, other in zip(found, torch.autograd.grad(expected, (x, w), grad.double()), strict=True):
        assert relative_error(one, other) < 1e-6


@pytest.mark.parametrize("layer", [FlexConv1d(4, 4, 31, groups=4), FlexConv2d(4, 4, 9, groups=4)], ids=["1D", "2D"])
def test_depthwise_layers(layer: nn.Module, launched):
    layer.to(DEVICE)
    x = torch.randn(2, 4, *(24,) * layer.dims, device=DEVICE)
    layer.algorithm = "direct"
    expected = layer(x)
    layer.algorithm = "toeplitz"
    assert relative_error(layer(x), expected) < 1e-5
    assert launched


@pytest.mark.parametrize("bias", [False, True])
def test_operators_for_compiled_code(bias):
    x = torch.randn(2, 3, 40, device=DEVICE, requires_grad=True)
    w = torch.randn(3, 7, device=DEVICE, requires_grad=True)
    b = torch.randn(3, device=DEVICE, requires_grad=True) if bias else None
    grad = torch.randn(2, 3, 36, device=DEVICE)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    operators = torch.ops.flexconv
    torch.library.opcheck(operators.depthwise_conv, (x, w, b, [1, 1], "toeplitz"), test_utils=checks)
    torch.library.opcheck(
        operators.depthwise_input_gradient, (grad, w, [40], [1, 1], "toeplitz"), test_utils=checks[:3]
    )
    torch.library.opcheck(
        operators.depthwise_weight_gradient, (x, grad, [7], [1, 1], "toeplitz"), test_utils=checks[:3]
    )


@pytest.mark.parametrize("algorithm", ["toeplitz", "auto"])
def test_compiled_layer(algorithm):
    layer = FlexConv2d(3, 3, 9, groups=3, algorithm=algorithm).to(DEVICE)
    x = torch.randn(2, 3, 12, 12, device=DEVICE, requires_grad=True)
    trained = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    expected = torch.autograd.grad(layer(x).square().sum(), trained)
    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), trained)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-4


ROWS_OF_TILES = {  # batch, channels, size, taps, padding
    "four tiles, all taps": (3, 2, (32, 32), (33, 33), ((16, 16), (16, 16))),
    "four tiles, off-center taps": (2, 1, (9, 30), (5, 29), ((2, 2), (3, 25))),
    "three tiles": (2, 2, (12, 24), (11, 19), ((5, 5), (9, 9))),
    "two tiles, odd rows": (65, 1, (10, 13), (5, 9), ((2, 2), (4, 4))),
    "more rows of outputs": (2, 1, (8, 32), (9, 33), ((12, 3), (16, 16))),
}


@pytest.mark.parametrize("case", ROWS_OF_TILES.values(), ids=ROWS_OF_TILES.keys())
def test_rows_of_tiles(case, monkeypatch):
    batch, channels, size, taps, pads = case
    launch = toeplitz.Launch(64, 4, 1)
    every = {(number, reach): launch for number in (2, 3, 4) for reach in range(1, number)}
    multiply_rows = Mock(wraps=toeplitz._multiply_rows)
    monkeypatch.setattr(toeplitz, "_multiply_rows", multiply_rows)
    monkeypatch.setattr(toeplitz, "MULTIPLY_ROWS", every)
    monkeypatch.setattr("flexconv.ops._tiles.SHAPES", {2: ((8, 8),)})
    toeplitz.cached_tiles.cache_clear()
    x = torch.randn(batch, channels, *size, device=DEVICE).half().requires_grad_()
    w = (torch.randn(channels, 1, *taps, device=DEVICE) / (taps[0] * taps[1]) ** 0.5).half().requires_grad_()
    bias = torch.randn(channels, device=DEVICE).half()
    y = conv2d(x, w, bias, padding=pads, groups=channels, algorithm="toeplitz")
    expected = reference(x, w, bias, pads)
    grad = torch.randn_like(y)
    found = y, *torch.autograd.grad(y, (x, w), grad)
    toeplitz.cached_tiles.cache_clear()
    assert multiply_rows.call_count == 2  # the convolution and the gradient of its input
    for one, other in zip(found, (expected, *torch.autograd.grad(expected, (x, w), grad.double())), strict=True):
        assert relative_error(one, other) < 6e-4


def test_rows_of_tiles_are_used_for_wide_kernels():
    tiles = toeplitz._cut((32, 32), (33, 33), ((16, 16), (16, 16)))
    half, full = torch.empty(0, dtype=torch.bfloat16), torch.empty(0)
    assert toeplitz._launch_for_rows(tiles, half) is not None
    assert toeplitz._launch_for_rows(tiles, full) is None
    narrow = toeplitz._cut((32, 32), (3, 3), ((1, 1), (1, 1)))
    assert toeplitz._launch_for_rows(narrow, half) is None
