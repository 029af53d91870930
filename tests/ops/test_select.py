"""Which algorithm, how long a transform, and what torch's compiler, exporter and function transforms make of it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexconv.ops import _rates_cpu, _rates_cuda, conv1d, conv2d
from flexconv.ops._circular import _correlate, _opaque
from flexconv.ops._dft import make_plan
from flexconv.ops._dft_matrices import shapes
from flexconv.ops._factored import FactoredKernel, KernelBatch
from flexconv.ops._fft import circular_sizes, fast_length
from flexconv.ops._geometry import Geometry
from flexconv.ops._select import Prices, _pick, cheapest, estimates, landmark, pick, precision
from flexconv.ops._work import WORK, Problem, _multiplications, dft_work
from tests.conftest import relative_error

from .test_conv import both


def is_fast(n):
    if n == 1:
        return True
    if n % 2:
        return False
    for prime in (2, 3, 5, 7):
        while n % prime == 0:
            n //= prime
    return n == 1


def test_fast_length_is_the_smallest_fast_one():
    fast = [n for n in range(1, 2500) if is_fast(n)]
    for minimum in range(1, 2001):
        assert fast_length(minimum) == next(n for n in fast if n >= minimum)


@given(minimum=st.integers(1, 10**9))
def test_fast_length_is_fast_and_long_enough_at_any_size(minimum):
    length = fast_length(minimum)
    assert length >= minimum
    assert is_fast(length)
    assert length <= 1.1 * minimum + 1


@pytest.mark.parametrize(
    ("length", "taps", "pads", "dilation", "expected"),
    [
        (32, 33, (16, 16), 1, 48),  # and not the 64 of a full linear convolution
        (32, 17, (16, 16), 2, 48),
        (31, 16, (15, 0), 1, 48),
        (31, 16, (0, 15), 1, 48),
        (7, 1, (0, 0), 1, 8),
        (1, 1, (0, 0), 1, 1),
        (4, 31, (15, 15), 1, 32),  # the kernel has to fit
    ],
)
def test_circular_length_covers_the_input_one_padding_and_the_kernel(length, taps, pads, dilation, expected):
    assert circular_sizes((length,), (taps,), (pads,), (dilation,)) == (expected,)


def centred(dims, batch, channels, size, taps):
    x, weight = torch.empty(batch, channels, *[size] * dims), torch.empty(channels, channels, *[taps] * dims)
    return x, weight, Geometry((1,) * dims, ((taps // 2,) * 2,) * dims, (1,) * dims, 1)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (centred(1, 8, 16, 128, 3), "direct"),
        (centred(2, 8, 16, 96, 3), "direct"),
        (centred(3, 2, 8, 16, 3), "direct"),
        (centred(2, 8, 16, 96, 33), "fft"),
        (centred(1, 8, 16, 8192, 8191), "fft"),
        (centred(2, 0, 16, 96, 33), "direct"),
        (centred(1, 0, 16, 8192, 8191), "direct"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_the_choice_is_the_expected_one_every_time(problem, expected, training):
    x, weight, geometry = problem
    assert {pick(x, weight.clone().requires_grad_(training), geometry) for _ in range(3)} == {expected}


def test_the_choice_does_not_depend_on_values():
    x, weight, geometry = centred(2, 4, 8, 96, 33)
    assert pick(x, weight, geometry) == pick(x.fill_(torch.nan), weight.zero_(), geometry)


def gpu_problem(dims, batch, channels, size, taps, *, groups=1, half=True, stride=1, rank=None):
    ones = (1,) * dims
    geometry = Geometry((stride,) * dims, ((taps // 2,) * 2,) * dims, ones, groups)
    weight = channels, channels // groups, *(taps,) * dims
    return Problem("cuda", "half" if half else "full", (batch, channels, *(size,) * dims), weight, geometry, rank)


@pytest.mark.parametrize("table", [_rates_cpu, _rates_cuda], ids=["cpu", "cuda"])
def test_every_convolution_has_a_price(table):
    device = "cuda" if table is _rates_cuda else "cpu"
    for (lowered, training), rates in table.RATES.items():
        for dims, channels, taps, groups in itertools.product((1, 2, 3), (5, 16), (3, 15), (1, 0)):
            problem = gpu_problem(dims, 2, channels, 32, taps, groups=groups or channels)
            problem = problem._replace(device=device, precision=lowered)
            assert {"direct", "fft"} <= estimates(Prices(rates, {}), problem).keys()
            assert _pick(problem, training) in WORK


def test_a_large_kernel_is_not_convolved_tap_by_tap_on_a_gpu():
    for half, training in itertools.product((False, True), repeat=2):
        assert _pick(gpu_problem(2, 64, 48, 32, 33, half=half), training) != "direct"
        assert _pick(gpu_problem(1, 32, 30, 16000, 15999, half=half), training) != "direct"


def test_the_least_estimate_wins_and_direct_loses_a_tie():
    problem = gpu_problem(1, 2, 8, 64, 5)

    def choice(**nanoseconds):
        asked = {name: WORK[name](problem) for name in nanoseconds}
        rates = {name: {work.regime: (nanoseconds[name], *(0.0,) * len(work.units))} for name, work in asked.items()}
        return cheapest(Prices(rates, {}), problem)

    assert choice(direct=80.0, fft=100.0, dft=120.0) == "direct"
    assert choice(direct=95.0, fft=100.0, dft=120.0) == "fft"
    assert choice(direct=95.0, fft=100.0, dft=99.0) == "dft"
    assert choice(direct=95.0, fft=100.0) == "fft"


def test_the_nearest_measurement_overrules_the_estimate():
    problem = gpu_problem(2, 64, 8, 32, 17)
    elsewhere = gpu_problem(2, 64, 8, 32, 15)
    rates = _rates_cuda.RATES["half", True]
    estimated = cheapest(Prices(rates, {}), problem)
    for name in WORK:
        prices = Prices(rates, {landmark(problem): name, landmark(elsewhere): "elsewhere"})
        assert cheapest(prices, problem) == name
        assert cheapest(prices, gpu_problem(2, 70, 8, 32, 17)) == name
        assert cheapest(prices, gpu_problem(2, 64, 8, 32, 17, stride=2)) != "elsewhere"
    only = Prices(rates, {landmark(problem): "here"})
    assert cheapest(only, problem) == "here" != estimated
    for other in (
        gpu_problem(2, 128, 8, 32, 17),  # not the same batch, channels, groups, outputs, axes
        gpu_problem(2, 64, 9, 32, 17),
        gpu_problem(2, 64, 8, 32, 17, groups=8),
        gpu_problem(2, 64, 8, 32, 17, stride=2),
        gpu_problem(1, 64, 8, 32, 17),
    ):
        assert cheapest(only, other) != "here"


@pytest.mark.parametrize(
    ("size", "taps", "style"),
    [((20,), (9,), "whole"), ((8, 9), (5, 3), "whole"), ((32, 30), (9, 7), "axes"), ((6, 5, 8), (5, 1, 3), "axes")],
)
def test_multiplications_of_a_transform_are_those_of_its_matrices(size, taps, style):
    plan = planned(size, taps, style)
    first, *others = shapes(plan.x)
    total, numbers = math.prod(size) * first[0], math.prod(size) // first[1] * first[0]
    for rows, columns in others:
        total, numbers = total + numbers * rows, numbers // columns * rows
    assert _multiplications(plan.x) == total
    assert math.prod(plan.x.circles) == numbers


def test_multiplications_of_a_long_transform_are_those_of_its_matrices():
    recipe = planned((6000,), (3000,), "long").x
    down, across = shapes(recipe)
    assert _multiplications(recipe) == recipe.points[0].number * down[0] + math.prod(across)
    assert math.prod(recipe.circles) == across[0] * across[1]


def planned(size, taps, style):
    ones = (1,) * len(size)
    plan = make_plan(size, taps, size, tuple(k // 2 for k in taps), ones, ones, style)
    assert plan is not None
    return plan


def test_factors_make_large_kernels_cheap():
    whole, factors = (dft_work(gpu_problem(2, 64, 48, 32, 33, rank=rank)).units for rank in (None, 40))
    assert factors[1] < whole[1] / 10
    assert factors[0] == whole[0]
    assert factors[2:] == whole[2:]


def test_a_sequence_too_long_for_matrices_has_no_dft():
    problem = gpu_problem(1, 1, 8, 200_000, 99_999)
    assert dft_work(problem) is None
    assert _pick(problem, True) == "fft"


def test_precision_is_the_one_computed_in():
    x = torch.empty(1)
    assert precision(x, "cuda") == "full"
    assert precision(x.half(), "cuda") == precision(x.bfloat16(), "cuda") == "half"
    assert precision(x.half(), "cpu") == "full"  # prices of a CPU know no other
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        assert precision(x, "cuda") == "half"
        assert precision(x.double(), "cuda") == "full"
        torch.set_autocast_dtype("cuda", torch.float32)
        assert precision(x.half(), "cuda") == "full"
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def test_a_kernel_by_its_factors_is_picked_for_like_any_other():
    x, _, geometry = centred(2, 4, 8, 96, 33)
    basis, mix = torch.empty(33, 33, 5), torch.empty(8, 8, 5)
    assert (
        pick(x, FactoredKernel(KernelBatch([lambda dtype: (basis.to(dtype), mix.to(dtype))], torch.float32)), geometry)
        == "fft"
    )


def test_the_choice_for_a_gpu_compiles_for_changing_lengths(monkeypatch):
    def on_a_gpu(x, weight, geometry):
        return _pick(Problem("cuda", "half", tuple(x.shape), tuple(weight.shape), geometry), True)

    monkeypatch.setattr("flexconv.ops._conv.pick", on_a_gpu)
    known = _rates_cuda.SURPRISES.get(("half", True), {}) | _rates_cuda.SURPRISES["full", False]  # also several
    monkeypatch.setitem(_rates_cuda.SURPRISES, ("half", True), {(2, 2, 2, 2, 41, 31, 41): "fft", **known})

    def conv(x, weight):
        return conv1d(x, weight, padding="causal")

    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    for length in (40, 41, 300, 9000):
        x, weight = torch.randn(2, 2, length), torch.randn(2, 2, 31)
        assert relative_error(compiled(x, weight), conv(x, weight)) < 1e-4


@both
def test_auto_computes_what_it_picked(monkeypatch, algorithm):
    monkeypatch.setattr("flexconv.ops._conv.pick", lambda *_: algorithm)
    x, weight = torch.randn(2, 2, 20), torch.randn(2, 2, 7)
    torch.testing.assert_close(conv1d(x, weight), conv1d(x, weight, algorithm=algorithm), rtol=0, atol=0)


# torch's own: inductor imports a module that scripts
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("algorithm", ["fft", "auto"])
def test_compiles_in_one_graph(algorithm):
    def conv(x, weight, bias):
        return conv1d(x, weight, bias, padding="causal", algorithm=algorithm)

    tensors = torch.randn(2, 2, 40), torch.randn(4, 2, 5), torch.randn(4)
    assert relative_error(torch.compile(conv, fullgraph=True)(*tensors), conv(*tensors)) < 1e-5


@pytest.mark.parametrize(("algorithm", "lengths"), [("fft", (40, 41, 77)), ("auto", (40, 41, 9000))])
def test_compiles_for_changing_lengths_with_gradients(algorithm, lengths):
    def loss(x, weight, bias):
        return conv1d(x, weight, bias, padding="causal", groups=2, algorithm=algorithm).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for length in lengths:
        leaves = [torch.randn(shape, requires_grad=True) for shape in [(2, 2, length), (2, 1, 999), (2,)]]
        results, truths = (torch.autograd.grad(f(*leaves), leaves) for f in (compiled, loss))
        assert max(map(relative_error, results, truths)) < 1e-5


@pytest.mark.parametrize(
    ("size", "batch", "groups", "fan_in", "multiplier"),
    [
        ((9,), 2, 1, 2, 3),
        ((9,), 2, 2, 1, 2),
        ((9,), 1, 2, 2, 1),
        ((6, 5), 2, 2, 2, 2),
        ((6, 5), 1, 3, 1, 1),
        ((3, 4, 5), 2, 2, 1, 2),
    ],
)
def test_what_compilers_see_as_one_operation_is_the_eager_code(size, batch, groups, fan_in, multiplier):
    x = torch.randn(batch, *size, groups * fan_in, dtype=torch.float64).movedim(-1, 1).requires_grad_()
    taps = [n - 1 for n in size]
    weight = torch.randn(groups * multiplier, fan_in, *taps, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(batch, groups * multiplier, *size, dtype=torch.float64)

    def with_gradients(correlate):
        y = correlate(x, weight, groups)
        return y, *torch.autograd.grad(y, (x, weight), cotangent)

    truths = with_gradients(_correlate)
    for opaque in (_opaque, torch.compile(_opaque, fullgraph=True, backend="aot_eager")):
        assert max(map(relative_error, with_gradients(opaque), truths)) < 1e-10
    torch.library.opcheck(_opaque, (x, weight, groups))


class LargeKernel(torch.nn.Module):
    def __init__(self, stride=1, padding="same"):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(4, 2, 33, 33)), torch.nn.Parameter(torch.randn(4))
        self.options = {"stride": stride, "padding": padding, "groups": 2}

    def forward(self, x):
        return conv2d(x, self.weight, self.bias, **self.options)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": ("causal", "same")}])
def test_exports_without_fft_for_any_batch_and_size(options):
    model, x = LargeKernel(**options), torch.randn(3, 4, 64, 60)
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("h", min=3), 3: torch.export.Dim("w", min=3)}
    program = torch.export.export(model, (x,), dynamic_shapes=({**sizes},))
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "aten.conv2d.default" in operators
    assert not any("fft" in name for name in operators)
    for shape in [(3, 4, 64, 60), (1, 4, 9, 100)]:
        x = torch.randn(shape)
        assert relative_error(program.module()(x), model(x)) < 1e-5


@both
@pytest.mark.parametrize("groups", [1, 2])
def test_func_grad_equals_autograd(algorithm, groups):
    def loss(weight, x):
        return conv1d(x, weight, padding="causal", groups=groups, algorithm=algorithm).square().sum()

    x, weight = torch.randn(2, 4, 15).double(), torch.randn(4, 4 // groups, 6, dtype=torch.float64, requires_grad=True)
    (truth,) = torch.autograd.grad(loss(weight, x), weight)
    assert relative_error(torch.func.grad(loss)(weight.detach(), x), truth) < 1e-10


@both
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("groups", [1, 4])
def test_vmap_equals_a_loop(algorithm, in_dims, groups):
    def conv(x, weight):
        return conv1d(x, weight, dilation=2, stride=2, groups=groups, algorithm=algorithm)

    x, weight = torch.randn(3, 2, 4, 15).double(), torch.randn(3, 4, 4 // groups, 5).double()
    x, weight = (each if dim == 0 else each[0] for each, dim in zip((x, weight), in_dims, strict=True))
    loop = [conv(*(e if d is None else e[i] for e, d in zip((x, weight), in_dims, strict=True))) for i in range(3)]
    assert relative_error(torch.vmap(conv, in_dims=in_dims)(x, weight), torch.stack(loop)) < 1e-10
