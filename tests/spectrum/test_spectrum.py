"""Frequencies of kernels: the authors' numbers, formulas against transforms, and the penalty."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flexconv import from_pretrained
from flexconv.compat import from_authors
from flexconv.models._pretrained import list_pretrained
from flexconv.nn import (
    FlexConv1d,
    FlexConv2d,
    FlexConv3d,
    FourierNet,
    GaborNet,
    GaussianMask,
    MAGNet,
    NJet,
    RotatedGaussianMask,
)
from flexconv.nn._conv import FlexConvNd
from flexconv.spectrum import _bandwidth, _frequency, alias_penalty, max_frequency, measured_bandwidth, nyquist

from ..compat.test_compat import gradient
from ..conftest import Golden, relative_error

BEYOND = math.erfc(2.0)  # at most this share of energy lies more than 2 standard deviations out
EDGE = 5e-4  # and this much is due to the ends of the domain
SIZES = [9, 17, 33]


@pytest.fixture(scope="module")
def file():
    return Golden("frequencies")


def authors_model(file, size):
    def state(prefix):
        return {k.removeprefix(prefix): v.astype(np.float64) for k, v in file.state.items() if k.startswith(prefix)}

    return nn.ModuleDict({name: from_authors(state(f"{name}."), kernel_size=size) for name in "ab"})


def share_beyond(layer, limits, *, mask=True, oversample=8):
    """Share of the kernel's energy above the limit of each axis."""
    axes = [_bandwidth.denser(axis, oversample) for axis in layer.axes]
    with torch.no_grad():
        values = _bandwidth.dense_kernel(layer, axes, mask=mask)
        shares = []
        for d, (axis, limit) in enumerate(zip(axes, limits, strict=True)):
            energy = _bandwidth.energy_spectrum(values, d + 1)
            frequencies = torch.arange(len(energy)) / (2 * (len(energy) - 1) * axis.spacing)
            shares.append((energy[frequencies > limit].sum() / energy.sum()).item())
    return shares


def net(kind=FlexConv2d, size=17, *, sigma=0.2, mask=None, generator=MAGNet, channels=3, **options):
    return kind(
        1,
        channels,
        size,
        dtype=torch.float64,
        kernel=partial(generator, **options),
        mask=mask or GaussianMask(kind.dims, sigma=sigma, dtype=torch.float64),
    )


