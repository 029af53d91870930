"""Causal layers and networks shared by the tests of `Streaming`."""

from __future__ import annotations

import copy

import torch
from torch import nn

from flexconv import FlexConv1d, GaussianMask
from tests.conftest import relative_error

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def causal_layer(in_channels=2, out_channels=2, kernel_size=9, **options):
    return FlexConv1d(in_channels, out_channels, kernel_size, padding="causal", **options)


def randomize(model):
    """Set random biases and batch statistics, as after training."""
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "bias", None) is not None:
                module.bias.normal_()
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model


def run_offline(model, x):
    """Return the output for the whole input in eval mode."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()(x)


def stream_in_chunks(stream, x, chunks, axis=-1):
    """Return the concatenated outputs of a stream for chunks of `x`."""
    return torch.cat([stream(chunk) for chunk in x.split(chunks, axis)], axis)


def assert_same_output(streamed, whole):
    assert streamed.shape == whole.shape
    assert streamed.dtype == whole.dtype
    assert relative_error(streamed, whole) <= TOLERANCE[whole.dtype]


# --- models -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """The residual block of a temporal convolutional network."""

    def __init__(self, inputs, outputs, kernel_size, *, stride=1, dilation=1, shortcut=None):
        super().__init__()
        self.body = nn.Sequential(
            causal_layer(
                inputs, outputs, kernel_size, stride=stride, dilation=dilation, mask=GaussianMask(1, sigma=0.4)
            ),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.Dropout(0.5),
            causal_layer(outputs, outputs, kernel_size),
            nn.BatchNorm1d(outputs),
        )
        self.shortcut = shortcut or (nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity())
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


class LastStepClassifier(nn.Module):
    """A classifier that reads the last time step."""

    def __init__(self, body, channels, classes=3):
        super().__init__()
        self.body = body
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        return self.head(self.body(x)[..., -1])


def make_tcn():
    """Return a temporal convolutional network."""
    return randomize(nn.Sequential(Block(2, 5, 17), Block(5, 5, 8, dilation=2), Block(5, 4, 9)))


def make_strided_tcn(last=5):
    """Return a temporal convolutional network with stride 2 in its second block."""
    down = Block(5, 5, 8, stride=2, shortcut=causal_layer(5, 5, 1, stride=2))
    return randomize(nn.Sequential(Block(2, 5, 17), down, Block(5, last, 9)))
