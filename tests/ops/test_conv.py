"""All algorithms agree with each other, with torch and with the golden values."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flexconv.ops import conv1d, conv2d, conv3d
from tests.conftest import Golden, relative_error

CONV = {1: conv1d, 2: conv2d, 3: conv3d}
TORCH_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
MAX_SIZE, MAX_TAPS = {1: 12, 2: 6, 3: 3}, {1: 15, 2: 7, 3: 4}

both = pytest.mark.parametrize("algorithm", ["direct", "fft"])


class Problem(NamedTuple):
    """Arguments of one convolution. `pads` is the resolved `padding`, computed independently of the package."""

    batch: int
    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    fan_in: int
    multiplier: int
    bias: bool
    padding: str | int | tuple
    pads: tuple[tuple[int, int], ...]

    def tensors(self, dtype=torch.float64):
        """Return positive tensors, so that sums do not cancel and relative errors are meaningful."""
        out = self.groups * self.multiplier
        x = torch.rand(self.batch, self.groups * self.fan_in, *self.size).to(dtype)
        weight = torch.rand(out, self.fan_in, *self.taps).to(dtype)
        return x, weight, torch.rand(out).to(dtype) if self.bias else None

    def run(self, algorithm, x, weight, bias):
        options = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return CONV[len(self.size)](x, weight, bias, **options, algorithm=algorithm)

    def truth(self, x, weight, bias):
        """Compute with torch in float64, with explicit zeros around x and no padding argument."""
        margin = 2 * max(0, *(abs(amount) for pair in self.pads for amount in pair))
        window = F.pad(x.double(), [margin] * 2 * len(self.size))
        for axis, (length, (left, right)) in enumerate(zip(self.size, self.pads, strict=True)):
            window = window.narrow(2 + axis, margin - left, length + left + right)
        bias = None if bias is None else bias.double()
        return TORCH_CONV[len(self.size)](window, weight.double(), bias, self.stride, 0, self.dilation, self.groups)


def resolve(entry, reach):
    named = {"valid": (0, 0), "causal": (reach, 0), "same": (reach // 2, reach // 2)}
    return named[entry] if isinstance(entry, str) else (entry, entry) if isinstance(entry, int) else entry


@st.composite
def problems(draw, dims, max_stride=3):
    def per_axis(smallest, largest):
        return tuple(draw(st.tuples(*[st.integers(smallest, largest)] * dims)))

    size, taps = per_axis(1, MAX_SIZE[dims]), per_axis(1, MAX_TAPS[dims])
    stride, dilation = per_axis(1, max_stride), per_axis(1, 3)
    reaches = [d * (k - 1) for k, d in zip(taps, dilation, strict=True)]
    required = [reach + 1 - length for reach, length in zip(reaches, size, strict=True)]  # the least left + right

    def names(axes):
        fits = {
            "causal": True,
            "valid": all(required[a] <= 0 for a in axes),
            "same": all(reaches[a] % 2 == 0 for a in axes),
        }
        return st.sampled_from([name for name, fit in fits.items() if fit])

    def amounts(axes):
        least = max(-(-required[a] // 2) for a in axes)
        return st.integers(least, least + 3)

    def pairs(axis):
        left = st.integers(-size[axis] - 3, reaches[axis] + 3)
        return left.flatmap(lambda n: st.tuples(st.just(n), st.integers(required[axis] - n, required[axis] - n + 5)))

    everywhere = range(dims)
    if draw(st.booleans()):
        padding = draw(st.one_of(names(everywhere), amounts(everywhere)))
        entries = (padding,) * dims
    else:
        padding = entries = tuple(draw(st.one_of(names([a]), amounts([a]), pairs(a))) for a in everywhere)
    pads = tuple(resolve(entry, reach) for entry, reach in zip(entries, reaches, strict=True))
    channels = draw(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)))
    return Problem(draw(st.integers(1, 2)), size, taps, stride, dilation, *channels, draw(st.booleans()), padding, pads)


def error(result, truth):
    """Return the relative error after adding one to both, so that it is defined for a truth of zeros."""
    assert result.shape == truth.shape
    return relative_error(result.double() + 1, truth + 1)


@pytest.mark.parametrize("dims", [1, 2, 3])
@given(data=st.data(), dtype=st.sampled_from(list(TOLERANCE)))
def test_direct_and_fft_equal_torch_for_any_geometry_and_dtype(dims, data, dtype):
    problem = data.draw(problems(dims))
    tensors = problem.tensors(dtype)
    truth = problem.truth(*tensors)
    for algorithm in ("direct", "fft", "auto"):
        result = problem.run(algorithm, *tensors)
        assert result.dtype == dtype
        assert error(result, truth) < TOLERANCE[dtype], algorithm


@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=15)
@given(data=st.data())
def test_direct_and_fft_equal_reference(dims, data):
    problem = data.draw(problems(dims))
    tensors = problem.tensors()
    reference = problem.run("reference", *tensors)
    for algorithm in ("direct", "fft"):
        assert error(problem.run(algorithm, *tensors), reference) < 1e-10, algorithm


@given(
    length=st.integers(1, 300), taps=st.integers(1, 300), padding=st.sampled_from(["causal", "same", "valid", "ahead"])
)
@example(length=41, taps=40, padding="ahead")
@example(length=1, taps=299, padding="causal")
@example(length=257, taps=257, padding="valid")
def test_fft_equals_torch_for_long_kernels_and_odd_lengths(length, taps, padding):
    taps -= padding == "same" and taps % 2 == 0
    length = max(length, taps) if padding == "valid" else length
    pads = ((0, taps - 1) if padding == "ahead" else resolve(padding, taps - 1),)
    padding = pads if padding == "ahead" else padding
    problem = Problem(2, (length,), (taps,), (1,), (1,), 2, 1, 2, True, padding, pads)
    tensors = problem.tensors()
    assert error(problem.run("fft", *tensors), problem.truth(*tensors)) < 1e-10


GRADIENTS = [  # dims, size, taps, padding, groups, stride, dilation
    (1, (7,), (3,), "causal", 1, 1, 1),
    (1, (6,), (4,), "causal", 2, 2, 2),
    (1, (3,), (7,), "same", 4, 1, 1),
    (1, (6,), (2,), ((-2, 3),), 1, 1, 1),
    (2, (4, 3), (3, 3), "same", 1, 1, 1),
    (2, (3, 4), (2, 3), ("causal", "same"), 2, (2, 1), (1, 2)),
    (3, (2, 3, 2), (2, 2, 2), "causal", 2, 1, 1),
    (3, (3, 2, 3), (3, 1, 3), "same", 2, (1, 2, 2), (2, 1, 1)),
]


def leaves(size, taps, groups):
    shapes = (2, 4 if groups == 4 else 2, *size), (4, 2 // groups or 1, *taps), (4,)
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


@both
@pytest.mark.parametrize(("dims", "size", "taps", "padding", "groups", "stride", "dilation"), GRADIENTS)
def test_gradcheck(algorithm, dims, size, taps, padding, groups, stride, dilation):
    options = {"padding": padding, "groups": groups, "stride": stride, "dilation": dilation, "algorithm": algorithm}
    assert torch.autograd.gradcheck(lambda *each: CONV[dims](*each, **options), leaves(size, taps, groups))


@both
def test_gradgradcheck(algorithm):
    def conv(*each):
        return conv1d(*each, padding="causal", groups=2, algorithm=algorithm)

    assert torch.autograd.gradgradcheck(conv, leaves((4,), (3,), 2))


TAGS = sorted({key.rpartition("/")[0] for key in Golden("conv_primitives").arrays})


@both
@pytest.mark.parametrize("tag", TAGS)
def test_matches_golden_values_without_the_reference_bug(golden, tag, algorithm):
    file = golden("conv_primitives")
    conv, padding = (conv1d, "causal") if tag.startswith("causal") else (conv2d, "same")
    y = conv(*(file[f"{tag}/{name}"] for name in ("x", "kernel", "bias")), padding=padding, algorithm=algorithm)
    assert relative_error(y, file[f"{tag}/spatial"]) < 1e-9
    if f"{tag}/fft" in file:
        assert relative_error(y, file[f"{tag}/fft"]) < 1e-5
    else:
        assert relative_error(y, file[f"{tag}/fft_REFERENCE_BUG"]) > 0.1


@both
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_autocast_returns_bfloat16_close_to_float32(algorithm, dims):
    x, weight, bias = torch.randn(2, 4, *(9,) * dims), torch.randn(6, 2, *(5,) * dims), torch.randn(6)
    with torch.autocast("cpu", torch.bfloat16):
        y = CONV[dims](x, weight, bias, groups=2, algorithm=algorithm)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, CONV[dims](x, weight, bias, groups=2, algorithm=algorithm)) < 2e-2


@both
def test_autocast_accepts_a_half_precision_input_with_a_float32_weight(algorithm):
    with torch.autocast("cpu", torch.bfloat16):
        y = conv1d(torch.randn(1, 2, 9).bfloat16(), torch.randn(2, 2, 3), torch.randn(2), algorithm=algorithm)
    assert y.dtype == torch.bfloat16


@both
def test_autocast_does_not_change_float64(algorithm):
    with torch.autocast("cpu", torch.bfloat16):
        y = conv1d(torch.randn(1, 2, 9).double(), torch.randn(2, 2, 3).double(), algorithm=algorithm)
    assert y.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fft_gradients_have_the_dtype_of_the_inputs(dtype):
    leaves = [torch.randn(shape).to(dtype).requires_grad_() for shape in [(2, 2, 9), (2, 2, 3), (2,)]]
    conv1d(*leaves, algorithm="fft").sum().backward()
    assert [leaf.grad.dtype for leaf in leaves] == [dtype] * 3