def one_gabor(frequency, gamma, phase=0.3, size=33, **options):
    """A layer whose kernel is one Gabor filter: the second filter of its network is constant."""
    dims = len(frequency)
    kind = {1: FlexConv1d, 2: FlexConv2d}[dims]
    generator = MAGNet(dims, 1, hidden=1, layers=1, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, values in {
            "frequency": [[frequency], [[0.0] * dims]],
            "gamma": [[gamma], [[1e-9] * dims]],
            "phase": [[phase], [math.pi / 2]],
            "mix_weight": [[[1.0]]],
        }.items():
            getattr(generator, name).copy_(torch.tensor(values, dtype=torch.float64))
        for zero in (generator.mu, generator.mix_bias, generator.output.bias):
            zero.zero_()
        generator.output.weight.fill_(1.0)
    return kind(1, 1, size, dtype=torch.float64, kernel=generator, mask=None)


def highest_product(layer, *, mask, cutoff=2.0):
    """The slow twin of `max_frequency`: every product of one channel of each filter."""
    precision = getattr(layer.generator, "gamma", torch.zeros(1)).square().expand_as(layer.generator.frequency)
    frequencies, precisions = torch.zeros(1, layer.dims), torch.zeros(1, layer.dims)
    for w, p in zip(layer.generator.frequency.abs(), precision, strict=True):
        frequencies, precisions = ((a[:, None] + b).flatten(0, 1) for a, b in ((frequencies, w), (precisions, p)))
    extra = _frequency.window_of([layer]).precision[0] if mask else 0.0
    return ((frequencies + cutoff * (precisions + extra).sqrt()).amax(0) / (2 * math.pi)).detach()


# --- the authors' numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("cutoff", [1, 2])
def test_frequencies_are_the_authors(file, name, cutoff):
    layer = authors_model(file, 9)[name]
    filters = _frequency.filter_frequencies([layer], mask=False, cutoff=cutoff, formula="authors")
    assert relative_error(filters.flatten(), file[f"out/freq/gabor/h{cutoff}/{name}"]) < 1e-5
    window = _frequency.window_frequency(_frequency.window_of([layer]), cutoff, "authors")
    assert relative_error(window.flatten(), file[f"out/maskfreq/h{cutoff}/{name}"][None]) < 1e-5
    for mask in (False, True):
        total = file[f"out/freq/gabor/h{cutoff}/{name}"].sum() + mask * file[f"out/maskfreq/h{cutoff}/{name}"]
        ours = max_frequency(layer, mask=mask, cutoff=cutoff, formula="authors")
        assert relative_error(ours, total.expand(2)) < 1e-5


@pytest.mark.parametrize("name", ["a", "b"])
def test_derived_frequencies(file, name):
    layer = authors_model(file, 33)[name]
    exact = _frequency.filter_frequencies([layer], mask=False, cutoff=2.0, formula="exact")
    assert relative_error(exact[0].amax(1), file[f"derived/per_channel_per_axis_h2/{name}"]) < 1e-12
    paper = _frequency.filter_frequencies([layer], mask=False, cutoff=2.0, formula="paper")
    assert relative_error(paper.flatten(), file[f"derived/paper_formula_h2/{name}"]) < 1e-12
    for mask, key in ((False, "nomask"), (True, "mask")):
        bound, highest = max_frequency(layer, mask=mask), highest_product(layer, mask=mask)
        assert (highest <= bound).all()
        assert (bound <= 1.01 * highest).all()
        assert (bound <= file[f"derived/tight_bound_axis_h2_{key}/{name}"]).all()  # with frequencies and widths apart


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", ["together", "summed"])
@pytest.mark.parametrize("target", ["gabor", "gabor+mask"])
def test_penalties_are_the_authors(file, size, method, target):
    penalty = alias_penalty(authors_model(file, size), method=method, mask="mask" in target, formula="authors")
    assert penalty.shape == ()
    assert penalty.item() == pytest.approx(file[f"out/penalty/l2_relu/{target}/{method}/k{size}"].item(), rel=1e-5)


def test_the_gradient_of_the_penalty_is_the_authors(file):
    prefix = "g/penalty_gabor+mask_together_k17/"
    names = [key.removeprefix(prefix) for key in file.arrays if key.startswith(prefix)]
    assert len(names) == 18
    model = authors_model(file, 17)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    alias_penalty(model, mask=True, formula="authors").backward()
    for name in names:
        truth = file[prefix + name]
        ours = gradient(model[name[0]], name[2:], names).reshape(truth.shape)
        assert relative_error(ours, truth) < 1e-5, name


def test_nyquist(file):
    for size in SIZES:
        assert nyquist(size) == file[f"out/nyquist/{size}"].item()
    assert nyquist((9, 33)) == [2.0, 8.0]
    with pytest.raises(ValueError, match="kernel_size must be at least 1; got 0"):
        nyquist(0)


# --- formulas against transforms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("cutoff", [1.0, 2.0, 3.0])
def test_the_edge_of_one_gabor_is_where_the_formula_says(seed, dims, cutoff):
    random = torch.Generator().manual_seed(seed)
    gamma = 5 + 5 * torch.rand(dims, generator=random)
    sign = torch.randint(0, 2, (dims,), generator=random) * 2 - 1
    frequency = gamma * (4 + 6 * torch.rand(dims, generator=random)) * sign
    layer = one_gabor(frequency.tolist(), gamma.tolist(), size=33)
    bounds = max_frequency(layer, cutoff=cutoff)
    axes = [_bandwidth.denser(axis, 8) for axis in layer.axes]
    values = _bandwidth.dense_kernel(layer, axes, mask=False).detach()
    for d, axis in enumerate(axes):
        energy = _bandwidth.energy_spectrum(values, d + 1)
        bins = 1 / (2 * (len(energy) - 1) * axis.spacing)
        edge = torch.nonzero(energy >= energy.max() * math.exp(-(cutoff**2))).max() * bins
        assert abs(edge - bounds[d]) <= 2 * bins


def test_the_papers_formula_is_no_bound():
    layer = one_gabor([-57.7, 14.1], [5.88, 5.70])
    exact, paper = max_frequency(layer), max_frequency(layer, formula="paper")
    assert exact.max().item() == pytest.approx(11.055, abs=0.005)
    assert paper.tolist() == pytest.approx([4.06, 4.06], abs=0.005)
    measured = measured_bandwidth(layer, energy=0.99)
    assert measured[0] > 2 * paper[0]
    assert measured[0] <= exact[0]
    assert measured[1] <= exact[1]
    assert share_beyond(layer, paper.tolist())[0] > 0.99
    assert max(share_beyond(layer, exact.tolist())) < BEYOND


def test_where_the_two_halves_of_a_spectrum_cancel_more_of_it_lies_beyond():
    layer = one_gabor([0.01], [8.0], phase=0.0)  # W x · envelope, nearly: a derivative of a Gaussian
    assert BEYOND < share_beyond(layer, max_frequency(layer).tolist())[0] < 0.06


@given(
    seed=st.integers(0, 10**6),
    dims=st.sampled_from([1, 2]),
    hidden=st.integers(1, 8),
    layers=st.integers(1, 3),
    beta=st.floats(0.5, 3.0),
    sigma=st.floats(0.05, 0.25),
)
def test_little_energy_lies_beyond_the_bound_of_a_magnet(seed, dims, hidden, layers, beta, sigma):
    torch.manual_seed(seed)
    kind, size = (FlexConv1d, 65) if dims == 1 else (FlexConv2d, 17)
    layer = net(kind, size, sigma=sigma, hidden=hidden, layers=layers, beta=beta)
    bound = max_frequency(layer)
    assert max(share_beyond(layer, bound.tolist(), oversample=16)) < BEYOND + EDGE
    authors = max_frequency(layer, formula="authors")
    assert (bound <= authors * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "make",
    [
        partial(net, generator=GaborNet, hidden=4),
        partial(net, generator=MAGNet, hidden=4, steerable=True),
        partial(net, generator=FourierNet, hidden=4, sigma=0.1),
        partial(net, FlexConv1d, 65, generator=FourierNet, hidden=4, sigma=(0.1,)),
        partial(net, generator=NJet, order=3, reach=8.0, sigma=0.2),
        partial(net, FlexConv1d, 65, generator=NJet, order=2, reach=8.0, sigma=0.2),
        partial(net, FlexConv3d, 7, generator=MAGNet, hidden=2, layers=1),
        partial(net, FlexConv2d, (9, 17), generator=MAGNet, hidden=4, sigma=(0.25, 0.1)),
        partial(net, mask=RotatedGaussianMask(sigma=(0.2, 0.05), angle=0.7, dtype=torch.float64), hidden=4),
    ],
)
def test_the_bounds_of_all_generators_and_masks_hold(make):
    layer = make()
    bound = max_frequency(layer)
    assert bound.shape == (layer.dims,)
    oversample = 4 if layer.dims == 3 else 8
    assert max(share_beyond(layer, bound.tolist(), oversample=oversample)) < BEYOND + EDGE


@pytest.mark.parametrize("order", [0, 1, 4])
def test_the_bound_of_a_jet_without_a_mask_holds_and_follows_its_scale(order):
    kernel = partial(NJet, order=order, reach=8.0)
    layer = FlexConv2d(1, 4, 33, dtype=torch.float64, kernel=kernel, mask=None)
    with torch.no_grad():
        layer.generator.scale.fill_(0.7)
    bound = max_frequency(layer)
    sigma = 2 / 32 * 2**0.7
    assert bound.tolist() == pytest.approx([(math.sqrt(order) + 2) / sigma / 2 / math.pi] * 2)
    assert max(share_beyond(layer, bound.tolist())) < BEYOND + EDGE
    with torch.no_grad():
        layer.generator.scale += 1
    torch.testing.assert_close(max_frequency(layer), bound / 2)


def test_a_turned_envelope_and_a_turned_mask_swap_their_axes_after_a_quarter():
    layer = one_gabor([30.0, 10.0], [8.0, 4.0], steerable=True)
    with torch.no_grad():
        layer.generator.theta.zero_()
    straight = max_frequency(layer)
    assert straight.tolist() == pytest.approx([46 / 2 / math.pi, 18 / 2 / math.pi])
    with torch.no_grad():
        layer.generator.theta.fill_(0.25)
    assert max_frequency(layer).tolist() == pytest.approx([38 / 2 / math.pi, 26 / 2 / math.pi])
    windows = [
        _frequency.window_of(
            [net(hidden=2, mask=RotatedGaussianMask(sigma=(0.3, 0.1), angle=angle, dtype=torch.float64))]
        )
        for angle in (0.0, math.pi / 2)
    ]
    torch.testing.assert_close(windows[0].precision, windows[1].precision.flip(1))


def test_the_mask_counts_as_it_is_guarded():
    layer = net(hidden=2, size=9, sigma=0.2)
    reference = max_frequency(layer)
    with torch.no_grad():
        layer.mask.sigma.neg_()
    assert torch.equal(max_frequency(layer), reference)
    with torch.no_grad():
        layer.mask.sigma.zero_()  # used as a third of the spacing 0.25
    assert _frequency.window_of([layer]).precision.tolist()[0] == pytest.approx([144.0, 144.0])
    (slope,) = torch.autograd.grad(max_frequency(layer).sum(), layer.mask.sigma)
    assert (slope < 0).all()  # descent makes it wider


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("generator", [MAGNet, GaborNet, FourierNet])
def test_the_bound_is_the_highest_product_of_channels(seed, mask, generator):
    torch.manual_seed(seed)
    layer = net(generator=generator, hidden=6, layers=3, sigma=10 ** (-0.15 * seed))
    with torch.no_grad():
        layer.generator.frequency *= torch.rand_like(layer.generator.frequency)
        if generator is not FourierNet:  # few of the channels have wide spectra, others fast sines
            layer.generator.gamma *= torch.rand_like(layer.generator.gamma) ** 3 * 10
    bound, highest = max_frequency(layer, mask=mask), highest_product(layer, mask=mask)
    assert (highest * (1 - 1e-12) <= bound).all()
    assert (bound <= 1.05 * highest).all()
    bound.sum().backward()  # a faster sine or a narrower envelope never makes it lower
    for name in ("frequency", "gamma"):
        if (parameter := getattr(layer.generator, name, None)) is not None:
            assert (parameter * parameter.grad >= 0).all()


@pytest.mark.parametrize("name", list_pretrained())
def test_the_bound_is_within_a_per_cent_in_shipped_networks(name):
    for layer in from_pretrained(name).modules():
        for mask in (False, True) if isinstance(layer, FlexConvNd) else ():
            bound, highest = max_frequency(layer, mask=mask).detach(), highest_product(layer, mask=mask)
            assert (highest * (1 - 1e-5) <= bound).all()
            assert (bound <= 1.01 * highest).all()


def test_without_an_envelope_the_frequency_is_that_of_the_sines():
    layer = net(generator=FourierNet, hidden=3, layers=1)
    bound = max_frequency(layer, mask=False)
    expected = layer.generator.frequency.abs().amax(1).sum(0) / (2 * math.pi)
    torch.testing.assert_close(bound, expected)
    (slope,) = torch.autograd.grad(bound.sum(), layer.generator.frequency)
    assert slope.isfinite().all()


def test_an_envelope_of_width_zero_has_a_finite_gradient():
    layer = FlexConv2d(1, 2, 9, kernel="magnet", mask=None)
    with torch.no_grad():
        layer.generator.gamma.zero_()
    max_frequency(layer).sum().backward()
    assert layer.generator.gamma.grad.isfinite().all()


@pytest.mark.parametrize("formula", ["exact", "authors", "paper"])
@pytest.mark.parametrize("steerable", [False, True])
def test_max_frequency_is_differentiable(formula, steerable):
    layer = net(hidden=3, layers=1, steerable=steerable)
    names = [n for n in ("frequency", "gamma", "theta") if getattr(layer.generator, n, None) is not None]

    def function(sigma, *values):
        parameters = {"mask.sigma": sigma} | {f"generator.{n}": v for n, v in zip(names, values, strict=True)}
        with torch.nn.utils.stateless._reparametrize_module(layer, parameters):
            return max_frequency(layer, formula=formula)

    inputs = [layer.mask.sigma, *(getattr(layer.generator, n) for n in names)]
    assert torch.autograd.gradcheck(function, [x.detach().clone().requires_grad_() for x in inputs])


def test_half_precision_is_computed_in_float32():
    layer = net(hidden=4).to(torch.bfloat16)
    bound = max_frequency(layer)
    assert bound.dtype == torch.float32
    torch.testing.assert_close(bound, max_frequency(layer.double()).float())


# --- measuring --------------------------------------------------------------------------------------------------------


def test_the_bandwidth_of_a_gaussian_is_the_textbook_one():
    layer = net(FlexConv1d, 65, sigma=0.1, generator=FourierNet, hidden=1, layers=1)
    with torch.no_grad():
        layer.generator.frequency.zero_()
        layer.generator.phase.fill_(math.pi / 2)
    quantile = 2.5758293  # |z| < this for 99 % of a normal distribution
    expected = quantile / math.sqrt(2) / 0.1 / (2 * math.pi)
    assert measured_bandwidth(layer)[0] == pytest.approx(expected, abs=0.13)


def test_measuring_leaves_the_layer_alone_and_works_for_every_generator():
    for kernel in ("siren", "mlp", "magnet", "njet"):
        layer = FlexConv2d(2, 2, (5, 9), kernel=kernel)
        before = {name: value.clone() for name, value in layer.state_dict().items()}
        result = measured_bandwidth(layer)
        assert [type(value) for value in result] == [float, float]
        assert layer.mask.threshold == 0.1
        assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
        more = measured_bandwidth(layer, energy=0.999)
        assert all(b >= a for a, b in zip(result, more, strict=True))


def test_a_kernel_of_nothing_and_one_of_nan_are_measured_too():
    layer = one_gabor([20.0], [6.0])
    with torch.no_grad():
        layer.generator.output.weight.zero_()
        assert measured_bandwidth(layer) == [0.0]
        layer.generator.output.weight.fill_(math.nan)
        assert math.isnan(measured_bandwidth(layer)[0])


def test_chunks_change_nothing(monkeypatch):
    layer = net(hidden=2, size=9)
    whole = measured_bandwidth(layer)
    monkeypatch.setattr(_bandwidth, "_CHUNK", 1000)
    assert measured_bandwidth(layer) == whole


@pytest.mark.parametrize("energy", [0.0, 1.0, -1, math.nan])
def test_a_share_of_energy_lies_between_0_and_1(energy):
    with pytest.raises(ValueError, match=f"energy must lie between 0 and 1, a share of the whole; got {energy}"):
        measured_bandwidth(net(hidden=1), energy=energy)


# --- the penalty ------------------------------------------------------------------------------------------------------


def small(**options):
    return net(**({"hidden": 4, "layers": 2, "size": 17} | options))


def test_the_exact_penalty_is_its_formula():
    layers = [small(), small(size=(9, 17)), small(generator=FourierNet)]
    model = nn.Sequential(*layers)
    together = summed = 0.0
    for layer in layers:
        limits = torch.tensor(nyquist(layer.kernel_size))
        summed += torch.relu(max_frequency(layer) - limits).square().sum().item()
        generator, count = layer.generator, layer.generator.filters
        gamma = getattr(generator, "gamma", torch.zeros_like(generator.frequency))
        width = (gamma.square() + 1 / layer.mask.sigma.square() / count).sqrt()
        each = (generator.frequency.abs() + 1.5 * width).amax(1) / (2 * math.pi)
        together += torch.relu(each - limits / count).square().sum().item()
    exact = {"mask": True, "formula": "exact"}
    assert alias_penalty(model, weight=0.3, method="summed", **exact).item() == pytest.approx(0.3 * summed)
    assert alias_penalty(model, weight=0.2, cutoff=1.5, **exact).item() == pytest.approx(0.2 * together)


def test_where_the_authors_penalty_is_0_kernels_are_below_their_limits_too():
    for layer in (small(sigma=0.3), small(size=(9, 17), sigma=0.3), small(generator=FourierNet, sigma=0.3)):
        limits = torch.tensor(nyquist(layer.kernel_size))
        for mask, method in itertools.product((False, True), ("together", "summed")):
            for factor in (1.0, 0.3, 0.1, 0.01):
                other = copy.deepcopy(layer)
                with torch.no_grad():
                    for name, parameter in other.generator.named_parameters():
                        parameter.mul_(factor if name in ("frequency", "gamma") else 1)
                exact, authors = (max_frequency(other, mask=mask, formula=name) for name in ("exact", "authors"))
                assert (authors >= exact).all()
                if alias_penalty(other, mask=mask, method=method) == 0:
                    assert (exact <= limits).all()
            assert alias_penalty(other, mask=mask, method=method) == 0  # the last of them


def test_the_authors_penalty_is_one_number_against_the_lowest_limit():
    layer = small(size=(9, 17))
    generator, count, limit = layer.generator, layer.generator.filters, 2.0
    each = generator.frequency.abs().amax((1, 2)) + 2 * generator.gamma.abs().amax((1, 2))
    together = torch.relu(each / (2 * math.pi) - limit / count).square().sum().item()
    summed = torch.relu(each.sum() / (2 * math.pi) - limit).square().item()
    assert alias_penalty(layer, weight=0.3).item() == pytest.approx(0.3 * together)
    assert alias_penalty(layer, weight=0.3, method="summed").item() == pytest.approx(0.3 * summed)


def test_a_jet_is_one_filter():
    layer = FlexConv2d(1, 2, (9, 17), kernel=partial(NJet, order=4), mask=None)
    with torch.no_grad():
        layer.generator.scale.fill_(-1.0)
    expected = torch.relu(max_frequency(layer) - torch.tensor([2.0, 4.0])).square().sum()
    assert expected > 0
    for method, formula in itertools.product(("together", "summed"), ("exact", "authors", "paper")):
        torch.testing.assert_close(alias_penalty(layer, method=method, formula=formula, weight=1.0), expected)
        torch.testing.assert_close(max_frequency(layer, formula=formula), max_frequency(layer))


@pytest.mark.parametrize("formula", ["exact", "authors", "paper"])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("method", ["together", "summed"])
def test_layers_of_all_kinds_add_up(formula, mask, method):
    layers = [small(), small(), small(steerable=True), small(generator=FourierNet), small(generator=GaborNet)]
    layers += [small(hidden=5), small(size=(9, 33)), net(FlexConv1d, 33, hidden=2), small().float()]
    layers += [small(mask=RotatedGaussianMask(sigma=0.1, angle=0.3, dtype=torch.float64))]
    layers += [FlexConv2d(1, 2, 9, mask=None), FlexConv2d(1, 2, 9)]
    options = {"formula": formula, "mask": mask, "method": method}
    total = alias_penalty(nn.ModuleList(layers), **options)
    assert total.item() == pytest.approx(sum(alias_penalty(layer, **options).item() for layer in layers), rel=1e-5)


@pytest.mark.parametrize("formula", ["exact", "authors", "paper"])
@pytest.mark.parametrize("method", ["together", "summed"])
def test_below_the_limit_there_is_no_penalty_and_no_gradient(formula, method):
    layer = small(sigma=0.5)
    with torch.no_grad():
        layer.generator.frequency.mul_(0.001)
        layer.generator.gamma.mul_(0.001)
    penalty = alias_penalty(layer, formula=formula, method=method, mask=True)
    assert penalty.item() == 0
    penalty.backward()
    assert all((p.grad == 0).all() for p in layer.parameters() if p.grad is not None)
    assert layer.generator.frequency.grad is not None


@pytest.mark.parametrize("method", ["together", "summed"])
@pytest.mark.parametrize("formula", ["authors", "exact"])
def test_descent_on_the_penalty_brings_kernels_below_their_limit(formula, method):
    model = nn.Sequential(*(net(size=17, hidden=8, channels=2, input_scale=10.0, sigma=0.3) for _ in range(2)))
    limit = nyquist(17)
    assert all((max_frequency(layer) > 2 * limit).all() for layer in model)
    # the masks stay: descent would widen them beyond the domain, whose ends would then be steps in the kernel
    optimiser = torch.optim.Adam([p for layer in model for p in layer.generator.parameters()], lr=0.5)
    for _ in range(200):
        optimiser.zero_grad()
        alias_penalty(model, mask=True, method=method, formula=formula).backward()
        optimiser.step()
    for layer in model:
        assert (max_frequency(layer) <= limit).all()
        assert max(measured_bandwidth(layer)) <= limit


@pytest.mark.parametrize(("weight", "formula"), [(1.0, "authors"), (1.0, "exact"), (0.0, "exact")])
def test_a_network_learns_a_blur_and_with_the_penalty_ends_below_its_limit(weight, formula):
    torch.manual_seed(0)
    kernel = partial(MAGNet, hidden=8, input_scale=10.0)
    layers = [FlexConv2d(i, o, 17, kernel=kernel, mask=GaussianMask(2, sigma=0.3)) for i, o in ((1, 4), (4, 1))]
    model = nn.Sequential(layers[0], nn.BatchNorm2d(4), nn.ReLU(), layers[1])
    frequencies = [p for name, p in model.named_parameters() if name.endswith(("frequency", "gamma"))]
    others = [p for p in model.parameters() if all(p is not other for other in frequencies)]
    optimiser = torch.optim.Adam([{"params": frequencies, "lr": 0.5}, {"params": others, "lr": 0.01}])
    x = torch.randn(8, 1, 16, 16)
    target = nn.functional.avg_pool2d(x, 5, 1, 2)
    limit = nyquist(17)
    assert all((max_frequency(layer, mask=False) > 2 * limit).all() for layer in layers)
    for _ in range(200):
        optimiser.zero_grad()
        loss = (model(x) - target).square().mean()
        (loss + alias_penalty(model, weight=weight, formula=formula)).backward()
        optimiser.step()
    assert loss < target.var() / 2
    for layer in layers:
        assert bool((max_frequency(layer, mask=False) <= limit).all()) is (weight > 0)
        assert max(measured_bandwidth(layer)) <= limit or not weight


class CountOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("formula", ["exact", "authors"])
@pytest.mark.parametrize("method", ["together", "summed"])
def test_many_layers_cost_as_many_operations_as_two(formula, method):
    counts = []
    for number in (2, 8):
        model = nn.Sequential(*(small() for _ in range(number)))
        with CountOps() as mode:
            alias_penalty(model, formula=formula, method=method, mask=True)
        counts.append(mode.count)
    assert counts[0] == counts[1]
    assert counts[0] < 80


@pytest.mark.parametrize("method", ["together", "summed"])
@pytest.mark.parametrize("formula", ["authors", "exact"])
def test_the_penalty_compiles_into_one_graph(formula, method):
    """A wait for the device (.item(), .tolist()) would break the graph."""
    jet = FlexConv2d(1, 2, 9, dtype=torch.float64, kernel="njet", mask=None)
    rotated = RotatedGaussianMask(sigma=0.1, dtype=torch.float64)
    model = nn.Sequential(small(), small(size=(9, 17)), small(mask=rotated), small(generator=FourierNet), jet)

    def function():
        return alias_penalty(model, mask=True, method=method, formula=formula)

    compiled = torch.compile(function, fullgraph=True, backend="eager")()
    torch.testing.assert_close(compiled, function())
    compiled.backward()
    assert model[0].generator.frequency.grad is not None


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "name"), [("siren", "SIREN"), ("nsiren", "NSIREN"), ("mlp", "MLP")])
def test_generators_without_a_formula_are_named(kernel, name):
    layer = FlexConv2d(1, 2, 9, kernel=kernel)
    with pytest.raises(ValueError, match=f"the generator is {name}, whose spectrum has no formula: nested"):
        max_frequency(layer)
    model = nn.ModuleDict({"first": FlexConv2d(1, 2, 9), "second": layer})
    with pytest.raises(ValueError, match=rf"generator of layer 'second' is {name}.*missing='skip'"):
        alias_penalty(model)
    torch.testing.assert_close(alias_penalty(model, missing="skip"), alias_penalty(model["first"]))
    assert alias_penalty(layer, missing="skip").item() == 0


