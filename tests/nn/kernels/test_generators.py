"""Kernel generators as functions of coordinates: shapes, gradients, dtypes, copies and errors."""

from __future__ import annotations

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch.func import functional_call

from flexconv.nn import (
    GENERATORS,
    MLP,
    NSIREN,
    SIREN,
    Axis,
    FourierNet,
    GaborNet,
    KernelGenerator,
    MAGNet,
    NJet,
    Placement,
    coordinate_grid,
)
from tests.conftest import mentions

TINY = {"hidden": 3, "layers": 2}
POINTWISE = {
    "magnet": partial(MAGNet, **TINY),
    "gabor": partial(GaborNet, **TINY),
    "gabor-anisotropic": partial(GaborNet, anisotropic=True, **TINY),
    "fourier": partial(FourierNet, **TINY),
    **{
        f"{name}{suffix}": partial(make, **options, **TINY)
        for name, make in (("siren", SIREN), ("nsiren", NSIREN))
        for suffix, options in {
            "": {},
            "-weightnorm": {"weight_norm": True},
            "-learned-omega": {"learn_omega_0": True},
            "-both": {"weight_norm": True, "learn_omega_0": True},
        }.items()
    },
    **{
        f"mlp-{activation}-{norm}": partial(MLP, hidden=3, layers=3, activation=activation, norm=norm)
        for activation in ("relu", "leaky_relu", "swish")
        for norm in (None, "layer")
    },
}
SIZES = {1: (7,), 2: (5, 4), 3: (3, 4, 2)}


def attached_njet(dims, channels, **options):
    """Return an N-Jet on a grid."""
    net = NJet(dims, channels, order=2, **options)
    net.attach(Placement(axes_of(SIZES[dims])))
    return net


FACTORIES = {**POINTWISE, "njet": partial(NJet, order=2, unit=0.5), "njet-attached": attached_njet}
CASES = [pytest.param(name, dims, id=f"{name}-{dims}d") for name in FACTORIES for dims in (1, 2, 3)]
CASES.append(pytest.param("magnet-steerable", 2, id="magnet-steerable-2d"))
FACTORIES["magnet-steerable"] = partial(MAGNet, steerable=True, **TINY)
cases = pytest.mark.parametrize(("name", "dims"), CASES)


def axes_of(sizes):
    return [Axis(size, False) for size in sizes]


def grid_of(dims, dtype=torch.float32):
    axes = axes_of(SIZES[dims])
    return coordinate_grid(axes, [a.whole for a in axes], device=torch.device("cpu"), dtype=dtype)


@cases
def test_output_shape_is_channels_and_grid(name, dims):
    net = FACTORIES[name](dims, 5)
    values = net(grid_of(dims))
    assert values.shape == (5, *SIZES[dims])
    assert values.dtype == torch.float32
    assert values.isfinite().all()
    assert values.std() > 0
    assert repr(net)


@cases
def test_gradcheck_of_parameters_and_coordinates(name, dims):
    net = FACTORIES[name](dims, 2, dtype=torch.float64)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.05 * torch.randn_like(parameter)  # biases differ from 0, and scales from 1
    points = torch.rand(dims, 3, dtype=torch.float64) * 1.2 - 0.6
    names, values = zip(*net.named_parameters(), strict=True)

    def kernel(points, *values):
        return functional_call(net, dict(zip(names, values, strict=True)), (points,))

    inputs = [t.detach().clone().requires_grad_() for t in (points, *values)]
    assert torch.autograd.gradcheck(kernel, inputs)


@cases
def test_gradients_do_not_wait_for_a_gpu(name, dims):
    """The backward passes of these operations count zeros on the host, which a CUDA graph cannot contain."""
    nodes, names = [FACTORIES[name](dims, 2)(grid_of(dims)).grad_fn], set()
    while nodes:
        node = nodes.pop()
        names.add(node.name())
        nodes += [before for before, _ in node.next_functions if before is not None]
    assert not names & {"ProdBackward0", "ProdBackward1", "CumprodBackward0"}


