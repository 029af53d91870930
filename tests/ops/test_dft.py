"""Convolution by DFT matrices: every geometry, kind of transform, dtype and way to differentiate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from flexconv.bench.timing import as_in_training
from flexconv.ops import _dft, _dft_plan, conv1d
from flexconv.ops._dft import dft_conv
from flexconv.ops._dft_cache import MatrixCache
from flexconv.ops._dft_matrices import Positions, TransformSpec, build_matrices, matrix_shapes, power_of_two_scale
from flexconv.ops._dft_plan import cached_plan, make_plan, shortest_circular_length
from flexconv.ops._dft_transform import analyse
from flexconv.ops._direct import direct_conv
from flexconv.ops._fft import fft_conv
from flexconv.ops._geometry import Geometry, resolve_padding
from flexconv.ops._operators import custom_operators
from flexconv.ops._reference import reference_conv
from tests.conftest import relative_error

from .test_conv import error, problems

KINDS = {
    1: ("single", "separable", "two-level"),
    2: ("single", "separable"),
    3: ("single", "separable"),
}
#: for output, input gradient and kernel gradient, relative to float64 with the same rounded inputs
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}

#: size, taps, groups, fan_in, multiplier, kind
CASES = [
    ((64,), (64,), 1, 4, 4, "single"),
    ((64,), (64,), 1, 4, 4, "two-level"),
    ((200,), (33,), 2, 2, 3, "two-level"),
    ((20, 24), (9, 7), 1, 6, 4, "single"),
    ((20, 24), (9, 7), 1, 6, 4, "separable"),
    ((20, 24), (9, 7), 3, 2, 2, "separable"),
    ((16, 16), (17, 17), 6, 1, 1, "single"),
    ((16, 16), (17, 17), 6, 1, 1, "separable"),
    ((100,), (100,), 6, 1, 1, "two-level"),
    ((16, 16), (5, 5), 6, 1, 2, "separable"),
    ((30, 32), (33, 33), 2, 2, 2, "separable"),
    ((6, 8, 7), (3, 5, 3), 1, 2, 3, "single"),
    ((6, 8, 7), (3, 5, 3), 1, 2, 3, "separable"),
]


def geometry_of(size, taps, groups, stride=1, dilation=1):
    ones = (1,) * len(size)
    padding = "causal" if len(size) == 1 else "same"
    dilation = tuple(dilation * each for each in ones)
    return Geometry(tuple(stride * each for each in ones), resolve_padding(padding, taps, dilation), dilation, groups)


def make(size, taps, groups, fan_in, multiplier, dtype=torch.float64, batch=3):
    shapes = (batch, groups * fan_in, *size), (groups * multiplier, fan_in, *taps), (groups * multiplier,)
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def with_gradients(conv, leaves, geometry, **options):
    """Return output and gradients. The cotangent is the same for every dtype and algorithm."""
    y = conv(*leaves, geometry, **options)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, *torch.autograd.grad(y, leaves, cotangent)


@pytest.mark.parametrize("dims", [1, 2, 3])
@given(data=st.data())
def test_equals_torch_for_any_geometry_and_kind(dims, data):
    problem = data.draw(problems(dims))
    tensors = problem.tensors()
    geometry = Geometry(problem.stride, problem.pads, problem.dilation, problem.groups)
    for kind in (None, *KINDS[dims]):
        assert error(dft_conv(*tensors, geometry, kind=kind), problem.truth(*tensors)) < 1e-10, kind


@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=8)
@given(data=st.data())
def test_equals_reference(dims, data):
    problem = data.draw(problems(dims))
    tensors = problem.tensors()
    geometry = Geometry(problem.stride, problem.pads, problem.dilation, problem.groups)
    assert error(dft_conv(*tensors, geometry), reference_conv(*tensors, geometry)) < 1e-10


@settings(max_examples=30)
@given(
    length=st.integers(1, 400),
    taps=st.integers(1, 400),
    pads=st.tuples(st.integers(-20, 300), st.integers(-20, 300)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
)
def test_two_level_transform_equals_direct_convolution(length, taps, pads, stride, dilation):
    pads = pads[0], max(pads[1], dilation * (taps - 1) + 1 - length - pads[0])  # at least one output
    geometry = Geometry((stride,), (pads,), (dilation,), 1)
    tensors = torch.rand(2, 2, length).double(), torch.rand(3, 2, taps).double(), None
    assert error(dft_conv(*tensors, geometry, kind="two-level"), direct_conv(*tensors, geometry)) < 1e-10


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_in_every_dtype(case, dtype):
    *shape, kind = case
    leaves = make(*shape, dtype)
    geometry = geometry_of(*shape[:3])
    results = with_gradients(dft_conv, leaves, geometry, kind=kind)
    truths = with_gradients(direct_conv, [leaf.detach().double().requires_grad_() for leaf in leaves], geometry)
    assert [each.dtype for each in results] == [dtype] * 4
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", ["single", "separable"])
def test_float16_does_not_overflow_on_large_images_with_a_mean(kind):
    x, weight = torch.rand(2, 4, 40, 40) * 100, torch.rand(4, 4, 5, 5) / 100
    geometry = geometry_of((40, 40), (5, 5), 1)
    y = dft_conv(x.half(), weight.half(), None, geometry, kind=kind)
    assert relative_error(y, direct_conv(x.double(), weight.double(), None, geometry)) < 2e-3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck(case):
    size, taps, groups, fan_in, multiplier, kind = case
    size, taps = tuple(min(n, 5) for n in size), tuple(min(k, 3) for k in taps)
    geometry = geometry_of(size, taps, groups, stride=2, dilation=2)
    leaves = make(size, taps, groups, min(fan_in, 2), min(multiplier, 2), batch=2)
    assert torch.autograd.gradcheck(lambda *each: dft_conv(*each, geometry, kind=kind), leaves, fast_mode=True)


@pytest.mark.parametrize("kind", ["single", "two-level"])
@pytest.mark.parametrize("groups", [1, 2])
def test_gradgradcheck(kind, groups):
    leaves = make((5,), (3,), groups, 2 // groups, 2, batch=2)
    geometry = geometry_of((5,), (3,), groups)
    assert torch.autograd.gradgradcheck(lambda *each: dft_conv(*each, geometry, kind=kind), leaves)


def test_computes_gradients_with_one_frozen_operand():
    x, weight, _ = make((9,), (5,), 1, 2, 2)
    geometry = geometry_of((9,), (5,), 1)
    for frozen, other in ((x, weight), (weight, x)):
        frozen.requires_grad_(False)
        (gradient,) = torch.autograd.grad(dft_conv(x, weight, None, geometry).sum(), other)
        (truth,) = torch.autograd.grad(direct_conv(x, weight, None, geometry).sum(), other)
        assert relative_error(gradient, truth) < 1e-12
        frozen.requires_grad_()


@pytest.mark.parametrize(
    ("x", "weight", "y", "expected"),
    [
        (Positions(32, 16, 1), Positions(33, 0, 1), Positions(32, 0, 1), 48),  # centered: image plus half a kernel
        (Positions(32, 31, 1), Positions(32, 0, 1), Positions(32, 0, 1), 63),  # causal
        (Positions(32, 0, 1), Positions(5, 0, 1), Positions(28, 0, 1), 32),  # valid
        (Positions(4, 15, 1), Positions(31, 0, 1), Positions(4, 0, 1), 19),  # shorter than the kernel
        (Positions(1, 0, 1), Positions(1, 0, 1), Positions(1, 0, 1), 1),
    ],
)
def test_shortest_circular_length(x, weight, y, expected):
    assert shortest_circular_length(x, weight, y) == expected


@pytest.mark.parametrize("lengths", [(8,), (2,), (6, 4), (5, 6), (4, 2, 6)])
def test_transform_of_a_unit_impulse_gives_the_identity(lengths):
    (matrix,) = build_matrices(
        TransformSpec("single", lengths, tuple(Positions(n, 3, 1) for n in lengths), kernel=False)
    )
    (impulse,) = build_matrices(TransformSpec("single", lengths, (Positions(1, 0, 1),) * len(lengths), kernel=True))
    real, imaginary = impulse.reshape(2, -1)
    np.testing.assert_array_equal(imaginary, 0)
    np.testing.assert_allclose(matrix.T @ (np.tile(real, 2)[:, None] * matrix), np.eye(matrix.shape[1]), atol=1e-12)
    assert np.linalg.norm(matrix, 2) <= 1 + 1e-12  # spectra are no larger than signals
    assert matrix.shape[0] == matrix.shape[1]  # no redundant frequencies


@pytest.mark.parametrize("kind", ["separable", "two-level"])
def test_transforms_in_several_products_equal_single_matrix(kind):
    positions = (Positions(5, 2, 1), Positions(7, 3, 2)) if kind == "separable" else (Positions(40, 3, 1),)
    for kernel in (False, True):
        spec = TransformSpec(kind, (6, 8), positions, kernel)
        one = TransformSpec("single", (6, 8) if kind == "separable" else (48,), positions, kernel)
        x = torch.randn(2, 3, *(p.number for p in positions)).double()
        several, single = (
            analyse(x, [torch.from_numpy(m) for m in build_matrices(each)], each.kind) for each in (spec, one)
        )
        if kind == "two-level":  # whose frequencies are k + 6 l with k from 0 to 2
            order = [k + 6 * column for k in range(3) for column in range(8)]
            full = torch.cat([single, single.flip(1) * torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)], 1)
            factor = power_of_two_scale(48) / (power_of_two_scale(6) * power_of_two_scale(8))
            single = full[:, order] / (1 / factor**2 if kernel else factor)
        assert relative_error(several, single) < 1e-12


@pytest.mark.parametrize(
    ("size", "taps", "kind"),
    [
        ((1024,), (1024,), "single"),
        ((16000,), (16000,), "two-level"),
        ((100_000,), (100_000,), None),
        ((8, 8), (5, 5), "single"),
        ((96, 96), (97, 97), "separable"),
        ((32, 32, 32), (5, 5, 5), "separable"),
        ((5000, 4), (3, 3), None),
    ],
)
def test_size_determines_kind_of_transform(size, taps, kind):
    geometry = geometry_of(size, taps, 1)
    plan = make_plan(size, taps, size, tuple(left for left, _ in geometry.pads), geometry.stride, geometry.dilation)
    assert (plan and plan.x.kind) == kind


def test_uses_fft_beyond_maximum_length(monkeypatch):
    monkeypatch.setattr(_dft_plan, "MAX_LENGTH", 8)
    monkeypatch.setattr(_dft_plan, "MAX_TWO_LEVEL_LENGTH", 16)
    cached_plan.cache_clear()
    tensors = torch.randn(2, 2, 40), torch.randn(2, 2, 40), None
    geometry = geometry_of((40,), (40,), 1)
    assert torch.equal(dft_conv(*tensors, geometry), fft_conv(*tensors, geometry))
    cached_plan.cache_clear()


def test_empty_batch_and_input_that_is_never_read():
    weight = torch.randn(3, 2, 4)
    assert dft_conv(torch.randn(0, 2, 9), weight, None, geometry_of((9,), (4,), 1)).shape == (0, 3, 9)
    y = dft_conv(torch.randn(1, 2, 3), weight, torch.ones(3), Geometry((1,), ((-5, 8),), (1,), 1))
    assert torch.equal(y, torch.ones(1, 3, 3))


def test_accepts_channels_last_and_transposed_inputs():
    x, weight, bias = make((9, 8), (5, 5), 1, 4, 3)
    geometry = geometry_of((9, 8), (5, 5), 1)
    y = dft_conv(x, weight, bias, geometry)
    assert relative_error(dft_conv(x.to(memory_format=torch.channels_last), weight, bias, geometry), y) < 1e-14
    assert relative_error(dft_conv(x.mT.contiguous().mT, weight, bias, geometry), y) < 1e-14


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_low_precision_output_and_float32_gradients(dtype):
    leaves = [leaf.detach().float().requires_grad_() for leaf in make((12, 12), (5, 5), 1, 3, 3)]
    geometry = geometry_of((12, 12), (5, 5), 1)
    with torch.autocast("cpu", dtype):
        y, *gradients = with_gradients(dft_conv, leaves, geometry)
        assert dft_conv(*(leaf.double() for leaf in leaves), geometry).dtype == torch.float64
    assert y.dtype == dtype
    assert [each.dtype for each in gradients] == [torch.float32] * 3
    truths = with_gradients(direct_conv, leaves, geometry)
    assert max(map(relative_error, (y, *gradients), truths)) < 1e-2


# inductor imports a torch module that uses torch.jit.script_method
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "kind"), [("aot_eager", "single"), ("aot_eager", "two-level"), ("inductor", "single")]
)
def test_compiles_in_one_graph_for_changing_shapes_with_gradients(backend, kind):
    def conv(x, weight, bias, geometry):
        return dft_conv(x, weight, bias, geometry, kind=kind).relu()

    compiled = torch.compile(conv, fullgraph=True, backend=backend)
    for batch, length in ((2, 40), (4, 41))[: 2 if backend == "aot_eager" else 1]:
        leaves = make((length,), (9,), 2, 2, 1, torch.float32, batch)
        geometry = geometry_of((length,), (9,), 2)
        results, truths = (with_gradients(f, leaves, geometry) for f in (compiled, conv))
        assert max(map(relative_error, results, truths)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_with_dynamic_sizes(dtype):
    compiled = torch.compile(dft_conv, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (40, 41):
        leaves = make((length,), (9,), 2, 2, 1, dtype)
        geometry = geometry_of((length,), (9,), 2)
        results, truths = (with_gradients(f, leaves, geometry) for f in (compiled, dft_conv))
        assert max(map(relative_error, results, truths)) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_one_graph_serves_all_batch_sizes():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    _, weight, bias = make((40,), (9,), 2, 2, 1)

    def conv(x):
        return conv1d(x, weight, bias, groups=2, algorithm="dft")

    compiled = torch.compile(conv, fullgraph=True, dynamic=True, backend=backend)
    for batch in (5, 6, 9):
        x = torch.randn(batch, 4, 40, dtype=torch.float64)
        assert relative_error(compiled(x), conv(x)) < 1e-12
    assert len(graphs) == 1


def opcheck(operator, arguments):
    """Run all checks except tracing, which is slow and covered by the compilation tests."""
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(operator, arguments, test_utils=checks)


@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_operators_pass_opcheck(case):
    size, taps, groups, fan_in, multiplier, kind = case
    x, *_ = make(size, taps, groups, fan_in, multiplier)
    geometry = geometry_of(size, taps, groups)
    plan = make_plan(
        size, taps, size, tuple(left for left, _ in geometry.pads), geometry.stride, geometry.dilation, kind
    )
    matrices = _dft._matrices(plan.x, x, x.dtype)
    spectra = custom_operators["dft_analyse"](x, matrices, kind).detach()
    opcheck(custom_operators["dft_analyse"], (x, matrices, kind))
    opcheck(custom_operators["dft_synthesise"], (spectra.requires_grad_(), matrices, x.shape[2:], kind))


class Layer(torch.nn.Module):
    def forward(self, x, weight):
        return dft_conv(x, weight, None, geometry_of((30, 30), (5, 5), 1))


def test_exports_plain_convolution_with_dynamic_batch_and_size():
    x, weight = torch.randn(3, 2, 30, 30), torch.randn(4, 2, 5, 5)
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=3)}
    program = torch.export.export(Layer(), (x, weight), dynamic_shapes=(sizes, None))
    x = torch.randn(2, 2, 17, 30)
    assert relative_error(program.module()(x, weight), Layer()(x, weight)) < 1e-5


@pytest.mark.parametrize("kind", ["single", "separable"])
def test_shapes_on_meta_and_fake_tensors(kind):
    geometry = geometry_of((30, 30), (5, 5), 1, stride=2)
    meta = dft_conv(*(torch.empty(s, device="meta") for s in ((2, 2, 30, 30), (4, 2, 5, 5))), None, geometry, kind=kind)
    with FakeTensorMode():
        fake = dft_conv(torch.empty(2, 2, 30, 30), torch.empty(4, 2, 5, 5), None, geometry, kind=kind)
    assert meta.shape == fake.shape == (2, 4, 15, 15)
    real = dft_conv(torch.ones(2, 2, 30, 30), torch.ones(4, 2, 5, 5), None, geometry, kind=kind)
    assert real[0, 0, 5, 5].item() == pytest.approx(50, rel=1e-5)  # no fake matrix was cached


def test_function_transforms_use_fft():
    x, weight = torch.randn(3, 2, 4, 15).double(), torch.randn(4, 4, 5).double()
    geometry = geometry_of((15,), (5,), 1)

    def conv(x, weight):
        return dft_conv(x, weight, None, geometry)

    loop = torch.stack([conv(each, weight) for each in x])
    assert relative_error(torch.vmap(conv, (0, None))(x, weight), loop) < 1e-12
    gradient = torch.func.grad(lambda w: conv(x[0], w).square().sum())(weight)
    leaf = weight.clone().requires_grad_()
    conv(x[0], leaf).square().sum().backward()
    assert relative_error(gradient, leaf.grad) < 1e-12


def test_cache_is_bounded_and_drops_least_recently_used():
    specs = [TransformSpec("single", (n,), (Positions(n, 0, 1),), kernel=False) for n in (16, 24, 32)]
    needed = [8 * n * n for n in (16, 24, 32)]
    cache = MatrixCache(limit=sum(needed) - 1)
    first, second = (cache(spec, torch.float64, torch.device("cpu")) for spec in specs[:2])
    assert cache(specs[0], torch.float64, torch.device("cpu")) is first
    cache(specs[2], torch.float64, torch.device("cpu"))
    assert (len(cache), cache.used) == (2, needed[0] + needed[2])
    assert cache(specs[0], torch.float64, torch.device("cpu")) is first
    assert cache(specs[1], torch.float64, torch.device("cpu")) is not second


def test_matrix_shapes():
    spec = TransformSpec("separable", (8, 6), (Positions(5, 1, 1), Positions(4, 1, 1)), kernel=True)
    assert matrix_shapes(spec) == [(6, 4), (16, 10)]


def test_matrices_from_inference_mode_can_be_used_in_training():
    geometry = geometry_of((13,), (5,), 1)
    x, weight, _ = make((13,), (5,), 1, 1, 1)
    with torch.inference_mode():
        dft_conv(x, weight, None, geometry)
    dft_conv(x, weight, None, geometry).sum().backward()
    assert x.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_captured_as_cuda_graph(case, dtype):
    *shape, kind = case
    leaves = [leaf.detach().cuda().to(dtype).requires_grad_() for leaf in make(*shape)]
    geometry = geometry_of(*shape[:3])
    with torch.no_grad():  # otherwise gradients would accumulate on the stream of this call
        cotangent = torch.randn_like(dft_conv(*leaves, geometry, kind=kind))

    def step():
        y = dft_conv(*leaves, geometry, kind=kind)
        return y, *torch.autograd.grad(y, leaves, cotangent)

    results = as_in_training(step, torch.device("cuda"))()
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = direct_conv(*double, geometry)
    truths = y, *torch.autograd.grad(y, double, cotangent.double())
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_refuses_to_create_matrices_during_capture():
    x, weight = torch.randn(1, 1, 21, device="cuda"), torch.randn(1, 1, 19, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1  # an empty capture warns
        with pytest.raises(RuntimeError, match="once before the capture"):
            dft_conv(x, weight, None, geometry_of((21,), (19,), 1))


def test_kernel_sizes_share_the_matrices_of_the_data():
    plans = [
        make_plan((32, 32), taps, (32, 32), tuple(k // 2 for k in taps), (1, 1), (1, 1))
        for taps in ((5, 7), (7, 5), (7, 7))
    ]
    assert len({spec for plan in plans for spec in (plan.x, plan.y)}) == 1
