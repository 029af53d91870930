"""Random networks that are streamed, padded, materialized or resampled equal a slow computation in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from flexconv import (
    FlexConv1d,
    FlexConv2d,
    GaussianMask,
    SeparableFlexConv1d,
    SeparableFlexConv2d,
    SeparableFlexConv3d,
    Streaming,
    at_resolution,
    from_pretrained,
    materialize,
    save_pretrained,
)
from flexconv.models import SepFlexNet
from flexconv.nn import GENERATORS, FlexConvNd, SeparableFlexConvNd
from tests.fuzz.helpers import EXAMPLES, assert_near, folder, fuzz, slow_fill, slow_forward
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


@fuzz(100, network=networks(CAUSAL), chunks=st.lists(st.integers(0, 9), min_size=1, max_size=6))
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


@fuzz(100, network=networks(CAUSAL, CENTRED), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3))
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


@fuzz(100, network=networks(CAUSAL, CENTRED), scale=st.sampled_from([None, 0.5, 2, 1.3]))
@torch.no_grad()
def test_materialized(network, scale):
    model = network.make()
    x = signal(24, network.seed, 2)
    resampled = model if scale is None else at_resolution(model, scale)
    assert_near(materialize(model, scale=scale)(x), slow(resampled)(x), TOLERANCE, "the plain network")


@fuzz(
    100,
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
    100,
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


# --- separable layers and networks ------------------------------------------------------------------------------------

SEPARABLE = {1: SeparableFlexConv1d, 2: SeparableFlexConv2d, 3: SeparableFlexConv3d}
LARGEST = {1: 14, 2: 6, 3: 3}  # sizes of inputs


@dataclass(frozen=True)
class Separable:
    """A separable layer of two channels. Parameters are drawn with `seed`."""

    dims: int
    taps: int
    stride: int
    dilation: int
    causal: bool
    mask: str | None
    small: bool
    generator: str
    parametrization: str
    algorithm: str
    seed: int

    def make(self) -> SeparableFlexConvNd:
        torch.manual_seed(self.seed)
        layer = SEPARABLE[self.dims](
            2,
            3,
            2 * min(self.taps, LARGEST[self.dims]) - 1,
            stride=self.stride,
            padding="causal" if self.causal and self.dims == 1 else "same",
            dilation=self.dilation,
            generator=partial(GENERATORS[self.generator], **SMALL[self.generator]),
            mask=self.mask,
            parametrization=self.parametrization,
            algorithm=self.algorithm,
            small_kernel=1 if self.small else None,
            dtype=torch.float64,
        )
        with torch.no_grad():
            for parameter in layer.depthwise.mask.parameters() if layer.depthwise.mask is not None else ():
                parameter.add_(torch.rand_like(parameter) / 2)  # channels of different sizes
        nn.init.uniform_(layer.depthwise.bias)
        return layer.eval()

    def input(self, batch: int = 2) -> torch.Tensor:
        chance = torch.Generator().manual_seed(self.seed)
        return torch.randn(batch, 2, *[LARGEST[self.dims]] * self.dims, generator=chance, dtype=torch.float64)


separables = st.builds(
    Separable,
    st.sampled_from([1, 1, 2, 3]),
    st.integers(1, 7),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["gaussian", "per_channel", "per_channel", None]),
    st.booleans(),
    st.sampled_from(sorted(SMALL)),
    st.sampled_from(["scaled", "paper"]),
    st.sampled_from(["auto", "direct", "fft", "dft", "toeplitz"]),
    st.integers(0, 2**31 - 1),
)


@fuzz(100, case=separables, missing=st.floats(0, 0.8), per_channel=st.booleans())
@torch.no_grad()
def test_separable(case, missing, per_channel):
    """A separable layer as it is, with missing samples, padded, materialized, saved and loaded."""
    layer, x = case.make(), case.input()
    wanted = slow(layer)(x)
    assert_near(layer(x), wanted, TOLERANCE, "the layer")
    assert_near(materialize(layer)(x), wanted, TOLERANCE, "the plain layer")
    other = Separable(**{**case.__dict__, "seed": case.seed ^ 1}).make()
    other.load_state_dict(layer.state_dict())
    assert_near(other(x), wanted, TOLERANCE, "the loaded layer")

    chance = torch.Generator().manual_seed(case.seed)
    seen = torch.rand(x.shape[0], 2 if per_channel else 1, *x.shape[2:], generator=chance) >= missing
    seen.flatten(1)[:, 0] = True
    everywhere = seen.expand_as(x)
    filled = slow_fill(layer.depthwise, x, everywhere)
    observed = layer(x.masked_fill(~everywhere, float("nan")), observed=seen)
    assert_near(observed, slow(layer)(filled), TOLERANCE, "the layer with missing samples")

    if case.dims == 1:
        lengths = torch.tensor([5, 9])
        padded = x.clone()
        padded[0, :, 5:] = padded[1, :, 9:] = float("nan")
        for options in ({}, {"observed": seen}):
            y = layer(padded, lengths, **options)
            for b, length in enumerate(lengths.tolist()):
                row = {name: value[b : b + 1, :, :length] for name, value in options.items()}
                alone = layer(x[b : b + 1, :, :length], **row)
                assert_near(y[b : b + 1, :, : alone.shape[-1]], alone, TOLERANCE, "a sequence")
                assert not y[b, :, alone.shape[-1] :].any()
        if case.causal:
            stream = Streaming(layer)
            chunks = [stream(piece) for piece in x.split([1, 5, LARGEST[1] - 6], -1)]
            assert_near(torch.cat(chunks, -1), wanted, TOLERANCE, "the stream")


@fuzz(100, case=separables, scale=st.sampled_from([0.5, 1.5, 2]), crop=st.sampled_from(["taper", "hard"]))
def test_resampled_separable(case, scale, crop):
    """Outputs and gradients."""
    layer = at_resolution(case.make().train(), scale, crop=crop)
    reference, x = slow(layer), case.input()
    ours, wanted = layer(x), reference(x)
    assert_near(ours.detach(), wanted.detach(), TOLERANCE, "the resampled layer")
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(case.seed), dtype=ours.dtype)
    ours.backward(grad)
    wanted.backward(grad)
    for found, expected in zip(layer.parameters(), reference.parameters(), strict=True):
        assert (found.grad is None) == (expected.grad is None)
        if found.grad is not None:
            assert_near(found.grad, expected.grad, 1e-7, "a gradient")


@fuzz(
    40,
    dims=st.sampled_from([1, 1, 2]),
    mask=st.sampled_from(["gaussian", "per_channel"]),
    norm=st.sampled_from(["batch", "layer"]),
    mix=st.sampled_from(["linear", "glu"]),
    readout=st.sampled_from(["mean", "last", "every"]),
    causal=st.booleans(),
    small=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
    cost=4,
)
@torch.no_grad()
def test_separable_networks(dims, mask, norm, mix, readout, causal, small, seed):
    """A network with everything observed, padded, streamed, materialized and saved equals the network itself."""
    torch.manual_seed(seed)
    causal = causal and dims == 1
    readout = "mean" if readout == "last" and dims > 1 else readout
    net = SepFlexNet(
        in_channels=2,
        num_classes=3,
        **({"length": 11} if dims == 1 else {"image_size": 5}),
        width=4,
        depth=1,
        mask=mask,
        norm=norm,
        mix=mix,
        readout=readout,
        causal=causal if dims == 1 else None,
        small_kernel=1 if small else None,
        generator_options={"hidden": 3},
        dtype=torch.float64,
    )
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    net.eval()
    x = torch.randn(2, 2, *[11] if dims == 1 else [5, 6], dtype=torch.float64)
    y = net(x)
    assert_near(y, slow(net)(x), TOLERANCE, "the network")
    assert_near(net(x, observed=torch.ones(2, *x.shape[2:])), y, TOLERANCE, "everything observed")
    assert_near(materialize(net)(x), y, TOLERANCE, "the plain network")
    with folder() as place:
        save_pretrained(net, place)
        assert_near(from_pretrained(place)(x), y, TOLERANCE, "the saved network")
    if dims == 1:
        padded, lengths = x.clone(), torch.tensor([4, 9])
        padded[0, :, 4:] = padded[1, :, 9:] = float("nan")
        for model in (net, materialize(net)):
            rows = model(padded, lengths)
            for b, length in enumerate(lengths.tolist()):
                alone = net(x[b : b + 1, :, :length])
                row = rows[b : b + 1] if readout != "every" else rows[b : b + 1, :, :length]
                assert_near(row, alone, TOLERANCE, "a sequence")
    if causal and readout != "mean" and norm == "batch":
        stream = Streaming(net)
        chunks = [stream(piece) for piece in x.split([3, 1, 7], -1)]
        assert_near(chunks[-1] if readout == "last" else torch.cat(chunks, -1), y, TOLERANCE, "the stream")
