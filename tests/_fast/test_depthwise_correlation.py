"""The fast version of depthwise FFT convolutions on a CPU."""

from __future__ import annotations

import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d
from flexconv._fast import depthwise_correlation
from flexconv._registry import plain_version
from flexconv.bench.memory import LiveBytes
from flexconv.ops import conv1d
from tests.conftest import relative_error

#: size of x, taps, padding, circular lengths
CASES = {
    "causal": ((9,), (4,), ((3, 0),), (12,)),
    "centered": ((5, 8), (3, 5), ((1, 1), (2, 2)), (6, 10)),
    "odd lengths": ((6, 7), (3, 4), ((0, 0), (0, 0)), (7, 9)),
    "volume": ((3, 4, 5), (2, 3, 3), ((1, 0), (1, 1), (1, 1)), (4, 6, 6)),
    "one sample": ((1, 4), (1, 3), ((0, 0), (1, 1)), (1, 6)),
}


def tensors(case, dtype, batch=5):
    size, taps, *_ = CASES[case]
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((batch, 3, *size), (3, 1, *taps))]


def both(case, given):
    size, taps, pads, lengths = CASES[case]
    outputs = tuple(n + sum(pair) - k + 1 for n, pair, k in zip(size, pads, taps, strict=True))
    arguments = (*given, 3, pads, lengths, outputs)
    return depthwise_correlation.tensor_conv(*arguments), plain_version("ops.tensor_conv")(*arguments)


@pytest.mark.parametrize("part", [2, 5])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_values_and_gradients_equal_recorded_operations(monkeypatch, part, case, dtype, tolerance):
    monkeypatch.setattr(depthwise_correlation, "_part_size", lambda *_: part)
    given = tensors(case, dtype)
    fast, plain = both(case, given)
    assert relative_error(fast, plain) < tolerance
    cotangent = torch.randn_like(plain)
    found, expected = (torch.autograd.grad(y, given, cotangent) for y in (fast, plain))
    assert max(map(relative_error, found, expected)) < tolerance


def test_second_derivatives_are_right():
    given = tensors("causal", torch.float64)
    assert torch.autograd.gradgradcheck(lambda *tensors: both("causal", tensors)[0], given)


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_computes_only_needed_gradients(needed):
    given = [t.detach().requires_grad_(n) for t, n in zip(tensors("centered", torch.float64), needed, strict=True)]
    fast, plain = both("centered", given)
    wanted = [t for t in given if t.requires_grad]
    found, expected = (torch.autograd.grad(y.square().sum(), wanted) for y in (fast, plain))
    assert relative_error(found[0], expected[0]) < 1e-12


def test_parts_fit_into_caches():
    assert depthwise_correlation._part_size(64, 140, (2048,)) == 1
    assert depthwise_correlation._part_size(64, 3, (64,)) == 64
    assert depthwise_correlation._part_size(64, 64, (360,)) == 11


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_layers_use_it_only_if_no_channels_are_mixed(monkeypatch, groups):
    layer, x = FlexConv2d(4, 4, 9, groups=groups, algorithm="fft"), torch.randn(2, 4, 10, 10)
    calls = []
    original = depthwise_correlation._DepthwiseCorrelation.apply
    monkeypatch.setattr(
        depthwise_correlation._DepthwiseCorrelation, "apply", lambda *a: calls.append(1) or original(*a)
    )
    y = layer(x)
    assert len(calls) == (groups == 4)
    assert relative_error(y, torch.cat([layer(each) for each in x.split(1)])) < 1e-5


def test_leaves_transforms_and_several_outputs_per_channel_to_plain_version():
    layer, x = FlexConv1d(3, 6, 9, groups=3, algorithm="fft"), torch.randn(2, 3, 20)
    direct = conv1d(x, layer.window_kernel(), layer.bias, groups=3, algorithm="direct")
    assert relative_error(layer(x), direct) < 1e-4
    layer = FlexConv1d(3, 3, 9, groups=3, algorithm="fft")
    parameters = dict(layer.named_parameters())
    mapped = torch.vmap(lambda each: torch.func.functional_call(layer, parameters, (each.unsqueeze(0),)).squeeze(0))(x)
    assert relative_error(mapped, layer(x)) < 1e-5
    tangent = torch.func.jvp(lambda x: conv1d(x, layer.kernel(), groups=3, algorithm="fft"), (x,), (x,))[1]
    assert relative_error(tangent, conv1d(x, layer.kernel(), groups=3, algorithm="direct")) < 1e-5


def test_spectra_are_not_kept(monkeypatch):
    layer, x = FlexConv1d(8, 8, 65, groups=8, algorithm="fft"), torch.randn(64, 8, 100, requires_grad=True)
    size = x.numel() * x.element_size()
    kept = []
    for largest in (2**14, 2**30):
        monkeypatch.setattr(depthwise_correlation, "PART_BYTES", largest)
        with LiveBytes() as live:
            y = layer(x)
            kept.append(live.now - size)  # without the output, which is as large as the input
        del y
    assert kept[0] < size / 4 < size < kept[1]


def test_autocast_in_the_backward_pass_changes_nothing():
    given = tensors("causal", torch.float32)
    y, _ = both("causal", given)
    expected = torch.autograd.grad(y.square().sum(), given, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(y.square().sum(), given)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-6
