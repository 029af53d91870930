"""`alias_penalty`: the authors' numbers, its formula, training with it, and its cost."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn

from flexconv.nn import FlexConv1d, FlexConv2d, FourierNet, GaborNet, GaussianMask, MAGNet, NJet, RotatedGaussianMask
from flexconv.spectrum import RENAMED_METHODS, alias_penalty, max_frequency, measured_bandwidth, nyquist

from ..compat.test_compat import gradient
from ..conftest import relative_error
from .helpers import FORMULAS, METHODS, CountOps, authors_model, make_layer, small_layer

OLD_NAMES = {new: old for old, new in RENAMED_METHODS.items()}  # which the golden file uses


# --- the authors' numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [9, 17, 33])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["gabor", "gabor+mask"])
def test_matches_authors_code(frequencies_file, size, method, target):
    model = authors_model(frequencies_file, size)
    penalty = alias_penalty(model, method=method, mask="mask" in target, formula="authors")
    assert penalty.shape == ()
    expected = frequencies_file[f"out/penalty/l2_relu/{target}/{OLD_NAMES[method]}/k{size}"].item()
    assert penalty.item() == pytest.approx(expected, rel=1e-5)


def test_gradient_matches_authors_code(frequencies_file):
    prefix = "g/penalty_gabor+mask_together_k17/"
    names = [key.removeprefix(prefix) for key in frequencies_file.arrays if key.startswith(prefix)]
    assert len(names) == 18
    model = authors_model(frequencies_file, 17)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    alias_penalty(model, mask=True, formula="authors").backward()
    for name in names:
        truth = frequencies_file[prefix + name]
        ours = gradient(model[name[0]], name[2:], names).reshape(truth.shape)
        assert relative_error(ours, truth) < 1e-5, name


# --- the formula ------------------------------------------------------------------------------------------------------


def test_exact_penalty_equals_its_formula():
    layers = [small_layer(), small_layer(size=(9, 17)), small_layer(generator=FourierNet)]
    model = nn.Sequential(*layers)
    per_filter = per_kernel = 0.0
    for layer in layers:
        limits = torch.tensor(nyquist(layer.kernel_size))
        per_kernel += torch.relu(max_frequency(layer) - limits).square().sum().item()
        generator, count = layer.generator, layer.generator.filters
        gamma = getattr(generator, "gamma", torch.zeros_like(generator.frequency))
        width = (gamma.square() + 1 / layer.mask.sigma.square() / count).sqrt()
        each = (generator.frequency.abs() + 1.5 * width).amax(1) / (2 * math.pi)
        per_filter += torch.relu(each - limits / count).square().sum().item()
    exact = {"mask": True, "formula": "exact"}
    assert alias_penalty(model, weight=0.3, method="per_kernel", **exact).item() == pytest.approx(0.3 * per_kernel)
    assert alias_penalty(model, weight=0.2, cutoff=1.5, **exact).item() == pytest.approx(0.2 * per_filter)


def test_authors_penalty_compares_one_number_with_the_lowest_limit():
    layer = small_layer(size=(9, 17))
    generator, count, limit = layer.generator, layer.generator.filters, 2.0
    each = generator.frequency.abs().amax((1, 2)) + 2 * generator.gamma.abs().amax((1, 2))
    per_filter = torch.relu(each / (2 * math.pi) - limit / count).square().sum().item()
    per_kernel = torch.relu(each.sum() / (2 * math.pi) - limit).square().item()
    assert alias_penalty(layer, weight=0.3).item() == pytest.approx(0.3 * per_filter)
    assert alias_penalty(layer, weight=0.3, method="per_kernel").item() == pytest.approx(0.3 * per_kernel)


def test_zero_authors_penalty_implies_frequencies_below_the_limit():
    options = [{}, {"size": (9, 17)}, {"generator": FourierNet}]
    for layer in [small_layer(sigma=0.3, **each) for each in options]:
        limits = torch.tensor(nyquist(layer.kernel_size))
        for mask, method in itertools.product((False, True), METHODS):
            for factor in (1.0, 0.3, 0.1, 0.01):
                other = copy.deepcopy(layer)
                with torch.no_grad():
                    for name, parameter in other.generator.named_parameters():
                        parameter.mul_(factor if name in ("frequency", "gamma") else 1)
                exact, authors = (max_frequency(other, mask=mask, formula=name) for name in ("exact", "authors"))
                assert (authors >= exact).all()
                if alias_penalty(other, mask=mask, method=method) == 0:
                    assert (exact <= limits).all()
            assert alias_penalty(other, mask=mask, method=method) == 0  # with the smallest factor


def test_njet_counts_as_one_filter():
    layer = FlexConv2d(1, 2, (9, 17), generator=partial(NJet, order=4), mask=None)
    with torch.no_grad():
        layer.generator.scale.fill_(-1.0)
    expected = torch.relu(max_frequency(layer) - torch.tensor([2.0, 4.0])).square().sum()
    assert expected > 0
    for method, formula in itertools.product(METHODS, FORMULAS):
        torch.testing.assert_close(alias_penalty(layer, method=method, formula=formula, weight=1.0), expected)
        torch.testing.assert_close(max_frequency(layer, formula=formula), max_frequency(layer))


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_penalty_of_a_model_is_the_sum_over_its_layers(formula, mask, method):
    layers = [small_layer(), small_layer(), small_layer(steerable=True)]
    layers += [small_layer(generator=FourierNet), small_layer(generator=GaborNet)]
    layers += [small_layer(hidden=5), small_layer(size=(9, 33)), make_layer(FlexConv1d, 33, hidden=2)]
    layers += [small_layer().float()]
    layers += [small_layer(mask=RotatedGaussianMask(sigma=0.1, angle=0.3, dtype=torch.float64))]
    layers += [FlexConv2d(1, 2, 9, mask=None), FlexConv2d(1, 2, 9)]
    options = {"formula": formula, "mask": mask, "method": method}
    total = alias_penalty(nn.ModuleList(layers), **options)
    assert total.item() == pytest.approx(sum(alias_penalty(layer, **options).item() for layer in layers), rel=1e-5)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("method", METHODS)
def test_penalty_and_gradient_are_0_below_the_limit(formula, method):
    layer = small_layer(sigma=0.5)
    with torch.no_grad():
        layer.generator.frequency.mul_(0.001)
        layer.generator.gamma.mul_(0.001)
    penalty = alias_penalty(layer, formula=formula, method=method, mask=True)
    assert penalty.item() == 0
    penalty.backward()
    assert all((p.grad == 0).all() for p in layer.parameters() if p.grad is not None)
    assert layer.generator.frequency.grad is not None


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("formula", ["authors", "exact"])
def test_gradient_descent_brings_kernels_below_the_limit(formula, method):
    model = nn.Sequential(*(make_layer(size=17, hidden=8, channels=2, input_scale=10.0, sigma=0.3) for _ in range(2)))
    limit = nyquist(17)
    assert all((max_frequency(layer) > 2 * limit).all() for layer in model)
    # The masks are fixed: descent would make them wider than the domain, and the kernel would end in a step.
    optimiser = torch.optim.Adam([p for layer in model for p in layer.generator.parameters()], lr=0.5)
    for _ in range(200):
        optimiser.zero_grad()
        alias_penalty(model, mask=True, method=method, formula=formula).backward()
        optimiser.step()
    for layer in model:
        assert (max_frequency(layer) <= limit).all()
        assert max(measured_bandwidth(layer)) <= limit


@pytest.mark.parametrize(("weight", "formula"), [(1.0, "authors"), (1.0, "exact"), (0.0, "exact")])
def test_network_learns_a_blur_and_stays_below_the_limit_only_with_the_penalty(weight, formula):
    torch.manual_seed(0)
    generator = partial(MAGNet, hidden=8, input_scale=10.0)
    make = partial(FlexConv2d, kernel_size=17, generator=generator, parametrization="paper")
    layers = [make(i, o, mask=GaussianMask(2, sigma=0.3)) for i, o in ((1, 4), (4, 1))]
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


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", ["exact", "authors"])
@pytest.mark.parametrize("method", METHODS)
def test_operation_count_does_not_grow_with_the_number_of_layers(formula, method):
    counts = []
    for number in (2, 8):
        model = nn.Sequential(*(small_layer() for _ in range(number)))
        with CountOps() as mode:
            alias_penalty(model, formula=formula, method=method, mask=True)
        counts.append(mode.count)
    assert counts[0] == counts[1]
    assert counts[0] < 80


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("formula", ["authors", "exact"])
def test_compiles_into_one_graph(formula, method):
    """Reading a value on the host (.item(), .tolist()) would break the graph."""
    njet = FlexConv2d(1, 2, 9, dtype=torch.float64, generator="njet", mask=None)
    rotated = RotatedGaussianMask(sigma=0.1, dtype=torch.float64)
    layers = [small_layer(), small_layer(size=(9, 17)), small_layer(mask=rotated), small_layer(generator=FourierNet)]
    model = nn.Sequential(*layers, njet)

    def function():
        return alias_penalty(model, mask=True, method=method, formula=formula)

    compiled = torch.compile(function, fullgraph=True, backend="eager")()
    torch.testing.assert_close(compiled, function())
    compiled.backward()
    assert model[0].generator.frequency.grad is not None


# --- deprecated names and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [("together", "per_filter"), ("summed", "per_kernel")])
def test_former_method_names_still_work_with_a_warning(old, new):
    layer = small_layer()
    with pytest.warns(DeprecationWarning, match=f"'{old}'.*'{new}'"):
        penalty = alias_penalty(layer, method=old)
    assert torch.equal(penalty, alias_penalty(layer, method=new))


@pytest.mark.parametrize(("generator", "name"), [("siren", "SIREN"), ("nsiren", "NSIREN"), ("mlp", "MLP")])
def test_generator_without_a_formula_is_an_error_or_skipped(generator, name):
    layer = FlexConv2d(1, 2, 9, generator=generator)
    model = nn.ModuleDict({"first": FlexConv2d(1, 2, 9), "second": layer})
    with pytest.raises(ValueError, match=rf"'second' is {name}.*missing='skip'"):
        alias_penalty(model)
    torch.testing.assert_close(alias_penalty(model, missing="skip"), alias_penalty(model["first"]))
    assert alias_penalty(layer, missing="skip").item() == 0


def test_unknown_names_get_a_suggestion():
    layer = FlexConv2d(1, 2, 9)
    with pytest.raises(ValueError, match=r"formula 'papers'.*did you mean 'paper'"):
        alias_penalty(layer, formula="papers")
    with pytest.raises(ValueError, match=r"method 'sum'.*'per_filter'"):
        alias_penalty(layer, method="sum")
    with pytest.raises(ValueError, match=r"missing 'ignore'.*'skip'"):
        alias_penalty(layer, missing="ignore")


def test_rejects_invalid_arguments():
    layer = FlexConv2d(1, 2, 9)
    with pytest.raises(TypeError, match=r"mask .*'yes'"):
        alias_penalty(layer, mask="yes")
    with pytest.raises(ValueError, match=r"weight .*-0.1"):
        alias_penalty(layer, weight=-0.1)
    for cutoff in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"cutoff .*positive.*{cutoff}"):
            alias_penalty(layer, cutoff=cutoff)
    with pytest.raises(ValueError, match=r"Linear .*no FlexConv layer"):
        alias_penalty(nn.Linear(2, 2))
