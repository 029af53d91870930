"""Streaming: whatever the chunks, the outputs are those of the layer or model on everything at once."""

from __future__ import annotations

import copy
import itertools
import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, Streaming, refresh_extents
from flexconv.models import FlexTCN
from flexconv.nn import GENERATORS
from tests.conftest import relative_error

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def causal(in_channels=2, out_channels=2, kernel_size=9, **options):
    return FlexConv1d(in_channels, out_channels, kernel_size, padding="causal", **options)


def randomise(model):
    """Biases and batch statistics that matter, as after training."""
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias.normal_()
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model


def offline(model, x):
    with torch.no_grad():
        return copy.deepcopy(model).eval()(x)


def fed(stream, x, chunks, axis=-1):
    """The outputs of a stream for `x` cut into `chunks`, joined."""
    return torch.cat([stream(chunk) for chunk in x.split(chunks, axis)], axis)


def assert_equal(streamed, whole):
    assert streamed.shape == whole.shape
    assert streamed.dtype == whole.dtype
    assert relative_error(streamed, whole) <= TOLERANCE[whole.dtype]


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


# --- models -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """The residual block of a temporal convolutional network."""

    def __init__(self, inputs, outputs, kernel_size, *, stride=1, dilation=1, shortcut=None):
        super().__init__()
        self.body = nn.Sequential(
            causal(inputs, outputs, kernel_size, stride=stride, dilation=dilation, mask=GaussianMask(1, sigma=0.4)),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.Dropout(0.5),
            causal(outputs, outputs, kernel_size),
            nn.BatchNorm1d(outputs),
        )
        self.shortcut = shortcut or (nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity())
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


class LastStep(nn.Module):
    """A classifier that reads the last time step."""

    def __init__(self, body, channels, classes=3):
        super().__init__()
        self.body = body
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        return self.head(self.body(x)[..., -1])


def tcn():
    return randomise(nn.Sequential(Block(2, 5, 17), Block(5, 5, 8, dilation=2), Block(5, 4, 9)))


def strided_tcn(last=5):
    down = Block(5, 5, 8, stride=2, shortcut=causal(5, 5, 1, stride=2))
    return randomise(nn.Sequential(Block(2, 5, 17), down, Block(5, last, 9)))


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


# --- streams and the model they belong to -----------------------------------------------------------------------------


