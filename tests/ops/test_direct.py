"""Direct convolutions on a CPU: which padding is left to torch, and what is computed in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flexconv import ops
from flexconv.ops import _direct


@pytest.mark.parametrize(("dims", "taps"), [(1, 41), (2, 17), (3, 15)])
def test_depthwise_convolutions_with_much_padding_are_padded_before(monkeypatch, dims, taps):
    size = (20,) * dims
    x, weight = torch.randn(2, 3, *size), torch.randn(3, 1, *(taps,) * dims)
    given = []
    conv = getattr(F, f"conv{dims}d")
    monkeypatch.setitem(_direct._CONV, dims, lambda *args: given.append(args[4]) or conv(*args))
    function = getattr(ops, f"conv{dims}d")
    y = function(x, weight, groups=3, algorithm="direct")
    assert given == [(0,) * dims]
    torch.testing.assert_close(y, conv(x, weight, padding=taps // 2, groups=3), atol=1e-4, rtol=1e-4)
    small = weight[(..., *(slice(13),) * dims)]
    function(x, small, groups=3, algorithm="direct")
    if dims < 3:  # the first of three axes is never padded by torch
        assert given[1] == (6,) * dims


@pytest.mark.parametrize("autocast", [False, True])
def test_long_kernels_in_bfloat16_are_computed_in_float32(monkeypatch, autocast):
    x, weight, bias = torch.randn(2, 3, 600), torch.randn(4, 3, 513), torch.randn(4)
    if not autocast:
        x, weight, bias = x.bfloat16(), weight.bfloat16(), bias.bfloat16()
    dtypes = []
    monkeypatch.setitem(_direct._CONV, 1, lambda *args: dtypes.append(args[0].dtype) or F.conv1d(*args))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = ops.conv1d(x, weight, bias, padding="same", algorithm="direct")
        ops.conv1d(x, weight[..., :512], bias, padding="causal", algorithm="direct")
    assert y.dtype == torch.bfloat16
    assert dtypes == [torch.float32, x.dtype]
    expected = F.conv1d(x.float(), weight.float(), bias.float(), padding=256)
    torch.testing.assert_close(y.float(), expected, atol=0, rtol=2**-8)


def test_long_kernels_in_float64_are_left_alone_by_autocast():
    x, weight = torch.randn(1, 1, 600, dtype=torch.float64), torch.randn(1, 1, 513, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        y = ops.conv1d(x, weight, padding="same", algorithm="direct")
    torch.testing.assert_close(y, F.conv1d(x, weight, padding=256))