@pytest.mark.parametrize(
    ("name", "dims"), [case for case in CASES if case.values[0] != "njet"]
)  # an N-Jet without a grid is normalized over the given points
def test_values_on_part_of_grid_equal_values_on_whole_grid(name, dims):
    net = FACTORIES[name](dims, 4, dtype=torch.float64)
    grid = grid_of(dims, torch.float64)
    part = (slice(None), *(slice(1, size) for size in SIZES[dims]))
    torch.testing.assert_close(net(grid[part]), net(grid)[part], rtol=1e-12, atol=1e-12)


@cases
def test_autocast_does_not_change_values(name, dims):
    net = FACTORIES[name](dims, 4)
    plain = net(grid_of(dims))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = net(grid_of(dims))
    assert inside.dtype == torch.float32
    assert torch.equal(inside, plain)


@cases
def test_half_precision_parameters_compute_in_float32(name, dims):
    dtype = torch.float16 if dims == 1 else torch.bfloat16
    net = FACTORIES[name](dims, 4).to(dtype)
    values = net(grid_of(dims).to(dtype))
    assert values.dtype == torch.float32
    assert torch.equal(values, copy.deepcopy(net).float()(grid_of(dims).to(dtype)))
    values.sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in net.parameters())


@cases
def test_state_dict_copy_and_pickle_keep_values(name, dims):
    net, grid = FACTORIES[name](dims, 4), grid_of(dims)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1
    other = FACTORIES[name](dims, 4)
    assert not torch.equal(other(grid), net(grid))
    saved = io.BytesIO()
    torch.save(net.state_dict(), saved)
    saved.seek(0)
    other.load_state_dict(torch.load(saved, weights_only=True))
    for twin in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(grid), net(grid))
        assert repr(twin) == repr(net)


@cases
def test_generator_on_meta_device_can_be_initialized_later(name, dims):
    net = FACTORIES[name](dims, 4, device="meta")
    assert all(t.is_meta for t in net.state_dict().values())
    net.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.fill_(torch.nan)
    net.reset_parameters()
    assert all(t.isfinite().all() for t in net.state_dict().values())
    assert net(grid_of(dims)).isfinite().all()


@pytest.mark.parametrize("name", ["magnet", "njet-attached"])
def test_meta_coordinates_give_output_shape(name):
    net = FACTORIES[name](2, 4, device="meta")
    assert net(grid_of(2).to("meta")).shape == (4, *SIZES[2])


@cases
def test_reset_parameters_is_determined_by_seed(name, dims):
    net = FACTORIES[name](dims, 4)
    draws = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        net.reset_parameters()
        draws.append(net(grid_of(dims)))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


@cases
def test_coordinates_of_wrong_shape_raise(name, dims):
    net = FACTORIES[name](dims, 4)
    with pytest.raises(ValueError, match=mentions("coordinates", str(dims), f"({dims + 1}, 5)")):
        net(torch.zeros(dims + 1, 5))
    with pytest.raises(ValueError, match="coordinates"):
        net(torch.zeros(()))


