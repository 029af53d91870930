"""`Streaming`: outputs of chunks equal the output of the whole input."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, Streaming
from flexconv.models import FlexTCN
from flexconv.nn import GENERATORS
from tests.nn.streaming_helpers import (
    LastStepClassifier,
    assert_same_output,
    causal_layer,
    make_strided_tcn,
    make_tcn,
    randomize,
    run_offline,
    stream_in_chunks,
)

# --- one layer --------------------------------------------------------------------------------------------------------

# chunks that start with an empty one have their own test
chunk_sizes = st.one_of(
    st.integers(1, 60).map(lambda n: [1] * n),  # single samples
    st.integers(1, 150).map(lambda n: [n]),  # one chunk
    st.lists(st.integers(0, 5), min_size=1, max_size=15).map(lambda rest: [1, *rest]),  # small or empty
    st.lists(st.integers(0, 130), min_size=1, max_size=3).map(lambda rest: [*rest, 0, 41]).filter(lambda c: c[0]),
)
masks = st.one_of(
    st.none(),
    st.builds(
        lambda mean, sigma: {"mean": mean, "sigma": sigma},
        st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-1.0, 1.0)),
        st.one_of(st.sampled_from([1e-3, 0.05, 5.0]), st.floats(0.01, 1.0)),
    ),
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(
    chunks=chunk_sizes,
    kernel_size=st.integers(1, 40),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    channels=st.sampled_from([(1, 1, 1), (2, 3, 1), (4, 2, 2), (3, 3, 3)]),
    mask=masks,
    bias=st.booleans(),
    algorithm=st.sampled_from(["auto", "direct", "fft"]),
    batch=st.sampled_from([(), (1,), (2,)]),
)
@example([1] * 50, 40, 3, 3, (2, 3, 1), {"mean": -1.0, "sigma": 1e-3}, True, "auto", (2,))
@example([150], 7, 2, 1, (2, 3, 1), {"mean": -1.0, "sigma": 1e-3}, True, "fft", ())
@example([1, 0, 0, 5, 0, 130], 33, 1, 2, (4, 2, 2), None, True, "auto", (2,))
def test_layer_output_does_not_depend_on_chunks(
    dtype, chunks, kernel_size, stride, dilation, channels, mask, bias, algorithm, batch
):
    inputs, outputs, groups = channels
    torch.manual_seed(0)
    layer = randomize(
        causal_layer(
            *(inputs, outputs, kernel_size),
            stride=stride,
            dilation=dilation,
            groups=groups,
            bias=bias,
            dtype=dtype,
            mask=None if mask is None else GaussianMask(1, **mask, dtype=dtype),
            algorithm=algorithm,
        )
    )
    x = torch.randn(*batch, inputs, sum(chunks), dtype=dtype)
    assert_same_output(stream_in_chunks(Streaming(layer), x, chunks), run_offline(layer, x))


@pytest.mark.parametrize("generator", sorted(set(GENERATORS) - {"njet"}))
def test_layer_with_each_generator_streams(generator):
    layer = causal_layer(kernel_size=20, generator=generator, mask=GaussianMask(1, sigma=0.5)).double()
    x = torch.randn(2, 2, 60).double()
    assert_same_output(stream_in_chunks(Streaming(layer), x, [1, 7, 0, 30, 22]), run_offline(layer, x))


@pytest.mark.parametrize("chunks", [[0, 10], [0, 0, 1, 9]], ids=str)
def test_stream_can_start_with_empty_chunk(chunks):
    layer = causal_layer().double()
    x = torch.randn(1, 2, 10).double()
    assert_same_output(stream_in_chunks(Streaming(layer), x, chunks), run_offline(layer, x))


def test_chunk_without_outputs_has_correct_shape():
    stream = Streaming(causal_layer(2, 3, 5, stride=3))
    shapes = [tuple(stream(chunk).shape) for chunk in torch.randn(4, 2, 7).split(1, -1)]
    assert shapes == [(4, 3, n) for n in (1, 0, 0, 1, 0, 0, 1)]
    assert stream(torch.randn(4, 2, 0)).shape == (4, 3, 0)


@pytest.mark.parametrize(("taps", "dilation"), [(9, 1), (8, 3), (1, 1)], ids=str)
def test_explicit_left_padding_streams_like_causal_padding(taps, dilation):
    layer = FlexConv1d(2, 3, taps, padding=((dilation * (taps - 1), 0),), dilation=dilation).double()
    x = torch.randn(2, 2, 40).double()
    assert_same_output(stream_in_chunks(Streaming(layer), x, [1, 5, 0, 30, 4]), run_offline(layer, x))


# --- two and three dimensions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[1] * 13, [13], [5, 0, 1, 7]], ids=str)
@pytest.mark.parametrize("options", [{}, {"stride": (2, 3)}, {"dilation": (3, 2)}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("mean", [None, (-1.0, 0.3)], ids=["default mean", "early mean"])
@pytest.mark.parametrize("axis", [2, 3])
def test_2d_layer_streams_along_causal_axis(axis, mean, options, chunks):
    padding = ("causal", "same") if axis == 2 else ("same", "causal")
    mask = GaussianMask(2, mean=mean, sigma=(0.2, 0.4))
    layer = randomize(FlexConv2d(2, 4, (7, 5), padding=padding, mask=mask, **options)).double()
    x = torch.randn(2, 2, 13, 13).double()
    assert_same_output(stream_in_chunks(Streaming(layer), x, chunks, axis), run_offline(layer, x))


def test_2d_layer_with_rotated_mask_streams():
    mask = RotatedGaussianMask(sigma=(0.2, 0.5), angle=0.7)
    layer = FlexConv2d(2, 3, 9, padding=("causal", "same"), mask=mask).double()
    x = torch.randn(2, 20, 8).double()  # unbatched
    assert_same_output(stream_in_chunks(Streaming(layer), x, [1, 3, 16], 1), run_offline(layer, x))


@pytest.mark.parametrize("stride", [1, (2, 1, 2)], ids=str)
@pytest.mark.parametrize("chunks", [1, [4, 0, 6]], ids=str)
def test_3d_layer_streams_along_causal_axis(stride, chunks):
    mask = GaussianMask(3, sigma=0.5)
    layer = randomize(FlexConv3d(2, 3, (6, 3, 5), stride, padding=("causal", "same", "same"), mask=mask)).double()
    x = torch.randn(2, 2, 10, 6, 7).double()
    assert_same_output(stream_in_chunks(Streaming(layer), x, chunks, 2), run_offline(layer, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("chunks", [1, 7, 60, [3, 50, 1, 6]], ids=str)
def test_temporal_convolutional_network_streams(chunks, dtype):
    model = make_tcn().to(dtype)
    x = torch.randn(2, 2, 60, dtype=dtype)
    assert_same_output(stream_in_chunks(Streaming(model), x, chunks), run_offline(model, x))


def test_network_with_pointwise_convolution_accepts_empty_chunk():
    model = make_tcn().double()
    x = torch.randn(2, 2, 20).double()
    assert_same_output(stream_in_chunks(Streaming(model), x, [8, 0, 12]), run_offline(model, x))


@pytest.mark.parametrize("chunks", [1, 3, [2, 58]], ids=str)
def test_network_with_stride_in_the_middle_streams(chunks):
    model = make_strided_tcn().double()
    x = torch.randn(2, 2, 60).double()
    whole = run_offline(model, x)
    assert whole.shape[-1] == 30
    assert_same_output(stream_in_chunks(Streaming(model), x, chunks), whole)


@pytest.mark.parametrize("chunks", [2, 1], ids=["chunks of one stride", "single samples"])
def test_pointwise_convolution_after_stride_streams(chunks):
    model = make_strided_tcn(last=4).double()
    x = torch.randn(2, 2, 20).double()
    assert_same_output(stream_in_chunks(Streaming(model), x, chunks), run_offline(model, x))


@pytest.mark.parametrize("chunks", [1, 4], ids=str)
def test_last_step_classifier_returns_result_for_all_samples_so_far(chunks):
    model = LastStepClassifier(make_tcn(), 4).double()
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    for end, chunk in zip(itertools.count(chunks, chunks), x.split(chunks, -1), strict=False):
        assert_same_output(stream(chunk), run_offline(model, x[..., :end]))


def test_strided_last_step_classifier_streams_chunks_of_one_stride():
    model = LastStepClassifier(make_strided_tcn(), 5).double()
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    for end, chunk in zip(range(2, 25, 2), x.split(2, -1), strict=True):
        assert_same_output(stream(chunk), run_offline(model, x[..., :end]))


def test_layers_in_module_lists_and_dicts_stream():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.some = nn.ModuleList([causal_layer(), causal_layer(kernel_size=4)])
            self.more = nn.ModuleDict({"a": causal_layer(), "b": nn.Sequential(causal_layer(), nn.Tanh())})
            self.act = nn.GELU()

        def forward(self, x):
            return self.act(sum(branch(x) for branch in [*self.some, *self.more.values()]))

    model = nn.Sequential(Branches(), nn.Identity()).double()
    act = nn.ReLU()
    model = nn.Sequential(model, act, causal_layer().double(), act)  # a pointwise layer can appear twice
    x = torch.randn(1, 2, 20).double()
    assert_same_output(stream_in_chunks(Streaming(model), x, 1), run_offline(model, x))


def test_chunks_without_outputs_stream_under_autocast():
    model = nn.Sequential(*(FlexConv1d(1, 1, 5, padding="causal", stride=stride) for stride in (2, 1)))
    stream, x = Streaming(model), torch.randn(1, 1, 7)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        streamed = torch.cat([stream(chunk) for chunk in x.split([1, 0, 1, 1, 3, 1], -1)], -1)
        whole = model.eval()(x)
    torch.testing.assert_close(streamed.to(whole.dtype), whole, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_flextcn_streams(readout):
    model = randomize(FlexTCN(in_channels=2, num_classes=3, length=16, widths=[4, 4], readout=readout).double())
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    pieces = [stream(chunk) for chunk in x.split(5, -1)]
    assert_same_output(torch.cat(pieces, -1) if readout == "every" else pieces[-1], run_offline(model, x))
