"""Masks per channel: every channel equals a layer of its own with the mask of that channel."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from flexconv import ChannelGaussianMask, FlexConv1d, GaussianMask, Streaming, alias_penalty, at_resolution, materialize
from flexconv.errors import ArgumentError
from flexconv.nn import refresh_extents
from flexconv.spectrum import energy_beyond_nyquist, max_frequency, measured_bandwidth
from flexconv.summary import summarize
from tests.conftest import mentions, relative_error
from tests.nn.helpers import EXACT, LAYERS, noise, tiny_magnet

CHANNELS = 3
SIZES = {1: 33, 2: (9, 13), 3: (5, 7, 5)}


def channel_layer(dims, *, parametrization="scaled", **options):
    """Return a depthwise layer in float64 whose channels have masks with different centers and widths."""
    mask = ChannelGaussianMask(dims, CHANNELS, sigma=0.12, dtype=torch.float64)
    settings = {
        "groups": CHANNELS,
        "generator": tiny_magnet,
        "dtype": torch.float64,
        "parametrization": parametrization,
    }
    layer = LAYERS[dims](CHANNELS, CHANNELS, SIZES[dims], mask=mask, **settings | options).requires_grad_()
    sigma = torch.tensor([0.1, 0.25, 0.6]).double()[:, None] * torch.linspace(1, 1.5, dims)
    shift = torch.tensor([0.0, -0.2, 0.1]).double()[:, None]
    mask.set_(sigma=sigma, mean=mask.mean.detach() + shift)
    return layer


def single_layers(layer):
    """Return one layer per channel, with one mask each and the same generator values."""
    layers = []
    for c in range(CHANNELS):
        mask = GaussianMask(layer.dims, sigma=0.1, dtype=torch.float64, form=layer.mask.form)
        kind = LAYERS[layer.dims]
        settings = {"padding": layer.padding, "parametrization": layer.parametrization, "dtype": torch.float64}
        single = kind(1, 1, layer.kernel_size, generator=tiny_magnet, mask=mask, **settings).requires_grad_()
        state = layer.generator.state_dict()
        state = {name: t[c : c + 1] if name in ("output.weight", "output.bias") else t for name, t in state.items()}
        single.generator.load_state_dict(state)
        mask.set_(mean=layer.mask.mean[c].detach(), sigma=layer.mask.sigma[c].detach())
        single.bias.data.copy_(layer.bias.data[c : c + 1])
        layers.append(single)
    return layers


def whole(layer):
    return layer.sample([axis.whole for axis in layer.axes])


@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_channels_equal_layers_of_their_own(dims, parametrization):
    layer = channel_layer(dims, parametrization=parametrization)
    singles = single_layers(layer)
    together = torch.cat([whole(single) for single in singles])
    assert relative_error(whole(layer), together) < EXACT
    assert layer.extent == tuple(map(max, zip(*(single.extent for single in singles), strict=True)))
    extents = layer.mask.channel_extents(layer.axes).tolist()
    assert extents == [list(single.extent) for single in singles]
    x = noise(2, CHANNELS, *[11] * dims)
    expected = torch.cat([single(x[:, c : c + 1]) for c, single in enumerate(singles)], 1)
    assert relative_error(layer(x), expected) < 1e-9


@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("scale", [0.5, 1.5, 2])
def test_resampled_channels_equal_layers_of_their_own(scale, padding):
    layer = channel_layer(1, padding=padding)
    finer = at_resolution(layer, scale)
    together = torch.cat([whole(at_resolution(single, scale)) for single in single_layers(layer)])
    assert relative_error(whole(finer), together) < EXACT
    assert relative_error(whole(at_resolution(finer, 1 / scale)), whole(layer)) < EXACT


@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
def test_gradients_equal_those_of_single_layers(parametrization):
    layer = channel_layer(2, parametrization=parametrization)
    singles = single_layers(layer)
    weight = noise(CHANNELS, 1, *layer.kernel_size)
    (whole(layer) * weight).sum().backward()
    for c, single in enumerate(singles):
        single.mask.damping = layer.mask.damping
        (whole(single) * weight[c : c + 1]).sum().backward()
        for own, alone in zip(layer.mask.parameters(), single.mask.parameters(), strict=True):
            assert relative_error(own.grad[c], alone.grad) < EXACT


def test_spectrum_is_that_of_the_channels():
    layer = channel_layer(1)
    singles = single_layers(layer)
    highest = torch.stack([max_frequency(single) for single in singles]).amax(0)
    assert relative_error(max_frequency(layer), highest) < EXACT
    energies = torch.stack([whole(single).detach().square().sum() for single in singles])
    shares = torch.tensor([energy_beyond_nyquist(single) for single in singles]).double()
    share = energy_beyond_nyquist(layer)
    assert min(shares) <= share <= max(shares)
    assert share == pytest.approx(float((shares * energies).sum() / energies.sum()), rel=0.2)
    assert measured_bandwidth(layer)[0] <= max_frequency(layer)[0].item()
    options = {"mask": True, "formula": "exact", "method": "per_kernel"}
    highest = max(alias_penalty(each, **options).item() for each in singles)
    assert alias_penalty(layer, **options).item() == pytest.approx(highest)


def test_materialize_and_streaming_are_exact():
    layer = channel_layer(1, padding="causal").eval()
    x = noise(2, CHANNELS, 40)
    expected = layer(x)
    assert relative_error(materialize(layer)(x), expected) < 1e-9
    stream = Streaming(layer)
    assert relative_error(torch.cat([stream(x[..., :7]), stream(x[..., 7:])], -1), expected) < 1e-9


def test_sizes_follow_the_widest_channel():
    layer = FlexConv1d(2, 2, 65, groups=2, mask=ChannelGaussianMask(1, 2, sigma=0.05))
    before = layer.extent
    sigma = layer.mask.sigma.detach().clone()
    sigma[1] = 0.4
    layer.mask.set_(sigma=sigma)
    assert before == (7,)
    assert layer.extent == (55,)
    assert refresh_extents(nn.Sequential(layer)) == {"0": (55,)}
    assert layer.kernel()[0].count_nonzero() == before[0]


def test_initial_sizes_are_spaced_evenly_on_a_log_scale():
    mask = ChannelGaussianMask(1, 5, sigma=0.02, largest_sigma=0.32)
    layer = FlexConv1d(5, 5, 257, groups=5, mask=mask)
    torch.testing.assert_close(mask.sigma.flatten(), torch.tensor([0.02, 0.04, 0.08, 0.16, 0.32]))
    mask.set_(sigma=0.1)
    layer.reset_parameters()
    torch.testing.assert_close(mask.sigma.flatten(), torch.tensor([0.02, 0.04, 0.08, 0.16, 0.32]))
    assert max_frequency(layer) <= 64
    short = ChannelGaussianMask(1, 3, largest_sigma=0.4)
    FlexConv1d(3, 3, 17, groups=3, mask=short)
    assert short.sigma[0].item() == pytest.approx(1.5 * 2 / 16)  # what a single layer starts with on this grid
    assert short.sigma[-1].item() == pytest.approx(0.4)


def test_all_channels_start_with_outputs_of_the_same_size():
    torch.manual_seed(0)
    channels = 200
    mask = ChannelGaussianMask(1, channels, sigma=0.01, largest_sigma=0.5)
    layer = FlexConv1d(channels, channels, 513, groups=channels, mask=mask)
    norms = layer.kernel().square().sum((1, 2))
    narrow, wide = norms[: channels // 2].mean(), norms[channels // 2 :].mean()
    assert 0.5 < narrow / wide < 2
    assert 0.2 < norms.mean() < 0.9  # twice that of a plain convolution, 1/3


def test_states_are_interchangeable_between_forms():
    scaled, paper = channel_layer(1), channel_layer(1, parametrization="paper")
    for target, source in ((scaled, paper), (paper, scaled)):
        with torch.no_grad():
            source.mask.set_(sigma=torch.rand(CHANNELS, 1) + 0.1)
        target.mask.load_state_dict(source.mask.state_dict())
        torch.testing.assert_close(target.mask.sigma, source.mask.sigma)
        torch.testing.assert_close(target.mask.mean, source.mask.mean)
    for copied in (copy.deepcopy(scaled), pickle.loads(pickle.dumps(scaled))):
        torch.testing.assert_close(copied.kernel(), scaled.kernel())


def test_masks_train():
    torch.manual_seed(0)
    layer = FlexConv1d(2, 2, 65, groups=2, mask="per_channel", padding="causal")
    x = torch.randn(8, 2, 80)
    average = sum(x[:, 1].roll(step, -1) for step in range(20)) / 4
    target = torch.stack([x[:, 0], average], 1)[..., 40:]
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(60):
        loss = (layer(x)[..., 40:] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    near, far = layer.mask.channel_extents(layer.axes).flatten().tolist()
    assert far > near


def test_compiled_code_equals_eager_code():
    layer = channel_layer(1)
    x = noise(2, CHANNELS, 20)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert relative_error(compiled(x), layer(x)) < 1e-9


def test_summary_has_the_mask_of_the_widest_channel():
    layer = channel_layer(1)
    (summary,) = summarize(layer, input_shape=(1, CHANNELS, 20))
    assert summary.sigma == pytest.approx((0.6,))
    assert summary.extent == layer.extent


def test_mask_without_a_threshold_keeps_everything():
    mask = ChannelGaussianMask(2, 4, sigma=0.1, threshold=None)
    layer = LAYERS[2](4, 4, 9, groups=4, mask=mask)
    assert layer.extent == (9, 9)
    assert "channels=4" in repr(layer)


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=mentions("groups=1", "depthwise")):
        FlexConv1d(4, 4, 9, mask="per_channel")
    with pytest.raises(ArgumentError, match=mentions("groups=2", "depthwise")):
        FlexConv1d(4, 4, 9, groups=2, mask="per_channel")
    with pytest.raises(ArgumentError, match=mentions("channels=3", "out_channels=4")):
        FlexConv1d(4, 4, 9, groups=4, mask=ChannelGaussianMask(1, 3))
    with pytest.raises(ArgumentError, match=mentions("authors", "form")):
        ChannelGaussianMask(1, 3, form="authors")
    with pytest.raises(ArgumentError, match=mentions("0.05", "largest_sigma")):
        ChannelGaussianMask(1, 3, sigma=0.1, largest_sigma=0.05)
    with pytest.raises(ArgumentError, match=mentions("-1", "largest_sigma")):
        ChannelGaussianMask(1, 3, largest_sigma=-1)
    with pytest.raises(ArgumentError, match="per_chanel"):
        FlexConv1d(4, 4, 9, groups=4, mask="per_chanel")
    layer = FlexConv1d(4, 4, 9)
    with pytest.raises(ArgumentError, match=mentions("groups=1", "depthwise")):
        layer.mask = ChannelGaussianMask(1, 4)
    multiplied = FlexConv1d(4, 8, 9, groups=4, mask="per_channel")
    assert multiplied(torch.randn(1, 4, 9)).shape == (1, 8, 9)
