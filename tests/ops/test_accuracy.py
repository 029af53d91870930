"""No algorithm is much less accurate than a direct convolution, whatever the shape and the dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexconv.ops._conv import conv_nd
from flexconv.ops._dft_plan import error_spread
from flexconv.ops._geometry import Geometry, output_sizes

# Transforms of n numbers have an error of about log n roundings, a direct convolution with few taps less than one.
FLOOR = {torch.float64: 3e-15, torch.float32: 3e-6}


@st.composite
def convolutions(draw):
    """A convolution with any padding, also such that few outputs see an input."""
    dims = draw(st.integers(1, 3))
    largest = {1: 150, 2: 18, 3: 8}[dims]

    def per_axis(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * dims))

    size, taps = per_axis(1, largest), per_axis(1, {1: 60, 2: 12, 3: 5}[dims])
    stride, dilation = per_axis(1, 4), per_axis(1, 5)
    before, after = per_axis(-2, 2 * largest), per_axis(-2, 2 * largest)
    reach = [(k - 1) * d + 4 for k, d in zip(taps, dilation, strict=True)]
    pads = tuple((a + r // 2, b + r - r // 2) for a, b, r in zip(before, after, reach, strict=True))
    batch, fan_in, fan_out, groups = (draw(st.integers(1, 4)) for _ in range(4))
    geometry = Geometry(stride, pads, dilation, groups)
    assert min(output_sizes(size, taps, geometry)) >= 1
    seed = draw(st.integers(0, 2**31))
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, fan_in * groups, *size, generator=random, dtype=torch.float64)
    weight = torch.randn(fan_out * groups, fan_in, *taps, generator=random, dtype=torch.float64)
    return x, weight, geometry


def relative_errors(example, dtype):
    """Norm of the error over norm of the output, for each algorithm."""
    x, weight, geometry = example
    stride, pads, dilation, groups = geometry

    def run(x, weight, algorithm):
        return conv_nd(x.ndim - 2, x, weight, None, stride, pads, dilation, groups, algorithm).double()

    wanted = run(x, weight, "direct")
    size = wanted.norm()
    algorithms = ("direct", "fft", "dft", "auto")
    return {name: ((run(x.to(dtype), weight.to(dtype), name) - wanted).norm() / size).item() for name in algorithms}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@given(example=convolutions())
def test_no_algorithm_is_worse_than_twice_direct(dtype, example):
    errors = relative_errors(example, dtype)
    direct = errors.pop("direct")
    if direct == direct:  # not 0 / 0
        assert max(errors.values()) <= max(2 * direct, FLOOR.get(dtype, 0.0)), (errors, direct)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pads", [((9, 0), (10, 0)), ((0, 9), (0, 10)), ((4, 5), (5, 5)), ((30, 4), (40, 3))])
def test_padded_out_images(dtype, pads):
    x, weight = torch.randn(1, 9, 18, 4, dtype=torch.float64), torch.randn(6, 3, 10, 3, dtype=torch.float64)
    errors = relative_errors((x, weight, Geometry((1, 4), pads, (1, 5), 3)), dtype)
    assert errors["dft"] <= 2 * errors["direct"]


def test_error_spread():
    """One for a kernel that meets inputs at all outputs, more if padding keeps most taps from them."""
    inside = error_spread((32,), (((32, 0, 1), (9, 0, 1), (24, 0, 1)),))
    assert inside == pytest.approx(1.0)
    pairs = sum(0 <= 4 * n + j - 40 < 4 for n in range(20) for j in range(60))
    spread = error_spread((100,), (((4, 0, 1), (60, -40, 1), (20, 0, 4)),))
    assert spread == pytest.approx(4 * 60 * 20 / (100 * pairs))
    assert error_spread((8,), (((2, 0, 1), (2, 5, 1), (1, 0, 1)),)) == float("inf")


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("algorithm", ["direct", "fft", "auto"])
def test_gradient_of_bias_over_long_padded_sequences(groups, algorithm):
    x, weight = torch.randn(1, 2, 4978), torch.randn(4, 2 // groups, 5)
    bias = torch.zeros(4, requires_grad=True)
    y = conv_nd(1, x, weight, bias, 1, ((1868, 3069),), 3, groups, algorithm)
    grad = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, bias, grad)
    error = found.double() - grad.double().sum((0, 2))
    assert error.abs().max() <= 5e-7 * grad.norm()


def test_bias_is_part_of_direct_convolutions_in_every_mode():
    x, weight, bias = torch.randn(2, 2, 9), torch.randn(3, 2, 3), torch.randn(3)
    plain = torch.nn.functional.conv1d(x, weight, bias, padding=1)
    for needs_gradient in (False, True):
        y = conv_nd(1, x, weight, bias.clone().requires_grad_(needs_gradient), 1, "same", 1, 1, "direct")
        torch.testing.assert_close(y.detach(), plain)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv_nd(1, x, weight, bias.clone().requires_grad_(), 1, "same", 1, 1, "direct")
    assert y.dtype == torch.bfloat16
