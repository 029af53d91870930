"""Padding, output sizes, taps that can contribute, and invalid arguments."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexconv.ops import conv1d, conv2d, conv3d
from flexconv.ops._direct import direct_conv
from flexconv.ops._fft import fft_conv
from flexconv.ops._geometry import Geometry, drop_unreachable_taps, resolve_padding
from flexconv.testing import assert_causal, assert_translation_equivariant

from .test_conv import CONV, both, error, problems


@both
@pytest.mark.parametrize("taps", [1, 4, 40])
def test_causal_convolution_has_no_gradient_from_the_future(algorithm, taps):
    weight = torch.randn(2, 2, taps, dtype=torch.float64)
    x = torch.randn(1, 2, 13, dtype=torch.float64)
    assert_causal(lambda x: conv1d(x, weight, padding="causal", algorithm=algorithm), x)


@both
def test_causal_output_does_not_depend_on_future_samples(algorithm):
    x, weight = torch.randn(2, 3, 30, dtype=torch.float64), torch.randn(3, 1, 17, dtype=torch.float64)
    changed = torch.cat((x[..., :11], torch.randn_like(x[..., 11:])), -1)
    before, after = (conv1d(each, weight, padding="causal", groups=3, algorithm=algorithm) for each in (x, changed))
    torch.testing.assert_close(before[..., :11], after[..., :11], rtol=0, atol=1e-13)
    assert not torch.isclose(before[..., 11:], after[..., 11:]).any()


@both
@pytest.mark.parametrize(("dims", "shift"), [(1, (5,)), (2, (3, -4)), (3, (-1, 2, 1))])
def test_shifting_the_input_shifts_the_output(algorithm, dims, shift):
    weight = torch.randn(2, 2, *(5, 3, 3)[:dims])
    x = torch.randn(2, 2, *(24, 21, 19)[:dims])
    assert_translation_equivariant(lambda x: CONV[dims](x, weight, algorithm=algorithm), x, shift, margin=3, rtol=1e-5)


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("same", ((4, 4), (1, 1))),
        ("valid", ((0, 0), (0, 0))),
        ("causal", ((8, 0), (2, 0))),
        (3, ((3, 3), (3, 3))),
        ((1, -2), ((1, 1), (-2, -2))),
        (["causal", "same"], ((8, 0), (1, 1))),
        (((5, -1), "valid"), ((5, -1), (0, 0))),
    ],
)
def test_resolve_padding_returns_a_pair_per_axis(padding, expected):
    assert resolve_padding(padding, (5, 3), (2, 1)) == expected


@both
@given(length=st.integers(1, 40), stride=st.integers(1, 9), half=st.integers(0, 30), dilation=st.integers(1, 3))
def test_same_padding_with_stride_rounds_output_length_up(algorithm, length, stride, half, dilation):
    x, weight = torch.ones(1, 1, length), torch.ones(1, 1, 2 * half + 1)
    y = conv1d(x, weight, stride=stride, dilation=dilation, algorithm=algorithm)
    assert y.shape == (1, 1, math.ceil(length / stride))


@both
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batch", [0, 1])
def test_empty_batch_and_batch_of_one(algorithm, dims, batch):
    x = torch.randn(batch, 2, *(5,) * dims, requires_grad=True)
    weight = torch.randn(4, 2, *(3,) * dims, requires_grad=True)
    y = CONV[dims](x, weight, torch.randn(4), stride=2, algorithm=algorithm)
    y.sum().backward()
    assert y.shape == (batch, 4, *(3,) * dims)
    assert x.grad.shape == x.shape
    assert bool(weight.grad.any()) == bool(batch)


@both
@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
@pytest.mark.parametrize("length", [1, 6])
def test_one_tap_kernel_only_mixes_channels(algorithm, padding, length):
    x, weight, bias = torch.randn(2, 3, length), torch.randn(4, 3, 1), torch.randn(4)
    y = conv1d(x, weight, bias, padding=padding, algorithm=algorithm)
    torch.testing.assert_close(y, torch.einsum("oi,bil->bol", weight[..., 0], x) + bias[:, None])


@both
@pytest.mark.parametrize(("padding", "tap"), [("same", 50), ("causal", 100)])
def test_one_sample_input_uses_one_tap_of_a_long_kernel(algorithm, padding, tap):
    x, weight = torch.randn(2, 3, 1), torch.randn(4, 3, 101)
    y = conv1d(x, weight, padding=padding, algorithm=algorithm)
    torch.testing.assert_close(y, torch.einsum("oi,bil->bol", weight[..., tap], x))


@both
@pytest.mark.parametrize("bias", [None, torch.tensor([1.0, -2.0])])
@pytest.mark.parametrize("pads", [(-20, 20), (20, -20), (-7, 40), (30, -5)])
def test_outputs_outside_the_input_equal_the_bias(algorithm, pads, bias):
    x = torch.randn(3, 2, 5)
    y = conv1d(x, torch.randn(2, 2, 3), bias, padding=(pads,), algorithm=algorithm)
    expected = torch.zeros(2) if bias is None else bias
    torch.testing.assert_close(y, expected[:, None].expand(3, 2, 5 + sum(pads) - 2), rtol=0, atol=0)


@both
def test_shapes_on_the_meta_device(algorithm):
    x, weight = torch.empty(2, 3, 9, device="meta"), torch.empty(4, 3, 5, device="meta")
    assert conv1d(x, weight, stride=2, algorithm=algorithm).shape == (2, 4, 5)


@pytest.mark.parametrize("dims", [1, 2, 3])
@given(data=st.data())
def test_dropping_unreachable_taps_keeps_the_output(dims, data):
    problem = data.draw(problems(dims))
    x, weight, bias = problem.tensors()
    whole = Geometry(problem.stride, problem.pads, problem.dilation, problem.groups)
    fewer, geometry = drop_unreachable_taps(x, weight, whole)
    for conv in (direct_conv, fft_conv):
        assert error(conv(x, fewer, bias, geometry), conv(x, weight, bias, whole)) < 1e-10


@pytest.mark.parametrize(
    ("length", "taps", "pads", "kept", "pads_left"),
    [
        (8, 33, (16, 16), 15, (7, 7)),
        (8, 33, (32, 0), 8, (7, 0)),
        (40, 33, (16, 16), 33, (16, 16)),
        (17, 33, (16, 16), 33, (16, 16)),
        (16, 33, (16, 16), 31, (15, 15)),
        (5, 3, (-20, 20), 3, (-20, 20)),
    ],
)
def test_keeps_only_taps_that_reach_the_input(length, taps, pads, kept, pads_left):
    geometry = Geometry((1,), (pads,), (1,), 1)
    weight, geometry = drop_unreachable_taps(torch.empty(1, 1, length), torch.empty(1, 1, taps), geometry)
    assert (weight.shape[2], geometry.pads) == (kept, (pads_left,))


X, WEIGHT = torch.zeros(2, 4, 9), torch.zeros(6, 2, 3)


@pytest.mark.parametrize(
    ("error_class", "message", "arguments"),
    [
        (ValueError, r"3 dimensions.*\(4, 9\)", {"x": X[0]}),
        (ValueError, r"3 dimensions.*\(6, 2, 3, 1\)", {"weight": WEIGHT[..., None]}),
        (ValueError, r"x has 3 channels.*\(6, 2, 3\).*groups=2.* 4", {"x": X[:, :3]}),
        (ValueError, r"x has 4 channels.*\(6, 2, 3\).*groups=1.* 2", {"groups": 1}),
        (ValueError, r"6 output channels.*divisible by groups=4", {"groups": 4}),
        (ValueError, r"groups must be at least 1; got 0", {"groups": 0}),
        (TypeError, r"groups must be an int; got 2\.0", {"groups": 2.0}),
        (TypeError, r"x .*torch\.float32.*weight .*torch\.float64", {"weight": WEIGHT.double()}),
        (TypeError, r"bias.*torch\.float64", {"bias": torch.zeros(6).double()}),
        (TypeError, r"x must be .* floating-point tensor; got torch\.int64", {"x": X.long()}),
        (TypeError, r"x must be a tensor; got ndarray", {"x": X.numpy()}),
        (TypeError, r"weight must be a tensor; got list", {"weight": [[[1.0]]]}),
        (TypeError, r"x must be a real .*; got torch\.complex64", {"x": X + 0j}),
        (TypeError, r"weight must be a real .*; got torch\.complex64", {"weight": WEIGHT + 0j}),
        (TypeError, r"bias must be .*; got torch\.int32", {"bias": torch.zeros(6).int()}),
        (ValueError, r"bias must have shape \(6,\); got \(4,\)", {"bias": torch.zeros(4)}),
        (ValueError, r"bias must have shape \(6,\); got \(6, 1\)", {"bias": torch.zeros(6, 1)}),
        (ValueError, r"unknown algorithm 'fftt'.*'direct'.*did you mean 'fft'", {"algorithm": "fftt"}),
        (ValueError, r"unknown padding 'casual'.*'same'.*did you mean 'causal'", {"padding": "casual"}),
        (ValueError, r"unknown padding 'smae'.*did you mean 'same'", {"padding": ("smae",)}),
        (ValueError, r"odd kernel size.*got 2.*1 or 3", {"weight": WEIGHT[..., :2]}),
        (ValueError, r"padding must have 1 entries.*got 2: \(1, 2\)", {"padding": (1, 2)}),
        (TypeError, r"padding must be .*; got 1\.5", {"padding": 1.5}),
        (TypeError, r"padding must be .*; got True", {"padding": True}),
        (TypeError, r"padding of one axis .*; got \(1, 2, 3\)", {"padding": ((1, 2, 3),)}),
        (ValueError, r"stride must be at least 1; got 0", {"stride": 0}),
        (ValueError, r"stride must be at least 1; got \(-2,\)", {"stride": (-2,)}),
        (ValueError, r"stride must have 1 entries.*got 2: \(1, 2\)", {"stride": (1, 2)}),
        (TypeError, r"stride must be an int .*; got 1\.5", {"stride": 1.5}),
        (ValueError, r"dilation must be at least 1; got -1", {"dilation": -1}),
        (ValueError, r"size \(9,\).*padding \(\(0, 0\),\).*\(3,\).*dilation \(5,\)", {"padding": 0, "dilation": 5}),
        (ValueError, r"size \(9,\).*padding \(\(-4, -4\),\)", {"padding": -4}),
        (ValueError, r"empty.*\(6, 2, 0\)", {"weight": WEIGHT[..., :0], "padding": "valid"}),
        (ValueError, r"empty.*\(2, 4, 0\)", {"x": X[..., :0], "padding": 4}),
        (ValueError, r"x .*cpu.*weight .*meta", {"weight": WEIGHT.to("meta")}),
    ],
)
@both
def test_invalid_arguments_raise_with_their_value(algorithm, error_class, message, arguments):
    arguments = {"x": X, "weight": WEIGHT, "groups": 2, "algorithm": algorithm, **arguments}
    with pytest.raises(error_class, match=message):
        conv1d(**arguments)


@pytest.mark.parametrize(("conv", "dims"), [(conv2d, 2), (conv3d, 3)])
def test_errors_state_the_number_of_dimensions(conv, dims):
    with pytest.raises(ValueError, match=rf"conv{dims}d.*{dims + 2} dimensions"):
        conv(X, WEIGHT)
    with pytest.raises(ValueError, match=rf"padding must have {dims} entries.*got 1: \('same',\)"):
        conv(torch.zeros(1, 1, *(5,) * dims), torch.zeros(1, 1, *(3,) * dims), padding=("same",))
