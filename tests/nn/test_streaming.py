"""Streaming: whatever the chunks, the outputs are those of the layer or model on everything at once."""

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
from tests.nn.streaming_helpers import LastStep, assert_equal, causal, fed, offline, randomise, strided_tcn, tcn

# --- one layer --------------------------------------------------------------------------------------------------------

# an empty chunk at the very start has a test of its own
chunk_sizes = st.one_of(
    st.integers(1, 60).map(lambda n: [1] * n),  # sample by sample
    st.integers(1, 150).map(lambda n: [n]),  # everything at once
    st.lists(st.integers(0, 5), min_size=1, max_size=15).map(lambda rest: [1, *rest]),  # small, some empty
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
@example([1] * 50, 40, 3, 3, (2, 3, 1), {"mean": -1.0, "sigma": 1e-3}, True, "auto", (2,))  # far past, even
@example([150], 7, 2, 1, (2, 3, 1), {"mean": -1.0, "sigma": 1e-3}, True, "fft", ())
@example([1, 0, 0, 5, 0, 130], 33, 1, 2, (4, 2, 2), None, True, "auto", (2,))
def test_a_layer_fed_in_chunks_equals_the_layer_on_everything(
    dtype, chunks, kernel_size, stride, dilation, channels, mask, bias, algorithm, batch
):
    inputs, outputs, groups = channels
    torch.manual_seed(0)
    layer = randomise(
        causal(
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
    assert_equal(fed(Streaming(layer), x, chunks), offline(layer, x))


@pytest.mark.parametrize("kernel", sorted(set(GENERATORS) - {"njet"}))
def test_every_generator_streams(kernel):
    layer = causal(kernel_size=20, generator=kernel, mask=GaussianMask(1, sigma=0.5)).double()
    x = torch.randn(2, 2, 60).double()
    assert_equal(fed(Streaming(layer), x, [1, 7, 0, 30, 22]), offline(layer, x))


@pytest.mark.parametrize("chunks", [[0, 10], [0, 0, 1, 9]], ids=str)
def test_a_stream_may_begin_with_an_empty_chunk(chunks):
    layer = causal().double()
    x = torch.randn(1, 2, 10).double()
    assert_equal(fed(Streaming(layer), x, chunks), offline(layer, x))


def test_a_chunk_without_outputs_is_empty_and_has_the_right_shape():
    stream = Streaming(causal(2, 3, 5, stride=3))
    shapes = [tuple(stream(chunk).shape) for chunk in torch.randn(4, 2, 7).split(1, -1)]
    assert shapes == [(4, 3, n) for n in (1, 0, 0, 1, 0, 0, 1)]
    assert stream(torch.randn(4, 2, 0)).shape == (4, 3, 0)


@pytest.mark.parametrize(("taps", "dilation"), [(9, 1), (8, 3), (1, 1)], ids=str)
def test_padding_on_the_left_alone_streams_as_causal_does(taps, dilation):
    layer = FlexConv1d(2, 3, taps, padding=((dilation * (taps - 1), 0),), dilation=dilation).double()
    x = torch.randn(2, 2, 40).double()
    assert_equal(fed(Streaming(layer), x, [1, 5, 0, 30, 4]), offline(layer, x))


# --- two and three dimensions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[1] * 13, [13], [5, 0, 1, 7]], ids=str)
@pytest.mark.parametrize("options", [{}, {"stride": (2, 3)}, {"dilation": (3, 2)}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("mean", [None, (-1.0, 0.3)], ids=["home", "far past"])
@pytest.mark.parametrize("axis", [2, 3])
def test_a_2d_layer_streams_along_its_causal_axis(axis, mean, options, chunks):
    padding = ("causal", "same") if axis == 2 else ("same", "causal")
    mask = GaussianMask(2, mean=mean, sigma=(0.2, 0.4))
    layer = randomise(FlexConv2d(2, 4, (7, 5), padding=padding, mask=mask, **options)).double()
    x = torch.randn(2, 2, 13, 13).double()
    assert_equal(fed(Streaming(layer), x, chunks, axis), offline(layer, x))


def test_a_2d_layer_with_a_turned_mask_streams():
    mask = RotatedGaussianMask(sigma=(0.2, 0.5), angle=0.7)
    layer = FlexConv2d(2, 3, 9, padding=("causal", "same"), mask=mask).double()
    x = torch.randn(2, 20, 8).double()  # unbatched
    assert_equal(fed(Streaming(layer), x, [1, 3, 16], 1), offline(layer, x))


@pytest.mark.parametrize("stride", [1, (2, 1, 2)], ids=str)
@pytest.mark.parametrize("chunks", [1, [4, 0, 6]], ids=str)
def test_a_3d_layer_streams_video(stride, chunks):
    mask = GaussianMask(3, sigma=0.5)
    layer = randomise(FlexConv3d(2, 3, (6, 3, 5), stride, padding=("causal", "same", "same"), mask=mask)).double()
    x = torch.randn(2, 2, 10, 6, 7).double()
    assert_equal(fed(Streaming(layer), x, chunks, 2), offline(layer, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("chunks", [1, 7, 60, [3, 50, 1, 6]], ids=str)
def test_a_temporal_convolutional_network_streams(chunks, dtype):
    model = tcn().to(dtype)
    x = torch.randn(2, 2, 60, dtype=dtype)
    assert_equal(fed(Streaming(model), x, chunks), offline(model, x))


def test_a_network_with_a_1x1_convolution_takes_an_empty_chunk():
    model = tcn().double()
    x = torch.randn(2, 2, 20).double()
    assert_equal(fed(Streaming(model), x, [8, 0, 12]), offline(model, x))


@pytest.mark.parametrize("chunks", [1, 3, [2, 58]], ids=str)
def test_a_network_with_a_stride_in_the_middle_streams(chunks):
    model = strided_tcn().double()
    x = torch.randn(2, 2, 60).double()
    whole = offline(model, x)
    assert whole.shape[-1] == 30
    assert_equal(fed(Streaming(model), x, chunks), whole)


@pytest.mark.parametrize("chunks", [2, 1], ids=["a stride at a time", "sample by sample"])
def test_a_1x1_convolution_behind_a_stride_streams(chunks):
    model = strided_tcn(last=4).double()
    x = torch.randn(2, 2, 20).double()
    assert_equal(fed(Streaming(model), x, chunks), offline(model, x))


@pytest.mark.parametrize("chunks", [1, 4], ids=str)
def test_a_classifier_of_the_last_step_gives_its_result_for_all_samples_so_far(chunks):
    model = LastStep(tcn(), 4).double()
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    for end, chunk in zip(itertools.count(chunks, chunks), x.split(chunks, -1), strict=False):
        assert_equal(stream(chunk), offline(model, x[..., :end]))


def test_a_strided_classifier_of_the_last_step_streams_in_multiples_of_its_stride():
    model = LastStep(strided_tcn(), 5).double()
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    for end, chunk in zip(range(2, 25, 2), x.split(2, -1), strict=True):
        assert_equal(stream(chunk), offline(model, x[..., :end]))


def test_layers_inside_lists_and_dicts_are_found():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.some = nn.ModuleList([causal(), causal(kernel_size=4)])
            self.more = nn.ModuleDict({"a": causal(), "b": nn.Sequential(causal(), nn.Tanh())})
            self.act = nn.GELU()

        def forward(self, x):
            return self.act(sum(branch(x) for branch in [*self.some, *self.more.values()]))

    model = nn.Sequential(Branches(), nn.Identity()).double()
    act = nn.ReLU()
    model = nn.Sequential(model, act, causal().double(), act)  # a pointwise layer may appear twice
    x = torch.randn(1, 2, 20).double()
    assert_equal(fed(Streaming(model), x, 1), offline(model, x))


def test_chunks_without_outputs_under_autocast():
    model = nn.Sequential(*(FlexConv1d(1, 1, 5, padding="causal", stride=stride) for stride in (2, 1)))
    stream, x = Streaming(model), torch.randn(1, 1, 7)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        streamed = torch.cat([stream(chunk) for chunk in x.split([1, 0, 1, 1, 3, 1], -1)], -1)
        whole = model.eval()(x)
    torch.testing.assert_close(streamed.to(whole.dtype), whole, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_a_flextcn_streams(readout):
    model = randomise(FlexTCN(in_channels=2, num_classes=3, length=16, widths=[4, 4], readout=readout).double())
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    pieces = [stream(chunk) for chunk in x.split(5, -1)]
    assert_equal(torch.cat(pieces, -1) if readout == "every" else pieces[-1], offline(model, x))
