"""`max_frequency` and `nyquist`: the authors' numbers, and formulas compared with transforms of sampled kernels."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flexconv import from_pretrained, list_pretrained
from flexconv.nn import (
    FlexConv1d,
    FlexConv2d,
    FlexConv3d,
    FlexConvNd,
    FourierNet,
    GaborNet,
    MAGNet,
    NJet,
    RotatedGaussianMask,
)
from flexconv.sampling import dense_kernel, oversampled
from flexconv.spectrum import (
    available_formulas,
    energy_spectrum,
    filter_frequencies,
    max_frequency,
    measured_bandwidth,
    nyquist,
)
from flexconv.spectrum._formulas import mask_frequency, mask_terms

from ..conftest import relative_error
from .helpers import FORMULAS, authors_model, highest_product, make_layer, one_gabor, share_above

TAIL = math.erfc(2.0)  # at most this share of the energy lies more than 2 standard deviations out
EDGE = 5e-4  # and at most this share is due to the edges of the domain


# --- the authors' numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("cutoff", [1, 2])
def test_authors_formula_matches_authors_code(frequencies_file, name, cutoff):
    file, layer = frequencies_file, authors_model(frequencies_file, 9)[name]
    filters = filter_frequencies([layer], mask=False, cutoff=cutoff, formula="authors")
    assert relative_error(filters.flatten(), file[f"out/freq/gabor/h{cutoff}/{name}"]) < 1e-5
    mask_value = mask_frequency(mask_terms([layer]), cutoff, "authors")
    assert relative_error(mask_value.flatten(), file[f"out/maskfreq/h{cutoff}/{name}"][None]) < 1e-5
    for mask in (False, True):
        total = file[f"out/freq/gabor/h{cutoff}/{name}"].sum() + mask * file[f"out/maskfreq/h{cutoff}/{name}"]
        ours = max_frequency(layer, mask=mask, cutoff=cutoff, formula="authors")
        assert relative_error(ours, total.expand(2)) < 1e-5


@pytest.mark.parametrize("name", ["a", "b"])
def test_exact_and_paper_formulas_match_derived_values(frequencies_file, name):
    file, layer = frequencies_file, authors_model(frequencies_file, 33)[name]
    exact = filter_frequencies([layer], mask=False, cutoff=2.0, formula="exact")
    assert relative_error(exact[0].amax(1), file[f"derived/per_channel_per_axis_h2/{name}"]) < 1e-12
    paper = filter_frequencies([layer], mask=False, cutoff=2.0, formula="paper")
    assert relative_error(paper.flatten(), file[f"derived/paper_formula_h2/{name}"]) < 1e-12
    for mask, key in ((False, "nomask"), (True, "mask")):
        bound, highest = max_frequency(layer, mask=mask), highest_product(layer, mask=mask)
        assert (highest <= bound).all()
        assert (bound <= 1.01 * highest).all()
        # the golden bound takes the maxima of frequencies and widths separately
        assert (bound <= file[f"derived/tight_bound_axis_h2_{key}/{name}"]).all()


def test_nyquist(frequencies_file):
    for size in (9, 17, 33):
        assert nyquist(size) == frequencies_file[f"out/nyquist/{size}"].item()
    assert nyquist((9, 33)) == [2.0, 8.0]
    with pytest.raises(ValueError, match=r"kernel_size.*got 0"):
        nyquist(0)


# --- formulas against transforms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("cutoff", [1.0, 2.0, 3.0])
def test_bound_of_one_gabor_matches_its_spectrum(seed, dims, cutoff):
    random = torch.Generator().manual_seed(seed)
    gamma = 5 + 5 * torch.rand(dims, generator=random)
    sign = torch.randint(0, 2, (dims,), generator=random) * 2 - 1
    frequency = gamma * (4 + 6 * torch.rand(dims, generator=random)) * sign
    layer = one_gabor(frequency.tolist(), gamma.tolist(), size=33)
    bounds = max_frequency(layer, cutoff=cutoff)
    axes = [oversampled(axis, 8) for axis in layer.axes]
    values = dense_kernel(layer, axes, mask=False).detach()
    for d, axis in enumerate(axes):
        energy = energy_spectrum(values, d + 1)
        bins = 1 / (2 * (len(energy) - 1) * axis.spacing)
        edge = torch.nonzero(energy >= energy.max() * math.exp(-(cutoff**2))).max() * bins
        assert abs(edge - bounds[d]) <= 2 * bins


def test_paper_formula_is_not_a_bound():
    layer = one_gabor([-57.7, 14.1], [5.88, 5.70])
    exact, paper = max_frequency(layer), max_frequency(layer, formula="paper")
    assert exact.max().item() == pytest.approx(11.055, abs=0.005)
    assert paper.tolist() == pytest.approx([4.06, 4.06], abs=0.005)
    measured = measured_bandwidth(layer, energy=0.99)
    assert measured[0] > 2 * paper[0]
    assert measured[0] <= exact[0]
    assert measured[1] <= exact[1]
    assert share_above(layer, paper.tolist())[0] > 0.99
    assert max(share_above(layer, exact.tolist())) < TAIL


def test_tail_is_larger_where_the_two_gaussians_cancel():
    layer = one_gabor([0.01], [8.0], phase=0.0)  # nearly W x · envelope: the derivative of a Gaussian
    assert TAIL < share_above(layer, max_frequency(layer).tolist())[0] < 0.06


@given(
    seed=st.integers(0, 10**6),
    dims=st.sampled_from([1, 2]),
    hidden=st.integers(1, 8),
    layers=st.integers(1, 3),
    beta=st.floats(0.5, 3.0),
    sigma=st.floats(0.05, 0.25),
)
def test_bound_holds_for_random_magnets(seed, dims, hidden, layers, beta, sigma):
    torch.manual_seed(seed)
    kind, size = (FlexConv1d, 65) if dims == 1 else (FlexConv2d, 17)
    layer = make_layer(kind, size, sigma=sigma, hidden=hidden, layers=layers, beta=beta)
    bound = max_frequency(layer)
    assert max(share_above(layer, bound.tolist(), oversample=16)) < TAIL + EDGE
    authors = max_frequency(layer, formula="authors")
    assert (bound <= authors * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    "make",
    [
        partial(make_layer, generator=GaborNet, hidden=4),
        partial(make_layer, generator=MAGNet, hidden=4, steerable=True),
        partial(make_layer, generator=FourierNet, hidden=4, sigma=0.1),
        partial(make_layer, FlexConv1d, 65, generator=FourierNet, hidden=4, sigma=(0.1,)),
        partial(make_layer, generator=NJet, order=3, reach=8.0, sigma=0.2),
        partial(make_layer, FlexConv1d, 65, generator=NJet, order=2, reach=8.0, sigma=0.2),
        partial(make_layer, FlexConv3d, 7, generator=MAGNet, hidden=2, layers=1),
        partial(make_layer, FlexConv2d, (9, 17), generator=MAGNet, hidden=4, sigma=(0.25, 0.1)),
        partial(make_layer, mask=RotatedGaussianMask(sigma=(0.2, 0.05), angle=0.7, dtype=torch.float64), hidden=4),
    ],
)
def test_bound_holds_for_every_generator_and_mask(make):
    layer = make()
    bound = max_frequency(layer)
    assert bound.shape == (layer.dims,)
    oversample = 4 if layer.dims == 3 else 8
    assert max(share_above(layer, bound.tolist(), oversample=oversample)) < TAIL + EDGE


@pytest.mark.parametrize("order", [0, 1, 4])
def test_bound_of_an_njet_holds_and_follows_its_scale(order):
    generator = partial(NJet, order=order, reach=8.0)
    layer = FlexConv2d(1, 4, 33, dtype=torch.float64, generator=generator, mask=None)
    with torch.no_grad():
        layer.generator.scale.fill_(0.7)
    bound = max_frequency(layer)
    sigma = 2 / 32 * 2**0.7
    assert bound.tolist() == pytest.approx([(math.sqrt(order) + 2) / sigma / 2 / math.pi] * 2)
    assert max(share_above(layer, bound.tolist())) < TAIL + EDGE
    with torch.no_grad():
        layer.generator.scale += 1
    torch.testing.assert_close(max_frequency(layer), bound / 2)


def test_rotating_envelope_or_mask_by_90_degrees_swaps_axes():
    layer = one_gabor([30.0, 10.0], [8.0, 4.0], steerable=True)
    with torch.no_grad():
        layer.generator.theta.zero_()
    assert max_frequency(layer).tolist() == pytest.approx([46 / 2 / math.pi, 18 / 2 / math.pi])
    with torch.no_grad():
        layer.generator.theta.fill_(0.25)
    assert max_frequency(layer).tolist() == pytest.approx([38 / 2 / math.pi, 26 / 2 / math.pi])
    straight, turned = (
        mask_terms([make_layer(hidden=2, mask=RotatedGaussianMask(sigma=(0.3, 0.1), angle=angle, dtype=torch.float64))])
        for angle in (0.0, math.pi / 2)
    )
    torch.testing.assert_close(straight.precision, turned.precision.flip(1))


def test_bound_uses_the_effective_sigma():
    layer = make_layer(hidden=2, size=9, sigma=0.2)
    reference = max_frequency(layer)
    layer.mask.set_(sigma=-layer.mask.sigma.detach())
    assert torch.equal(max_frequency(layer), reference)
    layer.mask.set_(sigma=0.0)  # the mask uses a third of the spacing 0.25 instead
    assert mask_terms([layer]).precision.tolist()[0] == pytest.approx([144.0, 144.0])
    (slope,) = torch.autograd.grad(max_frequency(layer).sum(), layer.mask.sigma)
    assert (slope < 0).all()  # gradient descent makes the mask wider


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("generator", [MAGNet, GaborNet, FourierNet])
def test_bound_is_close_to_the_highest_product_of_channels(seed, mask, generator):
    torch.manual_seed(seed)
    layer = make_layer(generator=generator, hidden=6, layers=3, sigma=10 ** (-0.15 * seed))
    with torch.no_grad():
        layer.generator.frequency *= torch.rand_like(layer.generator.frequency)
        if generator is not FourierNet:  # a few channels have wide spectra, others have fast sines
            layer.generator.gamma *= torch.rand_like(layer.generator.gamma) ** 3 * 10
    bound, highest = max_frequency(layer, mask=mask), highest_product(layer, mask=mask)
    assert (highest * (1 - 1e-12) <= bound).all()
    assert (bound <= 1.05 * highest).all()
    bound.sum().backward()  # a faster sine or a narrower envelope never lowers the bound
    for name in ("frequency", "gamma"):
        if (parameter := getattr(layer.generator, name, None)) is not None:
            assert (parameter * parameter.grad >= 0).all()


@pytest.mark.parametrize("name", list_pretrained())
def test_bound_is_within_one_percent_in_pretrained_networks(name):
    for layer in from_pretrained(name).modules():
        for mask in (False, True) if isinstance(layer, FlexConvNd) else ():
            bound, highest = max_frequency(layer, mask=mask).detach(), highest_product(layer, mask=mask)
            assert (highest * (1 - 1e-5) <= bound).all()
            assert (bound <= 1.01 * highest).all()


def test_bound_without_envelopes_is_the_frequency_of_the_sines():
    layer = make_layer(generator=FourierNet, hidden=3, layers=1)
    bound = max_frequency(layer, mask=False)
    expected = layer.generator.frequency.abs().amax(1).sum(0) / (2 * math.pi)
    torch.testing.assert_close(bound, expected)
    (slope,) = torch.autograd.grad(bound.sum(), layer.generator.frequency)
    assert slope.isfinite().all()


def test_gradient_is_finite_for_gamma_zero():
    layer = FlexConv2d(1, 2, 9, generator="magnet", mask=None).requires_grad_()
    with torch.no_grad():
        layer.generator.gamma.zero_()
    max_frequency(layer).sum().backward()
    assert layer.generator.gamma.grad.isfinite().all()


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("steerable", [False, True])
def test_max_frequency_is_differentiable(formula, steerable):
    layer = make_layer(hidden=3, layers=1, steerable=steerable)
    names = [n for n in ("frequency", "gamma", "theta") if getattr(layer.generator, n, None) is not None]

    def function(sigma, *values):
        parameters = {"mask.sigma": sigma} | {f"generator.{n}": v for n, v in zip(names, values, strict=True)}
        with torch.nn.utils.stateless._reparametrize_module(layer, parameters):
            return max_frequency(layer, formula=formula)

    inputs = [layer.mask.sigma, *(getattr(layer.generator, n) for n in names)]
    assert torch.autograd.gradcheck(function, [x.detach().clone().requires_grad_() for x in inputs])


def test_half_precision_is_computed_in_float32():
    layer = make_layer(hidden=4).to(torch.bfloat16)
    bound = max_frequency(layer)
    assert bound.dtype == torch.float32
    torch.testing.assert_close(bound, max_frequency(layer.double()).float())


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("generator", "name"), [("siren", "SIREN"), ("nsiren", "NSIREN"), ("mlp", "MLP")])
def test_error_names_a_generator_without_a_formula(generator, name):
    layer = FlexConv2d(1, 2, 9, generator=generator)
    assert available_formulas(layer) == ()
    with pytest.raises(ValueError, match=rf"generator is {name}.*no formula"):
        max_frequency(layer)


def test_rejects_invalid_arguments():
    layer = FlexConv2d(1, 2, 9)
    with pytest.raises(ValueError, match=r"formula 'author'.*did you mean 'authors'"):
        max_frequency(layer, formula="author")
    with pytest.raises(TypeError, match=r"mask .*'yes'"):
        max_frequency(layer, mask="yes")
    for cutoff in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"cutoff .*positive.*{cutoff}"):
            max_frequency(layer, cutoff=cutoff)
    with pytest.raises(TypeError, match=r"max_frequency .*FlexConv.*Conv2d"):
        max_frequency(nn.Conv2d(1, 1, 3))