def test_unknown_names_get_a_suggestion():
    layer = FlexConv2d(1, 2, 9)
    with pytest.raises(ValueError, match=r"unknown formula 'author'.*did you mean 'authors'"):
        max_frequency(layer, formula="author")
    with pytest.raises(ValueError, match=r"unknown formula 'papers'.*did you mean 'paper'"):
        alias_penalty(layer, formula="papers")
    with pytest.raises(ValueError, match=r"unknown method 'sum'.*'together'"):
        alias_penalty(layer, method="sum")
    with pytest.raises(ValueError, match=r"unknown value of missing 'ignore'.*'skip'"):
        alias_penalty(layer, missing="ignore")


def test_wrong_numbers_and_models_are_refused():
    layer = FlexConv2d(1, 2, 9)
    for use in (alias_penalty, max_frequency, measured_bandwidth):
        with pytest.raises(TypeError, match=r"mask must be True \(count the mask\) or False; got 'yes'"):
            use(layer, mask="yes")
    with pytest.raises(ValueError, match=r"weight must be a finite number of at least 0; got -0.1"):
        alias_penalty(layer, weight=-0.1)
    for cutoff in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"cutoff must be positive; got {cutoff}"):
            alias_penalty(layer, cutoff=cutoff)
        with pytest.raises(ValueError, match=f"cutoff must be positive; got {cutoff}"):
            max_frequency(layer, cutoff=cutoff)
    with pytest.raises(ValueError, match="Linear has no FlexConv layer"):
        alias_penalty(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="wants a FlexConv layer; got Conv2d"):
        max_frequency(nn.Conv2d(1, 1, 3))
