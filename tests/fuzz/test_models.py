"""Random networks that are streamed, padded, materialized or resampled equal a slow computation in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, Streaming, at_resolution, materialize
from flexconv.nn import GENERATORS, FlexConvNd
from tests.fuzz.helpers import EXAMPLES, assert_near, fuzz, slow_forward
from tests.fuzz.test_layers import SMALL

pytestmark = pytest.mark.timeout(max(300, EXAMPLES))

CAUSAL, CENTRED = "causal", "same"
BETWEEN = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "norm": lambda: nn.BatchNorm1d(2),
    "softmax": lambda: nn.Softmax(1),
    "pointwise": lambda: nn.Conv1d(2, 2, 1),
    "none": nn.Identity,
}


class Residual(nn.Module):
    """x + conv(x)"""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x)


class Slow(nn.Module):
    """The slow computation in place of a layer."""

    def __init__(self, layer: FlexConvNd) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return slow_forward(self.layer, x)


@dataclass(frozen=True)
class Network:
    """A network of FlexConvs for sequences of two channels. Parameters are drawn with `seed`."""

    layers: tuple[tuple[int, int, int, float, str, str, bool], ...]
    padding: str
    parametrization: str
    seed: int

    def make(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        modules: list[nn.Module] = []
        for taps, stride, dilation, sigma, generator, between, residual in self.layers:
            conv = FlexConv1d(
                2,
                2,
                2 * taps - 1,
                stride=1 if residual else stride,
                padding=self.padding,
                dilation=dilation,
                generator=partial(GENERATORS[generator], **SMALL[generator]),
                mask=GaussianMask(1, sigma=sigma, dtype=torch.float64) if sigma else None,
                parametrization=self.parametrization,
                dtype=torch.float64,
            )
            nn.init.uniform_(conv.bias)
            modules += [Residual(conv) if residual else conv, BETWEEN[between]()]
        model = nn.Sequential(*modules).double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                nn.init.uniform_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2)
        return model.eval()


def slow(model: nn.Module) -> nn.Module:
    """A copy of a network with the slow computation in place of every FlexConv."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, FlexConvNd):
                setattr(parent, name, Slow(child))
    return model


def networks(*paddings):
    layer = st.tuples(
        st.integers(1, 9),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([0.0, 0.05, 0.2, 0.6, 3.0]),
        st.sampled_from(sorted(SMALL)),
        st.sampled_from(sorted(BETWEEN)),
        st.booleans(),
    )
    return st.builds(
        Network,
        st.lists(layer, min_size=1, max_size=3).map(tuple),
        st.sampled_from(paddings),
        st.sampled_from(["scaled", "paper"]),
        st.integers(0, 2**31 - 1),
    )


def signal(length: int, seed: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 2, length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TOLERANCE = 1e-9  # of the largest value


@fuzz(40, network=networks(CAUSAL), chunks=st.lists(st.integers(0, 9), min_size=1, max_size=6))
@torch.no_grad()
def test_streamed(network, chunks):
    model = network.make()
    x = signal(max(1, sum(chunks)), network.seed)
    stream, start, pieces = Streaming(model), 0, []
    for size in chunks:
        pieces.append(stream(x[..., start : start + size]))
        start += size
    if start:
        assert_near(torch.cat(pieces, -1), slow(model)(x), TOLERANCE, "the stream")


@fuzz(40, network=networks(CAUSAL, CENTRED), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3))
@torch.no_grad()
def test_lengths(network, lengths):
    """Rows of a padded batch equal the results for each sequence alone, whatever the padding contains."""
    layer = next(module for module in network.make().modules() if isinstance(module, FlexConvNd))
    x = signal(max(lengths), network.seed, len(lengths))
    for row, length in zip(x, lengths, strict=True):
        row[:, length:] = float("nan")
    y = layer(x, torch.tensor(lengths))
    for row, result, length in zip(x, y, lengths, strict=True):
        alone = slow_forward(copy.deepcopy(layer), row[None, :, :length])[0]
        assert_near(result[:, : alone.shape[-1]], alone, TOLERANCE, "a sequence")
        assert not result[:, alone.shape[-1] :].any()


@fuzz(40, network=networks(CAUSAL, CENTRED), scale=st.sampled_from([None, 0.5, 2, 1.3]))
@torch.no_grad()
def test_materialized(network, scale):
    model = network.make()
    x = signal(24, network.seed, 2)
    resampled = model if scale is None else at_resolution(model, scale)
    assert_near(materialize(model, scale=scale)(x), slow(resampled)(x), TOLERANCE, "the plain network")


@fuzz(
    40,
    network=networks(CAUSAL, CENTRED),
    scale=st.sampled_from([0.4, 0.5, 0.75, 1.5, 2, 3]),
    crop=st.sampled_from(["taper", "hard"]),
)
def test_resampled(network, scale, crop):
    """Outputs and gradients."""
    model = at_resolution(network.make(), scale, crop=crop)
    reference = slow(model)
    x = signal(24, network.seed, 2)
    ours, wanted = model(x), reference(x)
    assert_near(ours.detach(), wanted.detach(), TOLERANCE, "the resampled network")
    grad = signal(ours.shape[-1], 1, 2)
    ours.backward(grad)
    wanted.backward(grad)
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    for found, expected in ((p.grad, q.grad) for p, q in pairs if p.requires_grad):
        assert (found is None) == (expected is None)
        if found is not None:
            assert_near(found, expected, 1e-7, "a gradient")


@fuzz(
    40,
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    sigma=st.sampled_from([0.05, 0.2, 0.6, 3.0]),
    steps=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    scale=st.sampled_from([None, 0.5, 2, (1, 1.5)]),
    seed=st.integers(0, 2**31 - 1),
)
@torch.no_grad()
def test_images(size, sigma, steps, mode, scale, seed):
    """An image network as it is, resampled and materialized."""
    torch.manual_seed(seed)
    taps = tuple(2 * n - 1 for n in size)
    options = {"padding_mode": mode, "dtype": torch.float64, "generator": partial(GENERATORS["magnet"], hidden=3)}
    model = nn.Sequential(
        FlexConv2d(1, 2, taps, mask=GaussianMask(2, sigma=sigma, dtype=torch.float64), **options),
        nn.BatchNorm2d(2).double(),
        nn.ReLU(),
        FlexConv2d(2, 2, taps, stride=steps[0], dilation=steps[1], groups=2, **options),
    ).eval()
    model = model if scale is None else at_resolution(model, scale)
    x = torch.randn(1, 1, 26, 26, dtype=torch.float64)
    wanted = slow(model)(x)
    assert_near(model(x), wanted, TOLERANCE, "the network")
    assert_near(materialize(model)(x), wanted, TOLERANCE, "the plain network")
