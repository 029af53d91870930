"""1×1 convolutions: those of torch, but inputs and weights of any scale work in float16."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flexconv.errors import PrecisionError
from flexconv.nn import POINTWISE_CONVS
from tests.conftest import mentions, relative_error

PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
ROUNDING = 1e-3  # of float16

each_dims = pytest.mark.parametrize("dims", [1, 2, 3])


def make(dims, scale=1.0, **options):
    torch.manual_seed(0)
    conv = POINTWISE_CONVS[dims](3, 5, 1, **options)
    with torch.no_grad():
        for p in conv.parameters():
            p.mul_(scale)
    return conv, torch.randn(2, 3, *[4] * dims)


@each_dims
def test_computes_what_torch_does(dims):
    conv, x = make(dims)
    plain = PLAIN[dims](3, 5, 1)
    plain.load_state_dict(conv.state_dict())
    assert torch.equal(conv(x), plain(x))
    assert torch.equal(conv.bfloat16()(x.bfloat16()), plain.bfloat16()(x.bfloat16()))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(conv(x), plain(x))
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(conv.double()(x.double()), plain.double()(x.double()))


@each_dims
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1e8, 1.0, 1e-8])
def test_any_scale_works_under_float16_autocast(dims, bias, scale):
    conv, x = make(dims, scale, bias=bias)
    for given in (x, x.half(), x[0], 1e9 * x):  # also without a batch
        truth = conv(given.float())
        with torch.autocast("cpu", torch.float16):
            result = conv(given)
        assert result.dtype == torch.float32
        assert relative_error(result, truth) < ROUNDING
    result.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in conv.parameters())


@each_dims
def test_converted_to_float16(dims):
    conv, x = make(dims)
    low = copy.deepcopy(conv).half()
    result = low(x.half())
    assert result.dtype == torch.float16
    assert relative_error(result.float(), conv(x)) < ROUNDING
    with pytest.raises(RuntimeError):  # of torch: the dtypes differ
        conv(x.half())


@each_dims
def test_empty_inputs(dims):
    conv, x = make(dims)
    expected = conv(x[:0])
    assert conv.half()(x[:0].half()).shape == expected.shape
    with torch.autocast("cpu", torch.float16):
        result = conv(x[:0])
        with pytest.raises(RuntimeError):  # of torch: it needs a position
            conv(x[..., :0])
    assert result.shape == expected.shape
    assert result.dtype == torch.float32


def test_numbers_beyond_float16_raise():
    conv, x = make(2)
    nn.init.constant_(conv.weight, 3.0)
    with pytest.raises(PrecisionError, match=mentions("PointwiseConv2d", "float16", "65504")):
        copy.deepcopy(conv).half()(torch.full_like(x, 3e4).half())
    nn.init.constant_(conv.weight, 1e5)
    with pytest.raises(PrecisionError, match=mentions("weight", "PointwiseConv2d", "float16")):
        conv.half()
    assert conv.weight.dtype == torch.float32