def test_the_original_is_not_changed():
    model = LastStep(tcn(), 4).train()
    model.body[1].eval()  # a part that is frozen stays frozen
    x = torch.randn(2, 2, 20)
    modules = [(name, type(module), module.training) for name, module in model.named_modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    stream = Streaming(model)
    for chunk in x.split(5, -1):
        stream(chunk)
    assert [(name, type(module), module.training) for name, module in model.named_modules()] == modules
    assert model.state_dict().keys() == state.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_weights_are_shared_and_there_is_no_state_of_its_own():
    model = tcn()
    stream = Streaming(model)
    stream(torch.randn(1, 2, 5))
    ours, theirs = list(model.state_dict().values()), list(stream.state_dict().values())
    assert [value.data_ptr() for value in ours] == [value.data_ptr() for value in theirs]
    assert {*map(id, model.parameters())} == {*map(id, stream.parameters())}


def test_a_stream_stays_in_eval_mode():
    model = tcn().train()
    stream = Streaming(model)
    assert stream.train() is stream
    assert not any(module.training for module in stream.modules())
    assert model.training


def test_reset_starts_a_new_stream_with_another_batch_size():
    model = tcn().double()
    stream = Streaming(model)
    for batch in (2, 5, 1):
        x = torch.randn(batch, 2, 12).double()
        assert_equal(fed(stream, x, 5), offline(model, x))
        stream.reset()


def test_weights_that_change_are_seen_after_reset():
    layer = causal(kernel_size=40)
    stream = Streaming(layer)
    x = torch.randn(1, 2, 64)
    before = offline(layer, x)
    first = stream(x[..., :32])
    with torch.no_grad():
        layer.mask.sigma.fill_(0.7)  # a longer kernel, too
        layer.generator.output.weight.mul_(-2)
    second = stream(x[..., 32:])
    assert_equal(torch.cat([first, second], -1), before)  # a stream keeps its kernel to the end
    stream.reset()
    after = offline(layer, x)
    assert relative_error(after, before) > 0.1
    assert_equal(fed(stream, x, 5), after)


def test_a_stream_follows_training_of_the_original():
    model = tcn()
    stream = Streaming(model)
    x = torch.randn(2, 2, 30)
    stream(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    refresh_extents(model)
    stream.reset()
    assert_equal(fed(stream, x, 11), offline(model, x))


def test_two_streams_of_one_model_are_independent():
    model = tcn().double()
    one, two = Streaming(model), Streaming(model)
    x, z = torch.randn(1, 2, 12).double(), torch.randn(3, 2, 12).double()
    outputs = [(one(a), two(b)) for a, b in zip(x.split(2, -1), z.split(2, -1), strict=True)]
    assert_equal(torch.cat([y for y, _ in outputs], -1), offline(model, x))
    assert_equal(torch.cat([y for _, y in outputs], -1), offline(model, z))


def test_a_buffer_that_is_filled_again_and_again_does_no_harm():
    layer = causal(kernel_size=7).double()
    x = torch.randn(1, 2, 20).double()
    stream, buffer, outputs = Streaming(layer), torch.empty(1, 2, 2).double(), []
    for chunk in x.split(2, -1):
        y = stream(buffer.copy_(chunk))
        outputs.append(y.clone())
        y.fill_(torch.nan)
    assert_equal(torch.cat(outputs, -1), offline(layer, x))


def test_no_graph_is_kept():
    stream = Streaming(tcn())
    x = torch.randn(1, 2, 4, requires_grad=True)
    assert torch.is_grad_enabled()
    assert not stream(x).requires_grad
    for layer in stream._layers:
        assert not layer.past.requires_grad
        assert not layer.weight.requires_grad


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize(
    ("mask", "most"),
    [
        ({}, 128),  # a short kernel at the newest sample needs little …
        ({"mean": 0.5}, 512),
        ({"mean": -1.0}, 1024),  # … as short a kernel in the far past needs everything between
        (None, 1024),
    ],
    ids=["home", "past", "far past", "no mask"],
)
def test_what_is_kept_is_the_reach_of_the_kernel_and_does_not_grow(mask, most, dilation):
    mask = None if mask is None else GaussianMask(1, sigma=0.01, **mask)
    layer = causal(1, 1, 1025, dilation=dilation, mask=mask)
    ((oldest, _),) = layer.window
    stream = Streaming(layer)
    (state,) = stream._layers
    for samples in (1, 3000, 2):
        stream(torch.randn(2, 1, samples))
        assert state.past.shape == (2, 1, (1024 - oldest) * dilation)
        assert state.past.untyped_storage().nbytes() == state.past.numel() * 4  # and no view of anything larger
        assert (layer.extent[0] - 1) * dilation <= state.past.shape[-1] <= most * dilation
    if mask is None or mask.initial_mean == [-1.0]:
        assert state.past.shape[-1] == 1024 * dilation
    stream.reset()
    assert state.past is None


# --- refusals ---------------------------------------------------------------------------------------------------------


def with_causal(*others):
    return nn.Sequential(causal(), *others)


class OwnPool(nn.AvgPool1d):
    pass


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (FlexConv1d(2, 2, 5), r"the model \(FlexConv1d\) has padding='same' and would have to see the future"),
        (FlexConv1d(2, 2, 5, padding="valid"), "padding='valid' and would have to see the future"),
        (FlexConv1d(2, 2, 5, padding=4), "padding=4 and would have to see the future"),
        (with_causal(nn.Sequential(FlexConv1d(2, 2, 5))), r"1\.0 \(FlexConv1d\) has padding='same'"),
        (FlexConv1d(2, 2, 5, padding=((5, 0),)), "would have to see the future: streaming needs padding='causal'$"),
        (FlexConv2d(2, 2, 5), "streaming needs padding='causal' along one axis"),
        (FlexConv2d(2, 2, 5, padding="causal"), r"'causal', causal along 2 axes.* padding=\('causal', 'same'\)"),
        (FlexConv2d(2, 2, 5, padding=((4, 0), (4, 0))), "causal along 2 axes"),
        (FlexConv3d(2, 2, 3, padding=("causal", "same", "causal")), "causal along 2 axes"),
        (
            nn.Sequential(FlexTCN(in_channels=1, num_classes=2, length=5, widths=[2], readout="mean")),
            r"0 \(FlexTCN\) has readout='mean'.* use readout='last'",
        ),
        (causal(padding_mode="replicate"), "padding_mode='replicate': streaming needs 'zeros'"),
        (causal(padding_mode="circular"), "padding_mode='circular': streaming needs 'zeros'"),
        (with_causal(nn.Conv1d(2, 2, 3)), r"1 \(Conv1d\) reaches over time and keeps no memory"),
        (with_causal(nn.Conv1d(2, 2, 1, stride=2)), r"1 \(Conv1d\) reaches over time"),
        (with_causal(nn.Conv2d(2, 2, (1, 3))), r"1 \(Conv2d\) reaches over time"),
        (with_causal(nn.ConvTranspose1d(2, 2, 1)), r"1 \(ConvTranspose1d\) reaches over time"),
        (with_causal(nn.MaxPool1d(2)), r"1 \(MaxPool1d\) mixes samples over time"),
        (with_causal(nn.AdaptiveAvgPool1d(1)), r"1 \(AdaptiveAvgPool1d\) mixes samples over time"),
        (with_causal(nn.ConstantPad1d((2, 0), 0.0)), r"1 \(ConstantPad1d\) mixes samples over time"),
        (with_causal(nn.GroupNorm(1, 2)), r"1 \(GroupNorm\) mixes samples over time"),
        (with_causal(nn.InstanceNorm1d(2)), r"1 \(InstanceNorm1d\) mixes samples over time"),
        (with_causal(nn.LSTM(2, 2)), r"1 \(LSTM\) mixes samples over time"),
        (with_causal(nn.GRU(2, 2)), r"1 \(GRU\) mixes samples over time"),
        (with_causal(nn.MultiheadAttention(2, 1)), r"1 \(MultiheadAttention\) mixes samples over time"),
        (with_causal(nn.Upsample(scale_factor=2)), r"1 \(Upsample\) mixes samples over time"),
        # what is refused must not depend on how it is written
        (with_causal(OwnPool(3, 1, 1)), r"1 \(OwnPool\) mixes samples over time"),
        (with_causal(nn.Conv1d(2, 2, 1, padding=1)), r"1 \(Conv1d\)"),  # its padding would come with every chunk
        (with_causal(nn.BatchNorm1d(2, track_running_stats=False)), r"1 \(BatchNorm1d\)"),  # statistics of the chunk
    ],
    ids=lambda value: "" if isinstance(value, nn.Module) else value,
)
def test_what_cannot_stream_is_refused_by_name(model, message):
    with pytest.raises(ValueError, match=message):
        Streaming(model)


