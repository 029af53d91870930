"""Errors."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, Streaming
from flexconv.models import FlexTCN
from tests.nn.streaming_helpers import assert_equal, causal, offline

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


def test_another_width_of_a_2d_stream_is_refused():
    stream = Streaming(FlexConv2d(1, 1, 3, padding=("causal", "same")))
    stream(torch.randn(1, 1, 4, 6))
    with pytest.raises(ValueError, match="Call reset"):
        stream(torch.randn(1, 1, 4, 7))
