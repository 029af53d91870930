"""The fast version of FFT convolutions with factored kernels on a CPU."""

from __future__ import annotations

import pytest
import torch

from flexconv import FlexConv2d, FlexConv3d
from flexconv._fast import correlation
from flexconv._registry import plain_version
from flexconv.bench.memory import LiveBytes
from flexconv.ops import conv1d
from tests.conftest import relative_error

#: groups, channels in and out, size of x, taps, padding, circular lengths
CASES = {
    "causal": (1, 2, 3, (9,), (4,), ((3, 0),), (12,)),
    "centered": (1, 4, 6, (5, 8), (3, 5), ((1, 1), (2, 2)), (6, 10)),
    "groups": (2, 4, 6, (5, 8), (3, 3), ((1, 1), (1, 1)), (6, 9)),
    "valid": (1, 2, 2, (6, 7), (3, 4), ((0, 0), (0, 0)), (6, 8)),
    "volume": (3, 6, 3, (3, 4, 5), (2, 3, 3), ((1, 0), (1, 1), (1, 1)), (4, 6, 6)),
    "one sample": (1, 2, 2, (1, 4), (1, 3), ((0, 0), (1, 1)), (1, 6)),
}


def tensors(case, dtype):
    groups, channels, out, size, taps, *_ = CASES[case]
    torch.manual_seed(0)
    shapes = (2, channels, *size), (5, *taps), (out, channels // groups, 5)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def both(case, given):
    groups, _, _, size, taps, pads, lengths = CASES[case]
    outputs = tuple(n + sum(pair) - k + 1 for n, pair, k in zip(size, pads, taps, strict=True))
    arguments = (*given, groups, pads, lengths, outputs)
    return correlation.factored_conv(*arguments), plain_version("ops.factored_conv")(*arguments)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_values_and_gradients_equal_recorded_operations(case, dtype, tolerance):
    given = tensors(case, dtype)
    fast, plain = both(case, given)
    assert relative_error(fast, plain) < tolerance
    cotangent = torch.randn_like(plain)
    found, expected = (torch.autograd.grad(y, given, cotangent) for y in (fast, plain))
    assert max(map(relative_error, found, expected)) < tolerance


@pytest.mark.parametrize("batch", [5, 6])
@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_batch_equal_recorded_operations(monkeypatch, case, batch):
    monkeypatch.setattr(correlation, "_part_size", lambda *_: 3)
    _, *others = tensors(case, torch.float64)
    x = torch.randn(batch, *tensors(case, torch.float64)[0].shape[1:], dtype=torch.float64, requires_grad=True)
    given = [x, *others]
    fast, plain = both(case, given)
    assert relative_error(fast, plain) < 1e-13
    cotangent = torch.randn_like(plain)
    found, expected = (torch.autograd.grad(y, given, cotangent) for y in (fast, plain))
    assert max(map(relative_error, found, expected)) < 1e-13


def test_large_batches_are_divided_into_parts_of_about_the_same_size():
    def size(batch, channels=24, out=24, length=48):
        return correlation._part_size(batch, channels, (length, length), torch.empty(2, 1, out, channels))

    assert [size(batch) for batch in (1, 16, 32)] == [1, 16, 32]
    assert size(64) == 16
    assert size(70) == 18  # 18, 18, 18 and 16
    assert size(64, channels=1, length=8) == 64  # small enough for the caches
    assert size(64, channels=96, out=96) == 64  # the kernel has more numbers than the batch
    assert size(256, channels=96, out=96) == 32


def test_spectra_of_a_large_batch_are_not_kept(monkeypatch):
    layer, x = FlexConv2d(8, 8, 17, algorithm="fft"), torch.randn(128, 8, 16, 16, requires_grad=True)
    size = x.numel() * x.element_size()
    kept = []
    for largest in (2**18, 2**30):
        monkeypatch.setattr(correlation, "PART_BYTES", largest)
        with LiveBytes() as live:
            y = layer(x)
            kept.append(live.now - size)  # without the output, which is as large as the input
        del y
    assert kept[0] < size / 2 < 1.5 * size < kept[1]


def test_second_derivatives_are_right():
    given = tensors("groups", torch.float64)
    assert torch.autograd.gradgradcheck(lambda *tensors: both("groups", tensors)[0], given)


@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)])
def test_computes_only_needed_gradients(needed):
    given = [t.detach().requires_grad_(n) for t, n in zip(tensors("centered", torch.float64), needed, strict=True)]
    fast, plain = both("centered", given)
    wanted = [t for t in given if t.requires_grad]
    found, expected = (torch.autograd.grad(y.square().sum(), wanted) for y in (fast, plain))
    assert relative_error(found[0], expected[0]) < 1e-12


def test_layer_uses_it_and_leaves_transforms_to_plain_version(monkeypatch):
    layer, x = FlexConv2d(3, 4, 9, algorithm="fft"), torch.randn(2, 3, 10, 10)
    calls = []
    original = correlation._Correlation.apply
    monkeypatch.setattr(correlation._Correlation, "apply", lambda *a: calls.append(1) or original(*a))
    y = layer(x)
    assert calls == [1]
    parameters = dict(layer.named_parameters())
    mapped = torch.vmap(lambda each: torch.func.functional_call(layer, parameters, (each.unsqueeze(0),)).squeeze(0))(x)
    assert calls == [1]
    assert relative_error(mapped, y) < 1e-5


def test_keeps_spectra_of_input_and_kernel_only():
    layer, x = FlexConv2d(8, 8, 17, algorithm="fft"), torch.randn(4, 8, 16, 16, requires_grad=True)
    parameters = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters(), *layer.buffers())}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    frequencies = 24 * 13
    spectra = 8 * frequencies * (4 * 8 + 8 * 8)
    assert spectra < sum(kept.values()) < 1.8 * spectra  # the rest are spectra of 33 basis functions, and their mix


def test_backward_pass_inside_of_autocast():
    layer, x = FlexConv2d(3, 4, 9, algorithm="fft"), torch.randn(2, 3, 10, 10, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x).float().sum()
        (inside,) = torch.autograd.grad(y, x, retain_graph=True)
    assert torch.equal(inside, torch.autograd.grad(y, x)[0])


def test_convolution_that_skips_all_samples():
    """Found by tests/fuzz/test_layers.py: the taps that are kept meet only padding."""
    layer = FlexConv3d(2, 1, (1, 2, 1), padding="causal", mask=None, dilation=(1, 2, 1), algorithm="fft").double()
    x = torch.randn(1, 2, 2, 1, 2, dtype=torch.float64)
    assert torch.allclose(
        layer(x),
        torch.nn.functional.conv3d(
            torch.nn.functional.pad(x, (0, 0, 2, 0)), layer.kernel(), layer.bias, dilation=(1, 2, 1)
        ),
    )
    y = conv1d(torch.ones(1, 1, 2), torch.ones(1, 1, 3), padding=[(-2, 5)], algorithm="fft")
    assert torch.equal(y, torch.zeros(1, 1, 3))
