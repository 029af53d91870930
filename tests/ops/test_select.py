"""The cost model, and the algorithm that `algorithm="auto"` selects by it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from flexconv.ops import _calibration_cpu, _calibration_cuda, _select, conv1d
from flexconv.ops._cost_model import (
    OPERATION_COUNTS,
    Calibration,
    Problem,
    _transform_multiplications,
    count_dft,
    estimate_times,
)
from flexconv.ops._dft_matrices import matrix_shapes
from flexconv.ops._dft_plan import make_plan
from flexconv.ops._factored import FactoredKernel, KernelBatch
from flexconv.ops._geometry import Geometry
from flexconv.ops._select import compute_precision, fastest_algorithm, override_key, select_algorithm, select_for
from tests.conftest import relative_error

from .test_conv import both


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
def test_selects_expected_algorithm_repeatedly(problem, expected, training):
    x, weight, geometry = problem
    assert {select_algorithm(x, weight.clone().requires_grad_(training), geometry) for _ in range(3)} == {expected}


def test_selection_does_not_depend_on_values():
    x, weight, geometry = centred(2, 4, 8, 96, 33)
    assert select_algorithm(x, weight, geometry) == select_algorithm(x.fill_(torch.nan), weight.zero_(), geometry)


def gpu_problem(dims, batch, channels, size, taps, *, groups=1, half=True, stride=1, rank=None):
    ones = (1,) * dims
    geometry = Geometry((stride,) * dims, ((taps // 2,) * 2,) * dims, ones, groups)
    weight = channels, channels // groups, *(taps,) * dims
    return Problem("cuda", "half" if half else "full", (batch, channels, *(size,) * dims), weight, geometry, rank)


@pytest.mark.parametrize("table", [_calibration_cpu, _calibration_cuda], ids=["cpu", "cuda"])
def test_every_regime_has_coefficients(table):
    device = "cuda" if table is _calibration_cuda else "cpu"
    for (precision, training), coefficients in table.COEFFICIENTS.items():
        for dims, channels, taps, groups in itertools.product((1, 2, 3), (5, 16), (3, 15), (1, 0)):
            problem = gpu_problem(dims, 2, channels, 32, taps, groups=groups or channels)
            problem = problem._replace(device=device, precision=precision)
            assert {"direct", "fft"} <= estimate_times(Calibration(coefficients, {}), problem).keys()
            assert select_for(problem, training) in OPERATION_COUNTS


@pytest.mark.parametrize(
    ("device", "channels", "groups", "counted"),
    [
        ("cuda", 24, 1, 64 * 64),
        ("cuda", 64, 1, 64 * 64),
        ("cuda", 96, 1, 128 * 128),
        ("cuda", 64, 4, 4 * 64 * 64),
        ("cuda", 64, 64, 0),
        ("cpu", 24, 1, 32 * 32),
        ("cpu", 24, 3, 3 * 16 * 16),
        ("cpu", 24, 24, 0),
    ],
)
def test_direct_convolutions_of_few_channels_count_whole_tiles(device, channels, groups, counted):
    problem = gpu_problem(2, 2, channels, 10, 3, groups=groups)._replace(device=device)
    multiplications, _, _, of_tiles = OPERATION_COUNTS["direct"](problem).counts
    positions = 2 * 10 * 10 * 9
    assert multiplications == positions * channels**2 // groups
    assert of_tiles == positions * counted


def test_large_kernels_are_not_direct_on_a_gpu():
    for half, training in itertools.product((False, True), repeat=2):
        assert select_for(gpu_problem(2, 64, 48, 32, 33, half=half), training) != "direct"
        assert select_for(gpu_problem(1, 32, 30, 16000, 15999, half=half), training) != "direct"


def test_shortest_estimate_wins():
    problem = gpu_problem(1, 2, 8, 64, 5)

    def choice(**nanoseconds):
        coefficients = {}
        for name in nanoseconds:
            operations = OPERATION_COUNTS[name](problem)
            coefficients[name] = {operations.regime: (nanoseconds[name], *(0.0,) * len(operations.counts))}
        return fastest_algorithm(Calibration(coefficients, {}), problem)

    assert choice(direct=95.0, fft=100.0, dft=120.0) == "direct"
    assert choice(direct=105.0, fft=100.0, dft=120.0) == "fft"
    assert choice(direct=105.0, fft=100.0, dft=99.0) == "dft"
    assert choice(direct=100.0, fft=100.0) == "direct"


def test_most_similar_override_replaces_estimate():
    problem = gpu_problem(2, 64, 8, 32, 17)
    elsewhere = gpu_problem(2, 64, 8, 32, 15)
    coefficients = _calibration_cuda.COEFFICIENTS["half", True]
    estimated = fastest_algorithm(Calibration(coefficients, {}), problem)
    for name in OPERATION_COUNTS:
        calibration = Calibration(coefficients, {override_key(problem): name, override_key(elsewhere): "elsewhere"})
        assert fastest_algorithm(calibration, problem) == name
        assert fastest_algorithm(calibration, gpu_problem(2, 70, 8, 32, 17)) == name
        assert fastest_algorithm(calibration, gpu_problem(2, 64, 8, 32, 17, stride=2)) != "elsewhere"
    only = Calibration(coefficients, {override_key(problem): "here"})
    assert fastest_algorithm(only, problem) == "here" != estimated
    for other in (
        gpu_problem(2, 128, 8, 32, 17),  # another batch size, channels, groups, outputs, number of axes
        gpu_problem(2, 64, 9, 32, 17),
        gpu_problem(2, 64, 8, 32, 17, groups=8),
        gpu_problem(2, 64, 8, 32, 17, stride=2),
        gpu_problem(1, 64, 8, 32, 17),
    ):
        assert fastest_algorithm(only, other) != "here"


@pytest.mark.parametrize(
    ("size", "taps", "kind"),
    [
        ((20,), (9,), "single"),
        ((8, 9), (5, 3), "single"),
        ((32, 30), (9, 7), "separable"),
        ((6, 5, 8), (5, 1, 3), "separable"),
    ],
)
def test_transform_multiplications_match_matrix_shapes(size, taps, kind):
    plan = plan_of(size, taps, kind)
    first, *others = matrix_shapes(plan.x)
    total, numbers = math.prod(size) * first[0], math.prod(size) // first[1] * first[0]
    for rows, columns in others:
        total, numbers = total + numbers * rows, numbers // columns * rows
    assert _transform_multiplications(plan.x) == total
    assert math.prod(plan.x.lengths) == numbers


def test_two_level_transform_multiplications_match_matrix_shapes():
    spec = plan_of((6000,), (3000,), "two-level").x
    columns, rows = matrix_shapes(spec)
    assert _transform_multiplications(spec) == spec.positions[0].number * columns[0] + math.prod(rows)
    assert math.prod(spec.lengths) == rows[0] * rows[1]


def plan_of(size, taps, kind):
    ones = (1,) * len(size)
    plan = make_plan(size, taps, size, tuple(k // 2 for k in taps), ones, ones, kind)
    assert plan is not None
    return plan


def test_factors_reduce_cost_of_large_kernels():
    dense, factored = (count_dft(gpu_problem(2, 64, 48, 32, 33, rank=rank)).counts for rank in (None, 40))
    assert factored[1] < dense[1] / 10
    assert factored[0] == dense[0]
    assert factored[2:] == dense[2:]


def test_very_long_sequences_have_no_dft_cost():
    problem = gpu_problem(1, 1, 8, 200_000, 99_999)
    assert count_dft(problem) is None
    assert select_for(problem, True) == "fft"


def test_precision_follows_dtype_and_autocast():
    x = torch.empty(1)
    assert compute_precision(x, "cuda") == "full"
    assert compute_precision(x.half(), "cuda") == compute_precision(x.bfloat16(), "cuda") == "half"
    assert compute_precision(x.half(), "cpu") == "full"  # CPUs are calibrated in float32 only
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        assert compute_precision(x, "cuda") == "half"
        assert compute_precision(x.double(), "cuda") == "full"
        torch.set_autocast_dtype("cuda", torch.float32)
        assert compute_precision(x.half(), "cuda") == "full"
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def test_selects_algorithm_for_factored_kernel():
    x, _, geometry = centred(2, 4, 8, 96, 33)
    basis, mix = torch.empty(33, 33, 5), torch.empty(8, 8, 5)
    kernel = FactoredKernel(KernelBatch([lambda dtype: (basis.to(dtype), mix.to(dtype))], torch.float32))
    assert select_algorithm(x, kernel, geometry) == "fft"


def test_selection_for_a_gpu_compiles_for_changing_lengths(monkeypatch):
    def on_a_gpu(x, weight, geometry):
        return select_for(Problem("cuda", "half", tuple(x.shape), tuple(weight.shape), geometry), True)

    monkeypatch.setattr("flexconv.ops._conv.select_algorithm", on_a_gpu)
    overrides = _calibration_cuda.OVERRIDES.get(("half", True), {}) | _calibration_cuda.OVERRIDES["full", False]
    monkeypatch.setitem(_calibration_cuda.OVERRIDES, ("half", True), {(2, 2, 2, 2, 41, 31, 41): "fft", **overrides})

    def conv(x, weight):
        return conv1d(x, weight, padding="causal")

    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    for length in (40, 41, 300, 9000):
        x, weight = torch.randn(2, 2, length), torch.randn(2, 2, 31)
        assert relative_error(compiled(x, weight), conv(x, weight)) < 1e-4


@both
def test_auto_runs_selected_algorithm(monkeypatch, algorithm):
    monkeypatch.setattr("flexconv.ops._conv.select_algorithm", lambda *_: algorithm)
    x, weight = torch.randn(2, 2, 20), torch.randn(2, 2, 7)
    torch.testing.assert_close(conv1d(x, weight), conv1d(x, weight, algorithm=algorithm), rtol=0, atol=0)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("taps", [3, 5, 7, 9])
def test_small_convolutions_of_eager_programs_are_direct(half, taps):
    problem = gpu_problem(2, 64, 48, 32, taps, half=half)
    assert select_for(problem, True, eager=True) == "direct"


def test_large_convolutions_of_eager_programs_are_not_direct():
    for half in (False, True):
        assert select_for(gpu_problem(2, 64, 48, 32, 33, half=half), True, eager=True) != "direct"
        assert select_for(gpu_problem(1, 32, 30, 16000, 15999, half=half), True, eager=True) != "direct"


def test_captured_steps_do_not_count_the_time_of_the_host(monkeypatch):
    found = []
    monkeypatch.setattr(_select, "_cached_select_for", lambda *_, eager, **__: found.append(eager))
    x = torch.empty(1, 1, 8, 8, device="meta")
    monkeypatch.setattr(_select, "Problem", lambda *given: given)
    monkeypatch.setattr(_select, "compute_precision", lambda *_: "full")

    class OnGpu:
        device = torch.device("cuda")
        shape, dtype, requires_grad = x.shape, x.dtype, False

    select_algorithm(OnGpu(), OnGpu(), None)
    with _select.launches_are_free():
        select_algorithm(OnGpu(), OnGpu(), None)
    select_algorithm(x, OnGpu(), None)
    assert found == [True, False, False]
