"""`Streaming` rejects models and chunks that it cannot stream exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, Streaming
from flexconv.models import FlexTCN
from tests.conftest import mentions
from tests.nn.streaming_helpers import assert_same_output, causal_layer, run_offline


def with_causal(*others):
    return nn.Sequential(causal_layer(), *others)


class PoolSubclass(nn.AvgPool1d):
    pass


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (FlexConv1d(2, 2, 5), ["FlexConv1d", "padding='same'", "'causal'"]),
        (FlexConv1d(2, 2, 5, padding="valid"), ["padding='valid'", "'causal'"]),
        (FlexConv1d(2, 2, 5, padding=4), ["padding=4", "'causal'"]),
        (with_causal(nn.Sequential(FlexConv1d(2, 2, 5))), ["1.0", "FlexConv1d", "padding='same'"]),
        (FlexConv1d(2, 2, 5, padding=((5, 0),)), ["((5, 0),)", "'causal'"]),
        (FlexConv2d(2, 2, 5), ["'causal'", "one axis"]),
        (FlexConv2d(2, 2, 5, padding="causal"), ["2 axes", "('causal', 'same')"]),
        (FlexConv2d(2, 2, 5, padding=((4, 0), (4, 0))), ["2 axes"]),
        (FlexConv3d(2, 2, 3, padding=("causal", "same", "causal")), ["2 axes"]),
        (
            nn.Sequential(FlexTCN(in_channels=1, num_classes=2, length=5, widths=[2], readout="mean")),
            ["0", "FlexTCN", "readout='mean'", "readout='last'"],
        ),
        (causal_layer(padding_mode="replicate"), ["padding_mode", "'replicate'", "'zeros'"]),
        (causal_layer(padding_mode="circular"), ["padding_mode", "'circular'", "'zeros'"]),
        (with_causal(nn.Conv1d(2, 2, 3)), ["1 (Conv1d)"]),
        (with_causal(nn.Conv1d(2, 2, 1, stride=2)), ["1 (Conv1d)"]),
        (with_causal(nn.Conv2d(2, 2, (1, 3))), ["1 (Conv2d)"]),
        (with_causal(nn.ConvTranspose1d(2, 2, 1)), ["1 (ConvTranspose1d)"]),
        (with_causal(nn.MaxPool1d(2)), ["1 (MaxPool1d)"]),
        (with_causal(nn.AdaptiveAvgPool1d(1)), ["1 (AdaptiveAvgPool1d)"]),
        (with_causal(nn.ConstantPad1d((2, 0), 0.0)), ["1 (ConstantPad1d)"]),
        (with_causal(nn.GroupNorm(1, 2)), ["1 (GroupNorm)"]),
        (with_causal(nn.InstanceNorm1d(2)), ["1 (InstanceNorm1d)"]),
        (with_causal(nn.LSTM(2, 2)), ["1 (LSTM)"]),
        (with_causal(nn.GRU(2, 2)), ["1 (GRU)"]),
        (with_causal(nn.MultiheadAttention(2, 1)), ["1 (MultiheadAttention)"]),
        (with_causal(nn.Upsample(scale_factor=2)), ["1 (Upsample)"]),
        (with_causal(PoolSubclass(3, 1, 1)), ["1 (PoolSubclass)"]),
        (with_causal(nn.Conv1d(2, 2, 1, padding=1)), ["1 (Conv1d)"]),  # would pad every chunk
        (with_causal(nn.BatchNorm1d(2, track_running_stats=False)), ["1 (BatchNorm1d)"]),  # statistics of the chunk
    ],
    ids=lambda value: "" if isinstance(value, nn.Module) else " ".join(value),
)
def test_model_that_cannot_stream_raises(model, parts):
    with pytest.raises(ValueError, match=mentions(*parts)):
        Streaming(model)


def test_layer_that_appears_twice_raises():
    layer = causal_layer()
    with pytest.raises(ValueError, match=mentions("2 (FlexConv1d)", "twice")):
        Streaming(nn.Sequential(layer, nn.ReLU(), layer))
    block = nn.Sequential(layer, nn.ReLU())
    with pytest.raises(ValueError, match=mentions("1.0 (FlexConv1d)", "twice")):
        Streaming(nn.Sequential(block, block))


def test_layer_that_is_called_twice_raises():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = causal_layer()

        def forward(self, x):
            return self.conv(self.conv(x))

    stream = Streaming(Twice())
    with pytest.raises(RuntimeError, match=mentions("model.conv", "twice")):
        stream(torch.randn(1, 2, 5))


def test_another_batch_size_without_reset_raises_and_stream_continues():
    layer = causal_layer(kernel_size=5).double()
    stream = Streaming(layer)
    x = torch.randn(2, 2, 10).double()
    first = stream(x[..., :4])
    with pytest.raises(ValueError, match=mentions("(2, 2)", "(3, 2)", "reset")):
        stream(torch.randn(3, 2, 5).double())
    assert_same_output(torch.cat([first, stream(x[..., 4:])], -1), run_offline(layer, x))


def test_another_dtype_without_reset_raises():
    stream = Streaming(FlexConv1d(1, 1, 5, padding="causal"))
    stream(torch.randn(1, 1, 3))
    with pytest.raises(ValueError, match=mentions("torch.float32", "torch.float64", "reset")):
        stream.double()(torch.randn(1, 1, 3).double())
    stream.reset()
    assert stream(torch.randn(1, 1, 3).double()).dtype == torch.float64


@pytest.mark.parametrize(
    "chunk",
    [torch.randn(2, 2, 3), torch.randn(2, 3, 3).double(), torch.zeros(2, 2, 3, dtype=torch.int64)],
    ids=["wrong dtype", "wrong channels", "integers"],
)
def test_invalid_chunk_raises_and_stream_continues(chunk):
    layer = causal_layer(kernel_size=5).double()
    stream = Streaming(layer)
    x = torch.randn(2, 2, 10).double()
    first = stream(x[..., :4])
    with pytest.raises((TypeError, ValueError)):
        stream(chunk)
    assert_same_output(torch.cat([first, stream(x[..., 4:])], -1), run_offline(layer, x))


@pytest.mark.parametrize("shape", [(2, 1, 10), (1, 10)], ids=str)
def test_error_names_shape_of_invalid_chunk(shape):
    with pytest.raises(ValueError, match=mentions("[batch, 2, length]", str(shape))):
        Streaming(causal_layer())(torch.randn(shape))


def test_another_width_of_2d_stream_raises():
    stream = Streaming(FlexConv2d(1, 1, 3, padding=("causal", "same")))
    stream(torch.randn(1, 1, 4, 6))
    with pytest.raises(ValueError, match="reset"):
        stream(torch.randn(1, 1, 4, 7))


class Mean(nn.Module):
    def forward(self, x):
        return x.cumsum(-1)


@pytest.mark.parametrize(
    "other",
    [
        *(nn.Softmax(-1), nn.Softmax(2), nn.LogSoftmax(-1), nn.Softmin(2), nn.GLU(-1)),
        *(nn.LayerNorm(8), nn.LayerNorm([2, 8]), nn.RMSNorm(8), nn.Linear(8, 8)),
        *(nn.Flatten(), nn.Unflatten(1, (1, 2)), nn.Fold(2, 1), nn.PixelShuffle(1), nn.CrossMapLRN2d(2)),
        *(nn.TransformerEncoderLayer(2, 1, 4), nn.Bilinear(2, 2, 2), nn.L1Loss(), Mean()),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_not_known_to_act_step_by_step_are_refused_by_name(other):
    with pytest.raises(ValueError, match=mentions(f"1.0 ({type(other).__name__})")):
        Streaming(with_causal(nn.Sequential(other)))


def test_last_axes_after_a_nested_convolution_are_time():
    with pytest.raises(ValueError, match=mentions("2 (LayerNorm)", "time")):
        Streaming(nn.Sequential(nn.Sequential(causal_layer()), nn.ReLU(), nn.LayerNorm(8)))


@pytest.mark.parametrize(
    "other", [nn.Softmax(1), nn.LogSoftmax(-2), nn.GLU(1), nn.PReLU(2), nn.Softsign(), nn.Dropout1d(), nn.Identity()]
)
def test_modules_that_act_step_by_step_are_accepted(other):
    model, x = with_causal(other).double(), torch.randn(2, 2, 12).double()
    stream = Streaming(model)
    assert_same_output(torch.cat([stream(chunk) for chunk in x.split([1, 4, 7], -1)], -1), run_offline(model, x))


def test_linear_and_layer_norm_over_features_are_accepted():
    class OverFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = causal_layer(), nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3))

        def forward(self, x):
            return self.head(self.conv(x).mT).mT

    model, x = OverFeatures().double(), torch.randn(2, 2, 12).double()
    stream = Streaming(model)
    assert_same_output(torch.cat([stream(chunk) for chunk in x.split([1, 4, 7], -1)], -1), run_offline(model, x))


def test_last_axis_of_2d_stream_is_not_time():
    model = nn.Sequential(FlexConv2d(1, 1, 3, padding=("causal", "same")), nn.LayerNorm(6), nn.Softmax(-1)).double()
    stream, x = Streaming(model), torch.randn(1, 1, 5, 6).double()
    assert_same_output(torch.cat([stream(chunk) for chunk in x.split([1, 4], 2)], 2), run_offline(model, x))
    with pytest.raises(ValueError, match=mentions("1 (Softmax)", "dim=2")):
        Streaming(nn.Sequential(FlexConv2d(1, 1, 3, padding=("causal", "same")), nn.Softmax(2)))


def test_declared_module_is_accepted():
    class Swish(nn.Module):
        acts_step_by_step = True

        def forward(self, x):
            return x * x.sigmoid()

    assert Streaming(with_causal(Swish()))(torch.randn(1, 2, 4)).shape == (1, 2, 4)


def test_parametrized_module_is_accepted():
    model = with_causal(nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 1)))
    assert Streaming(model)(torch.randn(1, 2, 4)).shape == (1, 3, 4)


class Fails(nn.Module):
    acts_step_by_step = True
    now = False

    def forward(self, x):
        if Fails.now:
            raise RuntimeError("out of memory")
        return x


@pytest.mark.parametrize("failing", range(4))
def test_failed_call_leaves_stream_as_it_was(monkeypatch, failing):
    model = nn.Sequential(causal_layer(stride=2), nn.Sequential(Fails(), causal_layer()), Fails()).double()
    stream, x = Streaming(model), torch.randn(2, 2, 24).double()
    outputs = []
    for number, chunk in enumerate(x.split([3, 5, 0, 16], -1)):
        if number == failing:
            monkeypatch.setattr(Fails, "now", True)
            with pytest.raises(RuntimeError, match="memory"):
                stream(chunk)
            monkeypatch.undo()
        outputs.append(stream(chunk))
    assert_same_output(torch.cat(outputs, -1), run_offline(model, x))


class Then(nn.Module):
    """A causal layer, then another one, with the time axis moved to the front of the channels or not."""

    def __init__(self, last, *, moved, **options):
        super().__init__()
        self.conv, self.last, self.moved = causal_layer(**options), last, moved

    def forward(self, x):
        y = self.conv(x)
        return self.last(y.transpose(1, 2)).transpose(1, 2) if self.moved else self.last(y)


class TimeFirst(nn.Module):
    """Takes [batch, time, channels]."""

    def __init__(self):
        super().__init__()
        self.embed, self.conv, self.norm = nn.Linear(3, 2), causal_layer(), nn.LayerNorm(2)

    def forward(self, x):
        return self.norm(self.conv(self.embed(x).transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.RMSNorm, lambda n: nn.Linear(n, n)], ids=["norm", "rms", "linear"])
def test_layers_over_time_in_a_module_of_the_user(layer):
    x = torch.randn(1, 2, 8)
    stream = Streaming(Then(layer(8), moved=False))
    for _ in range(2):
        with pytest.raises(ValueError, match=mentions("last", "time")):
            stream(x)
    with pytest.raises(ValueError, match=mentions("last", "time")):
        Streaming(Then(layer(4), moved=False, stride=2))(x)
    model = Then(layer(2), moved=True).eval()
    stream = Streaming(model)
    assert_same_output(torch.cat([stream(x[..., :3]), stream(x[..., 3:])], -1), run_offline(model, x))


def test_layers_over_features_before_and_after_moving_the_time_axis():
    model, x = TimeFirst().eval(), torch.randn(1, 8, 3)
    stream = Streaming(model)
    assert_same_output(torch.cat([stream(x[:, :3]), stream(x[:, 3:])], 1), run_offline(model, x))


def test_declared_layer_over_the_last_axis():
    last = nn.Linear(8, 8)
    last.acts_step_by_step = True  # the user knows better
    Streaming(Then(last, moved=False))(torch.randn(1, 2, 8))