def test_generators_are_registered_by_name():
    assert set(GENERATORS) == {"magnet", "gabor", "fourier", "siren", "nsiren", "mlp", "njet"}
    for make in GENERATORS.values():
        assert isinstance(make(1, 2), KernelGenerator)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: SIREN(1, 2, omega_0=0), ["omega_0", "0"]),
        (lambda: NSIREN(1, 2, omega_0=0.0), ["omega_0", "0.0"]),
        (lambda: SIREN(1, 2, layers=1), ["SIREN", "layers", "1"]),
        (lambda: NSIREN(1, 2, layers=1), ["NSIREN", "layers", "1"]),
        (lambda: MLP(1, 2, activation="rleu"), ["activation", "'rleu'", "'relu'?"]),
        (lambda: MLP(1, 2, norm="batch"), ["norm", "'batch'", "'layer'"]),
        (lambda: MAGNet(2, 2, gamma_shape="per_filtre"), ["gamma_shape", "'per_filtre'", "'per_filter'?"]),
        (lambda: GaborNet(2, 2, gamma_shape="own"), ["gamma_shape", "'own'"]),
        (lambda: MAGNet(1, 2, steerable=True), ["dims", "2", "1"]),
        (lambda: MAGNet(3, 2, steerable=True), ["dims", "2", "3"]),
        (lambda: GaborNet(3, 2, steerable=True), ["dims", "2", "3"]),
        (lambda: NJet(1, 2)(torch.zeros(1, 3)), ["NJet", "unit"]),
        (lambda: NJet(1, 2, order=-1), ["order", "-1"]),
        (lambda: MAGNet(1, 2, input_scale=0.0), ["input_scale", "0.0"]),
        (lambda: NJet(1, 2, unit=0.0), ["unit", "0.0"]),
        (lambda: NJet(2, 2, unit=(0.1, -0.1)), ["unit", "(0.1, -0.1)"]),
        (lambda: NJet(2, 2, unit=(0.1, 0.1, 0.1)), ["unit", "2", "(0.1, 0.1, 0.1)"]),
        (lambda: MAGNet(0, 2), ["dims", "0"]),
        (lambda: MAGNet(1, 0), ["channels", "0"]),
        (lambda: FourierNet(1, 2, hidden=0), ["hidden", "0"]),
        (lambda: GaborNet(1, 2, layers=0), ["layers", "0"]),
        (lambda: MLP(1, 2, layers=0), ["layers", "0"]),
    ],
)
def test_invalid_argument_raises(make, parts):
    with pytest.raises(ValueError, match=mentions(*parts)):
        make()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: NJet(1, 2, order=1.5), ["order", "1.5"]),
        (lambda: NJet(2, 2, unit="wide"), ["unit", "2", "'wide'"]),
        (lambda: MAGNet(1, 2, input_scale="fast"), ["input_scale", "'fast'"]),
        (lambda: MAGNet(2, 2, center=(0.0, None)), ["center", "2", "(0.0, None)"]),
    ],
)
def test_argument_of_wrong_type_raises(make, parts):
    with pytest.raises(TypeError, match=mentions(*parts)):
        make()


def test_subclass_without_evaluate_or_reset_parameters_raises():
    class Incomplete(KernelGenerator):
        def __init__(self):
            super().__init__(1, 1)
            self.weight = torch.nn.Parameter(torch.zeros(1))

    with pytest.raises(NotImplementedError, match=r"Incomplete.*evaluate"):
        Incomplete()(torch.zeros(1, 3))
    with pytest.raises(NotImplementedError, match=r"Incomplete.*reset_parameters"):
        Incomplete().reset_parameters()


def test_mlp_with_one_layer_is_linear():
    net = MLP(2, 3, layers=1, dtype=torch.float64)
    grid = grid_of(2, torch.float64)
    torch.testing.assert_close(net(grid), torch.einsum("cd,d...->c...", net.maps[0].weight, grid))


@pytest.mark.parametrize("make", [SIREN, NSIREN])
def test_omega_0_is_in_state_dict_if_learned_or_fixed(make):
    fixed, learned = make(1, 2, layers=4), make(1, 2, layers=4, learn_omega_0=True)
    for net in (fixed, learned):
        assert torch.equal(net.state_dict()["omega_0"], torch.full((3,), 30.0))
    assert "omega_0" not in dict(fixed.named_parameters())
    assert learned.omega_0.requires_grad


def test_nsiren_does_not_multiply_bias_by_omega_0():
    siren, nsiren = SIREN(1, 2, dtype=torch.float64), NSIREN(1, 2, dtype=torch.float64)
    siren.load_state_dict(nsiren.state_dict())
    with torch.no_grad():
        for linear in siren.maps[:-1]:
            linear.bias /= 30.0
    torch.testing.assert_close(siren(grid_of(1)), nsiren(grid_of(1)))


