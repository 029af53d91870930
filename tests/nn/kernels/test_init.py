"""Initial parameters of kernel generators: distributions, centers, and parameter counts."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from flexconv.nn import (
    GENERATORS,
    MLP,
    NSIREN,
    SIREN,
    FlexConv1d,
    FlexConv2d,
    FlexConv3d,
    FourierNet,
    GaborNet,
    GaussianMask,
    MAGNet,
    NJet,
)

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
PAPER1D, PAPER2D, PAPER3D = (partial(layer, parametrization="paper") for layer in LAYERS.values())
CAUSAL1D = partial(PAPER1D, padding="causal")


def initial_values(make, *names, hidden=500, times=16):
    """Return the parameters of many new generators, concatenated → [filters, hidden · times, …]."""
    nets = [make(hidden=hidden) for _ in range(times)]
    return [torch.cat([getattr(net, name).detach() for net in nets], 1) for name in names]


def assert_uniform(values, bound, center=0.0):
    """Check that values are uniformly distributed on [center − bound, center + bound]."""
    offset = (values.detach() - center) / bound
    assert offset.abs().max() <= 1 + 1e-6
    assert offset.abs().max() > 0.9
    assert offset.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.1)
    assert abs(offset.mean()) < 4 / math.sqrt(3 * offset.numel())


# --- sines and envelopes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [MAGNet, GaborNet])
@pytest.mark.parametrize("gamma_shape", ["per_filter", "shared"])
@pytest.mark.parametrize("anisotropic", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gamma_is_gamma_distributed(make, anisotropic, gamma_shape, dims):
    (gamma,) = initial_values(partial(make, dims, 1, anisotropic=anisotropic, gamma_shape=gamma_shape), "gamma")
    assert gamma.shape == (4, 8000, dims if anisotropic else 1)
    assert (gamma > 0).all()
    for index, values in enumerate(gamma):
        shape = 6 / (index + 1) if gamma_shape == "per_filter" else 6 / 4
        assert values.mean().item() == pytest.approx(shape, rel=0.04)
        assert values.var().item() == pytest.approx(shape, rel=0.09)


def test_defaults_of_magnet_and_gabor():
    magnet, gabor = MAGNet(2, 1), GaborNet(2, 1)
    assert (magnet.anisotropic, magnet.gamma_shape) == (True, "per_filter")
    assert (gabor.anisotropic, gabor.gamma_shape) == (False, "shared")


def test_alpha_is_shape_and_beta_is_rate_of_gamma_distribution():
    (gamma,) = initial_values(partial(GaborNet, 1, 1, alpha=8.0, beta=4.0), "gamma")
    assert gamma.mean().item() == pytest.approx(8 / 4 / 4, rel=0.03)
    assert gamma.var().item() == pytest.approx(8 / 4 / 16, rel=0.06)


@pytest.mark.parametrize(
    ("dims", "measured", "rel"), [(2, (33.0, 17.6, 13.2, 9.9), 0.05), (1, (46.0, 25.0, 20.0, 13.0), 0.12)]
)  # measured in the authors' code with 32 channels, which varies by several percent
def test_spread_of_magnet_frequencies_equals_authors_code(dims, measured, rel):
    (frequency,) = initial_values(partial(MAGNet, dims, 1), "frequency")
    for index, (values, reference) in enumerate(zip(frequency, measured, strict=True)):
        shape = 6 / (index + 1)
        exact = 25.6 / math.sqrt(4) / math.sqrt(3 * dims) * math.sqrt(shape * (shape + 1))
        assert values.std().item() == pytest.approx(exact, rel=0.04)
        assert values.std().item() == pytest.approx(reference, rel=rel)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("anisotropic", [True, False])
def test_frequency_is_proportional_to_gamma(anisotropic, layers):
    net = GaborNet(2, 1, hidden=500, layers=layers, anisotropic=anisotropic)
    bound = 25.6 / math.sqrt(layers + 1) / math.sqrt(2)
    for ratio in net.frequency / net.gamma:
        assert_uniform(ratio, bound)


@pytest.mark.parametrize("options", [{}, {"input_scale": 256.0}])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_fourier_frequencies_are_uniform(dims, options):
    net = FourierNet(dims, 1, hidden=500, **options)
    for values in net.frequency:
        assert_uniform(values, options.get("input_scale", 25.6) / 2 / math.sqrt(dims))


@pytest.mark.parametrize("make", [MAGNet, GaborNet, FourierNet])
def test_phases_and_weights_are_uniform(make):
    net = make(2, 50, hidden=400)
    assert_uniform(net.phase, math.pi)
    for values in (net.mix_weight, net.mix_bias, net.output.weight):
        assert_uniform(values, 1 / math.sqrt(400))
    assert net.output.bias.abs().max() <= 1 / math.sqrt(400)


def test_steering_angles_are_uniform():
    assert_uniform(MAGNet(2, 1, hidden=500, steerable=True).theta, 0.5, center=0.5)


# --- centers of envelopes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [MAGNet, GaborNet])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_centers_without_layer_are_uniform_on_grid(make, dims):
    assert_uniform(make(dims, 1, hidden=500).mu, 1.0)


WIDE = partial(MAGNet, hidden=200)


@pytest.mark.parametrize(
    ("layer", "center", "radius"),
    [
        (lambda: PAPER1D(1, 1, 33, padding="causal", generator=WIDE), [1.0], [0.125]),
        (lambda: PAPER1D(1, 1, 33, generator=WIDE), [0.0], [0.125]),
        (lambda: PAPER2D(1, 1, 33, generator=WIDE), [0.0, 0.0], [0.125] * 2),
        (lambda: PAPER2D(1, 1, 33, generator=partial(GaborNet, hidden=200)), [0.0, 0.0], [0.125] * 2),
        (lambda: PAPER2D(1, 1, 33, padding=("causal", "same"), generator=WIDE), [1.0, 0.0], [0.125] * 2),
        (lambda: PAPER3D(1, 1, 9, generator=WIDE), [0.0] * 3, [0.125] * 3),
        (lambda: CAUSAL1D(1, 1, 33, generator=WIDE, mask=GaussianMask(1, mean=-1.0)), [-1.0], [0.125]),
        (lambda: CAUSAL1D(1, 1, 33, generator=WIDE, mask=GaussianMask(1, sigma=-0.3)), [1.0], [0.5]),
        (lambda: PAPER2D(1, 1, 33, generator=WIDE, mask=GaussianMask(2, sigma=(0.3, 2.0))), [0.0, 0.0], [0.5, 1.0]),
        (lambda: CAUSAL1D(1, 1, 33, generator=WIDE, mask=None), [0.0], [1.0]),
        (lambda: PAPER2D(1, 1, 33, generator=WIDE, mask=None), [0.0, 0.0], [1.0, 1.0]),
        (lambda: CAUSAL1D(1, 1, 33, generator=partial(WIDE, center=0.0, spread=0.125)), [0.0], [0.125]),
        (lambda: CAUSAL1D(1, 1, 33, generator=partial(WIDE, spread=0.2)), [0.0], [0.2]),
        (lambda: CAUSAL1D(1, 1, 33, generator=partial(WIDE, center=0.5)), [0.5], [1.0]),
        (
            lambda: PAPER2D(1, 1, 33, generator=partial(WIDE, center=(0.5, -0.5), spread=(0.1, 0.2))),
            [0.5, -0.5],
            [0.1, 0.2],
        ),
    ],
)
@pytest.mark.parametrize("state", ["new", "reset", "meta then reset"])
def test_centers_in_layer_are_uniform_around_mean_of_mask(layer, center, radius, state):
    layer = layer()
    if state == "meta then reset":
        layer = layer.to("meta").to_empty(device="cpu")
    if state != "new":
        layer.reset_parameters()
    for axis, (c, r) in enumerate(zip(center, radius, strict=True)):
        assert_uniform(layer.generator.mu[..., axis], r, center=c)


def test_layer_keeps_centers_of_given_generator():
    net = MAGNet(1, 1)
    before = net.mu.clone()
    FlexConv1d(1, 1, 33, padding="causal", generator=net)
    assert torch.equal(net.mu, before)


def test_initial_mean_of_mask_is_current_sample():
    assert FlexConv1d(1, 1, 33, padding="causal").mask.mean.tolist() == [1.0]
    assert FlexConv2d(1, 1, 33).mask.mean.tolist() == [0.0, 0.0]
    assert FlexConv2d(1, 1, 33, padding=("causal", "same")).mask.mean.tolist() == [1.0, 0.0]
    assert CAUSAL1D(1, 1, 33, mask=GaussianMask(1, mean=-1.0)).mask.mean.tolist() == [-1.0]
    assert CAUSAL1D(1, 1, 33).mask.sigma.tolist() == pytest.approx([0.075])
    assert FlexConv1d(1, 1, 33, padding="causal").mask.sigma.tolist() == pytest.approx([1.5 * 2 / 32])


# --- MLP, SIREN and N-Jet ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_norm", [False, True])
@pytest.mark.parametrize("omega_0", [30.0, -5.0])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("make", [SIREN, NSIREN])
def test_siren_weights_are_uniform(make, dims, omega_0, weight_norm):
    net = make(dims, 40, hidden=250, omega_0=omega_0, weight_norm=weight_norm)
    for index, linear in enumerate(net.maps):
        fan_in = 250 if index else dims
        weight, _ = linear.effective_map(torch.float32)
        if weight_norm:
            torch.testing.assert_close(weight, linear.weight_v)
        assert_uniform(weight, math.sqrt(6 / fan_in) / abs(omega_0) if index else 1 / dims)
        assert linear.bias.abs().max() <= 1 / math.sqrt(fan_in)
        assert linear.bias.abs().max() > 0.8 / math.sqrt(fan_in)
    assert torch.equal(net.omega_0, torch.full((2,), omega_0))


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_mlp_weights_are_uniform_and_biases_zero(dims, norm):
    net = MLP(dims, 40, hidden=250, norm=norm)
    for linear, fan_in in zip(net.maps, (dims, 250, 250), strict=True):
        assert_uniform(linear.weight, 1 / math.sqrt(fan_in))
        assert not linear.bias.any()
    for layer_norm in net.norms if norm else ():
        assert (layer_norm.weight == 1).all()
        assert not layer_norm.bias.any()


def test_njet_starts_with_scale_zero_and_normal_weights():
    net = NJet(2, 2000)
    assert net.scale.tolist() == [0.0]
    assert net.alpha.shape == (2000, 15)
    assert net.alpha.std().item() == pytest.approx(1.0, rel=0.02)
    assert abs(net.alpha.mean()) < 0.02


# --- parameter counts -------------------------------------------------------------------------------------------------


def count(module):
    return sum(p.numel() for p in module.parameters())


HIDDEN_MAPS = 3 * (32 * 32 + 32)
# number of generator parameters without the output map, which has 33 per kernel channel
WITHOUT_OUTPUT_MAP = {
    "magnet": lambda dims: 4 * 32 * (3 * dims + 1) + HIDDEN_MAPS,
    "gabor": lambda dims: 4 * 32 * (2 * dims + 2) + HIDDEN_MAPS,
    "fourier": lambda dims: 4 * 32 * (dims + 1) + HIDDEN_MAPS,
    "siren": lambda dims: 32 * (dims + 1) + 32 * 33,
    "nsiren": lambda dims: 32 * (dims + 1) + 32 * 33,
    "mlp": lambda dims: 32 * (dims + 1) + 32 * 33,
}


@pytest.mark.parametrize(
    ("layer", "constant"),
    [
        (FlexConv2d, 4068),
        (FlexConv1d, 3682),
        (partial(FlexConv2d, generator="siren"), 1156),
        (partial(FlexConv2d, generator="fourier"), 3556),
        (partial(FlexConv2d, generator="gabor"), 3940),
        (partial(FlexConv1d, generator="gabor"), 3682),
        (partial(FlexConv1d, generator="siren"), 1122),
        (partial(FlexConv1d, generator="fourier"), 3426),
    ],
)
@pytest.mark.parametrize(("channels", "groups"), [((3, 5), 1), ((4, 6), 2), ((4, 4), 4)])
def test_parameter_count_equals_authors_code(layer, constant, channels, groups):
    inputs, outputs = channels
    made = layer(inputs, outputs, 33, groups=groups)
    assert count(made) == 33 * (outputs * inputs // groups) + constant + outputs


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("name", WITHOUT_OUTPUT_MAP)
def test_parameter_count_with_and_without_mask_and_bias(name, dims):
    masked, bare = (LAYERS[dims](3, 5, 9, generator=name, mask=mask) for mask in ("gaussian", None))
    assert count(bare) == 33 * 15 + WITHOUT_OUTPUT_MAP[name](dims) + 5
    assert count(masked) == count(bare) + 2 * dims
    assert count(LAYERS[dims](3, 5, 9, generator=name, bias=False)) == count(masked) - 5


@pytest.mark.parametrize(
    ("plain", "richer", "more"),
    [
        (MAGNet(2, 15), MAGNet(2, 15, steerable=True), 4 * 32),
        (MAGNet(2, 15, anisotropic=False), MAGNet(2, 15), 4 * 32),
        (GaborNet(2, 15), MAGNet(2, 15, anisotropic=False), 0),
        (MAGNet(2, 15), MAGNet(2, 15, layers=4), 32 * 7 + 32 * 33),
        (SIREN(2, 15), SIREN(2, 15, weight_norm=True), 32 + 32 + 15),
        (SIREN(2, 15), SIREN(2, 15, learn_omega_0=True), 2),
        (NSIREN(1, 15), NSIREN(1, 15, learn_omega_0=True, weight_norm=True), 32 + 32 + 15 + 2),
        (MLP(2, 15), MLP(2, 15, norm="layer"), 2 * 2 * 32),
    ],
)
def test_parameter_count_of_options(plain, richer, more):
    assert count(richer) - count(plain) == more


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_parameter_count_of_njet(dims, order):
    derivatives = math.comb(order + dims, dims)
    layer = LAYERS[dims](3, 5, 9, generator=partial(NJet, order=order), mask=None)
    assert count(layer) == derivatives * 15 + 1 + 5


@pytest.mark.parametrize("name", ["magnet", "gabor", "fourier"])
def test_initial_frequencies_grow_with_grid_beyond_33_taps(name):
    layer = PAPER2D(1, 2, (17, 99), generator=name)
    generator = GENERATORS[name](2, 2)
    for _ in range(2):
        torch.manual_seed(3)
        layer.reset_parameters()
        torch.manual_seed(3)
        generator.reset_parameters()
        torch.testing.assert_close(layer.generator.frequency, generator.frequency * torch.tensor([1.0, 3.0]))
    explicit = PAPER2D(1, 2, (17, 99), generator=partial(GENERATORS[name], input_scale=25.6))
    torch.manual_seed(3)
    explicit.reset_parameters()
    torch.testing.assert_close(explicit.generator.frequency, generator.frequency)


def test_layer_keeps_frequencies_of_given_generator():
    generator = MAGNet(1, 6)
    before = generator.frequency.clone()
    FlexConv1d(2, 3, 500, generator=generator, padding="causal")
    assert torch.equal(generator.frequency, before)


@pytest.mark.parametrize("length", [784, 1024, 16000])
def test_initial_kernels_of_long_sequences_have_high_frequencies(length):
    """95 % of the energy lies below a frequency between 20 % and 95 % of the Nyquist frequency."""
    layer = FlexConv1d(8, 32, length, padding="causal", mask=GaussianMask(1, sigma=0.354))
    kernel = layer.kernel().detach().flatten(0, 1)
    energy = torch.fft.rfft(kernel - kernel.mean(-1, keepdim=True)).abs().square().mean(0)
    share = float((energy.cumsum(0) / energy.sum() < 0.95).double().mean())
    assert 0.2 < share < 0.95
