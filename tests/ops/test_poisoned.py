"""Direct convolutions on a CPU never depend on memory that nobody wrote: gradients agree with those of the FFT."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexconv import ops
from flexconv.nn import FlexConv3d
from flexconv.ops._conv import conv_nd


@pytest.fixture(autouse=True)
def _two_threads():
    """The library that computes direct convolutions divides its work differently with several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def poison():
    """Free memory that is full of large numbers, so that the next tensors get it."""
    for entries in (10, 100, 1000, 10_000, 100_000):
        blocks = [torch.full((entries,), 1e30) for _ in range(8)]
        del blocks


def gradients(x, weight, algorithm, **geometry):
    """Output and gradients of the sum of squares of a convolution."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    poison()
    y = conv_nd(x.ndim - 2, x, weight, None, algorithm=algorithm, **geometry)
    poison()
    return y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight))


@st.composite
def convolutions(draw):
    """A convolution of a few channels, often with windows that reach far into the padding."""
    dims = draw(st.sampled_from([1, 2, 3, 3, 3]))

    def per_axis(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * dims))

    size, taps, dilation = per_axis(1, 8), per_axis(1, 8), per_axis(1, 2)
    short = [max(0, (k - 1) * d + 1 - n) for n, k, d in zip(size, taps, dilation, strict=True)]
    padding = tuple((a + s, b) for a, b, s in zip(per_axis(0, 6), per_axis(0, 6), short, strict=True))
    batch, fan_in, fan_out, groups = (draw(st.integers(1, 3)) for _ in range(4))
    x = torch.randn(batch + 1, fan_in * groups, *size)
    weight = torch.randn(fan_out * groups, fan_in, *taps)
    geometry = {"stride": per_axis(1, 3), "padding": padding, "dilation": dilation, "groups": groups}
    return x, weight, geometry


@given(convolutions())
def test_direct_equals_fft_in_poisoned_memory(example):
    x, weight, geometry = example
    direct = gradients(x, weight, "direct", **geometry)
    for ours, wanted in zip(direct, gradients(x.double(), weight.double(), "fft", **geometry), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5 * (1 + wanted.abs().max().item()))


@pytest.mark.parametrize("stride", [(2, 1, 1), (3, 2, 1)])
@pytest.mark.parametrize(("channels", "taps"), [(1, (7, 3, 5)), (2, (7, 1, 1)), (3, (9, 3, 5))])
def test_gradients_of_strided_3d_kernels(channels, taps, stride):
    x, weight = torch.randn(4, channels, 6, 5, 4), torch.randn(2, channels, *taps)
    geometry = {"stride": stride, "padding": "same", "dilation": 1, "groups": 1}
    direct = gradients(x, weight, "direct", **geometry)
    for ours, wanted in zip(direct, gradients(x.double(), weight.double(), "fft", **geometry), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-4)


def test_strided_3d_layer_learns_from_what_it_saw():
    layer = FlexConv3d(1, 2, (7, 3, 5), stride=(2, 1, 1), mask=None, algorithm="direct")
    layer.generator.requires_grad_()
    x = torch.randn(2, 1, 6, 5, 4)

    def gradient():
        poison()
        loss = layer(x).square().sum()
        poison()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(layer.generator.parameters()))])

    found = gradient()
    layer.algorithm = "fft"
    torch.testing.assert_close(found, gradient(), rtol=1e-3, atol=1e-3 * found.abs().max().item())


def test_views_of_kernels_in_other_memory_formats():
    x, weight = torch.randn(2, 1, 5, 4, 2), torch.randn(1, 1, 5, 1, 3)
    geometry = {"stride": (2, 1, 3), "padding": (2, (12, 2), 4), "dilation": (1, 5, 3)}
    wanted = ops.conv3d(x, weight, **geometry, algorithm="reference")
    for memory_format in (torch.contiguous_format, torch.channels_last_3d):
        changed = weight.to(memory_format=memory_format)
        torch.testing.assert_close(ops.conv3d(x, changed, torch.zeros(1), **geometry), wanted)  # only one tap is used


@given(convolutions(), st.booleans(), st.booleans(), st.lists(st.integers(1, 2), min_size=6, max_size=6))
def test_channels_last_and_views(example, last_x, last_weight, steps):
    x, weight, geometry = example
    dims = x.ndim - 2
    memory_format = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}[dims]
    wanted = gradients(x, weight, "fft", **geometry)

    def with_gaps(tensor, steps, last):
        """The same values in another memory format, with gaps between them."""
        wide = tensor
        for axis, step in enumerate(steps[:dims]):
            wide = wide.repeat_interleave(step, 2 + axis)
        wide = wide.to(memory_format=memory_format) if last else wide
        return wide[(..., *(slice(None, None, step) for step in steps[:dims]))]

    views = with_gaps(x, steps, last_x), with_gaps(weight, steps[3:], last_weight)
    for ours, expected in zip(gradients(*views, "direct", **geometry), wanted, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4 * (1 + expected.abs().max().item()))


@pytest.mark.parametrize(
    ("size", "taps", "geometry"),
    [
        ((2, 2), (2, 2), {"stride": (1, 3), "padding": (4, 4), "dilation": (2, 3)}),
        ((6, 1), (1, 1), {"stride": (2, 3), "padding": (3, 2), "dilation": 1}),
        ((3, 4, 1), (1, 1, 1), {"stride": (1, 2, 3), "padding": (0, 4, 2), "dilation": 1}),
        ((1,), (2,), {"stride": 3, "padding": 5, "dilation": 3}),
    ],
    ids=str,
)
def test_windows_that_meet_only_padding(size, taps, geometry):
    """oneDNN crashes in these."""
    memory_format = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}[len(size)]
    x = torch.randn(2, 9, *size).to(memory_format=memory_format)
    weight, bias = torch.randn(12, 3, *taps), torch.randn(12)
    with torch.no_grad():
        y = conv_nd(len(size), x, weight, bias, groups=3, algorithm="direct", **geometry)
    assert torch.equal(y, bias.view(-1, *[1] * len(size)).expand_as(y))
    y, *grads = gradients(x, weight, "direct", groups=3, **geometry)
    assert not any(tensor.any() for tensor in (y, *grads))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("size", "taps", "geometry"),
    [
        ((3, 4), (4, 4), {"stride": (1, 3), "padding": (1, 0)}),
        ((9, 6), (6, 5), {"stride": (1, 4), "padding": (1, 0)}),
        ((4, 3), (4, 4), {"stride": (2, 4), "padding": (2, 3)}),
        ((2, 5, 2), (1, 6, 5), {"stride": (1, 3, 3), "padding": (0, 1, 4)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_with_large_strides(channels, size, taps, geometry, dtype):
    """oneDNN reads beyond the input in these."""
    memory_format = {2: torch.channels_last, 3: torch.channels_last_3d}[len(size)]
    x, weight = torch.randn(2, channels, *size).to(dtype), torch.randn(3, channels, *taps).to(dtype)
    geometry = {"dilation": 1, "groups": 1, **geometry}
    last = (tensor.to(memory_format=memory_format) for tensor in (x, weight))
    for ours, wanted in zip(
        gradients(*last, "direct", **geometry), gradients(x.double(), weight.double(), "fft", **geometry), strict=True
    ):
        tolerance = 1e-4 if dtype == torch.float32 else 0.1
        torch.testing.assert_close(ours.double(), wanted, rtol=0, atol=tolerance * (1 + wanted.abs().max().item()))
