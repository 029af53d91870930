"""Random convolutions by every algorithm, with gradients, in poisoned memory, equal those of torch in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st

from flexconv.ops import conv_nd
from flexconv.ops._geometry import Geometry, output_sizes
from tests.fuzz.helpers import CONV, EXAMPLES, assert_near, fuzz, pad, poison

pytestmark = pytest.mark.timeout(max(300, EXAMPLES))

ALGORITHMS = ("direct", "fft", "dft", "auto")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

#: errors relative to the largest value; gradients in half precision are sums over outputs that were rounded
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 2e-2}

FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


@dataclass(frozen=True)
class Case:
    """A convolution. Tensors are drawn with `seed`."""

    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    channels: tuple[int, int, int]  # batch, input channels per group, output channels per group
    groups: int
    dtype: torch.dtype
    bias: bool
    channels_last: bool
    steps: int  # x is a view with gaps if this is larger than 1
    seed: int

    def tensors(self):
        chance = torch.Generator().manual_seed(self.seed)
        batch, fan_in, fan_out = self.channels
        wide = (*self.size[:-1], self.size[-1] * self.steps)
        x = torch.randn(batch, fan_in * self.groups, *wide, generator=chance).to(self.dtype)
        weight = torch.randn(fan_out * self.groups, fan_in, *self.taps, generator=chance).to(self.dtype)
        bias = torch.randn(fan_out * self.groups, generator=chance).to(self.dtype) if self.bias else None
        if self.channels_last and len(self.size) in FORMATS:
            x, weight = (t.to(memory_format=FORMATS[len(self.size)]) for t in (x, weight))
        return x[..., :: self.steps], weight, bias

    def run(self, algorithm, needs_gradients=True):
        """The output and its gradients. Memory is poisoned before each pass."""
        x, weight, bias = self.tensors()
        inputs = [t.requires_grad_(needs_gradients) for t in (x.detach(), weight, bias) if t is not None]
        poison()
        if algorithm is None:
            inputs = [t.detach().double().requires_grad_() for t in inputs]
            geometry = self.stride, 0, self.dilation, self.groups
            y = CONV[len(self.size)](pad(inputs[0], self.pads), *inputs[1:], *([] if self.bias else [None]), *geometry)
        else:
            settings = self.stride, self.pads, self.dilation, self.groups, algorithm
            y = conv_nd(len(self.size), *inputs, *([] if self.bias else [None]), *settings)
        if not needs_gradients:
            return [y]
        chance = torch.Generator().manual_seed(self.seed + 1)
        grad = torch.randn(y.shape, generator=chance).to(self.dtype).to(y.dtype)
        poison()
        return [y, *torch.autograd.grad(y, inputs, grad)]


@st.composite
def cases(draw):
    """A convolution of a few channels, often with windows that reach far into the padding, or with few taps."""
    dims = draw(st.integers(1, 3))
    largest = {1: 40, 2: 9, 3: 5}[dims]
    positive = st.integers(1, largest)

    def per_axis(each):
        return draw(st.tuples(*[each] * dims))

    size, taps = per_axis(positive), per_axis(positive)
    stride, dilation = per_axis(st.integers(1, 3)), per_axis(st.integers(1, 3))
    room = [max(0, (k - 1) * d + 1 - n) for n, k, d in zip(size, taps, dilation, strict=True)]
    extra = per_axis(st.tuples(st.integers(-3, 12), st.integers(-3, 12)))
    pads = tuple((a + r - r // 2, b + r // 2) for (a, b), r in zip(extra, room, strict=True))
    groups = draw(st.integers(1, 3))
    sizes = output_sizes(size, taps, Geometry(stride, pads, dilation, groups))
    if min(sizes) < 1:
        pads = tuple((max(a, 0), max(b, 0)) for a, b in pads)
        pads = tuple((a + r, b) for (a, b), r in zip(pads, room, strict=True))
    return Case(
        size,
        taps,
        stride,
        dilation,
        pads,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))),
        groups,
        draw(st.sampled_from(DTYPES)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([1, 1, 2])),
        draw(st.integers(0, 2**31 - 1)),
    )


@fuzz(1000, case=cases(), algorithm=st.sampled_from(ALGORITHMS))
def test_convolution(case, algorithm):
    wanted = case.run(None)
    names = ("the output", "the gradient of x", "the gradient of the kernel", "the gradient of the bias")
    for name, ours, expected in zip(names, case.run(algorithm), wanted, strict=False):
        assert_near(ours.detach(), expected.detach(), TOLERANCE[case.dtype], name)
    assert_near(case.run(algorithm, False)[0], wanted[0].detach(), TOLERANCE[case.dtype], "the output in evaluation")