def test_a_layer_that_appears_twice_is_refused():
    layer = causal()
    with pytest.raises(ValueError, match=r"2 \(FlexConv1d\) appears twice in the model"):
        Streaming(nn.Sequential(layer, nn.ReLU(), layer))
    block = nn.Sequential(layer, nn.ReLU())
    with pytest.raises(ValueError, match=r"1\.0 \(FlexConv1d\) appears twice in the model"):
        Streaming(nn.Sequential(block, block))


def test_a_layer_that_is_called_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = causal()

        def forward(self, x):
            return self.conv(self.conv(x))

    stream = Streaming(Twice())
    with pytest.raises(RuntimeError, match=r"model\.conv is called twice per chunk"):
        stream(torch.randn(1, 2, 5))


def test_another_batch_size_without_reset_is_refused_and_the_stream_goes_on():
    layer = causal(kernel_size=5).double()
    stream = Streaming(layer)
    x = torch.randn(2, 2, 10).double()
    first = stream(x[..., :4])
    with pytest.raises(ValueError, match=r"\(2, 2\); this chunk has \(3, 2\)\. Call reset"):
        stream(torch.randn(3, 2, 5).double())
    assert_equal(torch.cat([first, stream(x[..., 4:])], -1), offline(layer, x))


def test_a_stream_does_not_change_its_precision():
    stream = Streaming(FlexConv1d(1, 1, 5, padding="causal"))
    stream(torch.randn(1, 1, 3))
    with pytest.raises(
        ValueError, match=r"began in torch.float32 on cpu; this chunk is torch.float64 on cpu. Call reset"
    ):
        stream.double()(torch.randn(1, 1, 3).double())
    stream.reset()
    assert stream(torch.randn(1, 1, 3).double()).dtype == torch.float64


def test_chunks_without_outputs_under_autocast():
    model = nn.Sequential(*(FlexConv1d(1, 1, 5, padding="causal", stride=stride) for stride in (2, 1)))
    stream, x = Streaming(model), torch.randn(1, 1, 7)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        streamed = torch.cat([stream(chunk) for chunk in x.split([1, 0, 1, 1, 3, 1], -1)], -1)
        whole = model.eval()(x)
    torch.testing.assert_close(streamed.to(whole.dtype), whole, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "chunk",
    [torch.randn(2, 2, 3), torch.randn(2, 3, 3).double(), torch.zeros(2, 2, 3, dtype=torch.int64)],
    ids=["dtype", "channels", "integers"],
)
def test_a_wrong_chunk_is_refused_and_leaves_no_trace(chunk):
    layer = causal(kernel_size=5).double()
    stream = Streaming(layer)
    x = torch.randn(2, 2, 10).double()
    first = stream(x[..., :4])
    with pytest.raises((TypeError, ValueError)):
        stream(chunk)
    assert_equal(torch.cat([first, stream(x[..., 4:])], -1), offline(layer, x))


@pytest.mark.parametrize("shape", [(2, 1, 10), (1, 10)], ids=str)
def test_the_shape_of_a_wrong_chunk_is_named_as_it_is(shape):
    with pytest.raises(ValueError, match=rf"\[batch, 2, length\] .*; got {re.escape(str(shape))}"):
        Streaming(causal())(torch.randn(shape))


@pytest.mark.parametrize("readout", ["last", "every"])
def test_a_flextcn_streams(readout):
    model = randomise(FlexTCN(in_channels=2, num_classes=3, length=16, widths=[4, 4], readout=readout).double())
    x = torch.randn(2, 2, 24).double()
    stream = Streaming(model)
    pieces = [stream(chunk) for chunk in x.split(5, -1)]
    assert_equal(torch.cat(pieces, -1) if readout == "every" else pieces[-1], offline(model, x))


def test_another_width_of_a_2d_stream_is_refused():
    stream = Streaming(FlexConv2d(1, 1, 3, padding=("causal", "same")))
    stream(torch.randn(1, 1, 4, 6))
    with pytest.raises(ValueError, match="Call reset"):
        stream(torch.randn(1, 1, 4, 7))