@pytest.mark.parametrize("make", [SIREN, NSIREN])
def test_weight_norm_does_not_change_initial_values(make):
    torch.manual_seed(3)
    plain = make(2, 4)
    torch.manual_seed(3)
    normed = make(2, 4, weight_norm=True)
    torch.testing.assert_close(normed(grid_of(2)), plain(grid_of(2)), rtol=1e-4, atol=1e-5)


def test_isotropic_envelope_equals_anisotropic_with_equal_gammas():
    anisotropic, isotropic = (GaborNet(2, 3, anisotropic=flag) for flag in (True, False))
    state = isotropic.state_dict()
    anisotropic.load_state_dict({**state, "gamma": state["gamma"].expand(-1, -1, 2)})
    assert torch.equal(anisotropic(grid_of(2)), isotropic(grid_of(2)))


def test_theta_rotates_envelopes_about_their_centers():
    net = MAGNet(2, 3, steerable=True, dtype=torch.float64)
    straight = MAGNet(2, 3, dtype=torch.float64)
    state = net.state_dict()
    theta = state.pop("theta")
    straight.load_state_dict(state)
    points = grid_of(2, torch.float64).flatten(1).t()
    with torch.no_grad():
        net.theta.zero_()
        assert torch.equal(net.envelopes(points), straight.envelopes(points))
        net.theta.fill_(0.25)
        straight.gamma.copy_(straight.gamma.flip(-1))
        torch.testing.assert_close(net.envelopes(points), straight.envelopes(points))
        net.theta.copy_(theta)
        before = net.envelopes(points)
        net.theta.add_(1.0)
        torch.testing.assert_close(net.envelopes(points), before)


def test_sum_of_njet_does_not_depend_on_tap_spacing():
    net = NJet(1, 4, order=0, unit=0.1)
    for size in (41, 81, 161):
        net.attach(Placement([Axis(size, False)]))
        values = net(torch.linspace(-1, 1, size)[None])
        torch.testing.assert_close(values.sum(1), net.alpha.squeeze(1))
    assert net.conserves_sum
    assert net.unit == [0.1]


@pytest.mark.parametrize("order", range(5))
def test_njet_is_scaled_derivatives_of_gaussian(order):
    unit, scale = 0.2, 0.5
    net = NJet(1, order + 1, order=order, unit=unit, reach=3.0, dtype=torch.float64)
    with torch.no_grad():
        net.alpha.copy_(torch.eye(order + 1))
        net.scale.fill_(scale)
    x = torch.linspace(-0.6, 0.6, 13, dtype=torch.float64, requires_grad=True)
    sigma = unit * 2**scale
    derivative = torch.exp(-0.5 * (x / sigma) ** 2)
    total = derivative.sum().detach()
    values = net(x[None].detach())
    for n in range(order + 1):
        torch.testing.assert_close(values[n], sigma**n * derivative.detach() / total)
        (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)


def test_njet_is_zero_beyond_its_reach():
    axis = Axis(33, False)
    net = NJet(1, 1, order=0)
    net.attach(Placement([axis]))
    with torch.no_grad():
        net.alpha.fill_(1.0)
    for scale, taps in ((-1.0, 5), (0.0, 7), (0.3, 7), (1.0, 11), (2.0, 19)):  # 2⌈2·2^s + ½⌉ + 1
        with torch.no_grad():
            net.scale.fill_(scale)
        values = net(axis.coordinates(axis.whole, device=torch.device("cpu"), dtype=torch.float32)[None])
        assert values.count_nonzero() == taps
        start, stop = axis.taps_between(*net.bounds(net.size_parameters(), [axis])[0].tolist())
        assert (start, stop) == ((33 - taps) // 2, (33 + taps) // 2)
