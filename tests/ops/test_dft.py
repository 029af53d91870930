"""The transform as a matrix product: right for every geometry, style, dtype and kind of differentiation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from flexconv.bench._timing import as_in_training
from flexconv.ops import _dft, conv1d
from flexconv.ops._dft import dft_conv, make_plan, shortest_circle
from flexconv.ops._dft_matrices import MatrixCache, Points, Recipe, build, scale, shapes
from flexconv.ops._dft_transform import analyse
from flexconv.ops._direct import direct_conv
from flexconv.ops._fft import fft_conv
from flexconv.ops._geometry import Geometry, resolve_padding
from flexconv.ops._reference import reference_conv
from flexconv.ops._steps import _opaque
from tests.conftest import relative_error

from .test_conv import error, problems

STYLES = {
    1: ("whole", "axes", "long"),
    2: ("whole", "axes"),
    3: ("whole", "axes"),
}
#: of output, input gradient and kernel gradient, against float64 with the same rounded inputs
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}

#: size, taps, groups, fan_in, multiplier, style
CASES = [
    ((64,), (64,), 1, 4, 4, "whole"),
    ((64,), (64,), 1, 4, 4, "long"),
    ((200,), (33,), 2, 2, 3, "long"),
    ((20, 24), (9, 7), 1, 6, 4, "whole"),
    ((20, 24), (9, 7), 1, 6, 4, "axes"),
    ((20, 24), (9, 7), 3, 2, 2, "axes"),
    ((16, 16), (17, 17), 6, 1, 1, "whole"),
    ((16, 16), (17, 17), 6, 1, 1, "axes"),
    ((100,), (100,), 6, 1, 1, "long"),
    ((16, 16), (5, 5), 6, 1, 2, "axes"),
    ((30, 32), (33, 33), 2, 2, 2, "axes"),
    ((6, 8, 7), (3, 5, 3), 1, 2, 3, "whole"),
    ((6, 8, 7), (3, 5, 3), 1, 2, 3, "axes"),
]


def geometry_of(size, taps, groups, stride=1, dilation=1):
    ones = (1,) * len(size)
    kind = "causal" if len(size) == 1 else "same"
    dilation = tuple(dilation * each for each in ones)
    return Geometry(tuple(stride * each for each in ones), resolve_padding(kind, taps, dilation), dilation, groups)


def make(size, taps, groups, fan_in, multiplier, dtype=torch.float64, batch=3):
    shapes = (batch, groups * fan_in, *size), (groups * multiplier, fan_in, *taps), (groups * multiplier,)
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def with_gradients(conv, leaves, geometry, **options):
    """Output and gradients for a cotangent that is the same for every dtype and algorithm."""
    y = conv(*leaves, geometry, **options)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, *torch.autograd.grad(y, leaves, cotangent)


@pytest.mark.parametrize("dims", [1, 2, 3])
@given(data=st.data())
def test_equals_torch_for_any_geometry_and_style(dims, data):
    problem = data.draw(problems(dims))
    tensors = problem.tensors()
    geometry = Geometry(problem.stride, problem.pads, problem.dilation, problem.groups)
    for style in (None, *STYLES[dims]):
        assert error(dft_conv(*tensors, geometry, style=style), problem.truth(*tensors)) < 1e-10, style


@pytest.mark.parametrize("dims", [1, 2, 3])
@settings(max_examples=8)
@given(data=st.data())
def test_equals_plain_loops(dims, data):
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
def test_sequences_split_in_two_levels_agree(length, taps, pads, stride, dilation):
    pads = pads[0], max(pads[1], dilation * (taps - 1) + 1 - length - pads[0])  # at least one output
    geometry = Geometry((stride,), (pads,), (dilation,), 1)
    tensors = torch.rand(2, 2, length).double(), torch.rand(3, 2, taps).double(), None
    assert error(dft_conv(*tensors, geometry, style="long"), direct_conv(*tensors, geometry)) < 1e-10


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_in_every_dtype(case, dtype):
    *shape, style = case
    leaves = make(*shape, dtype)
    geometry = geometry_of(*shape[:3])
    results = with_gradients(dft_conv, leaves, geometry, style=style)
    truths = with_gradients(direct_conv, [leaf.detach().double().requires_grad_() for leaf in leaves], geometry)
    assert [each.dtype for each in results] == [dtype] * 4
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.parametrize("style", ["whole", "axes"])
def test_float16_survives_large_images_with_a_mean(style):
    x, weight = torch.rand(2, 4, 40, 40) * 100, torch.rand(4, 4, 5, 5) / 100
    geometry = geometry_of((40, 40), (5, 5), 1)
    y = dft_conv(x.half(), weight.half(), None, geometry, style=style)
    assert relative_error(y, direct_conv(x.double(), weight.double(), None, geometry)) < 2e-3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck(case):
    size, taps, groups, fan_in, multiplier, style = case
    size, taps = tuple(min(n, 5) for n in size), tuple(min(k, 3) for k in taps)
    geometry = geometry_of(size, taps, groups, stride=2, dilation=2)
    leaves = make(size, taps, groups, min(fan_in, 2), min(multiplier, 2), batch=2)
    assert torch.autograd.gradcheck(lambda *each: dft_conv(*each, geometry, style=style), leaves, fast_mode=True)


@pytest.mark.parametrize("style", ["whole", "long"])
@pytest.mark.parametrize("groups", [1, 2])
def test_second_gradients(style, groups):
    leaves = make((5,), (3,), groups, 2 // groups, 2, batch=2)
    geometry = geometry_of((5,), (3,), groups)
    assert torch.autograd.gradgradcheck(lambda *each: dft_conv(*each, geometry, style=style), leaves)


def test_only_wanted_gradients_are_computed():
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
        (Points(32, 16, 1), Points(33, 0, 1), Points(32, 0, 1), 48),  # centred: half a kernel beyond the image
        (Points(32, 31, 1), Points(32, 0, 1), Points(32, 0, 1), 63),  # causal
        (Points(32, 0, 1), Points(5, 0, 1), Points(28, 0, 1), 32),  # valid
        (Points(4, 15, 1), Points(31, 0, 1), Points(4, 0, 1), 19),  # a kernel may be longer than its circle
        (Points(1, 0, 1), Points(1, 0, 1), Points(1, 0, 1), 1),
    ],
)
def test_shortest_circle(x, weight, y, expected):
    assert shortest_circle(x, weight, y) == expected


@pytest.mark.parametrize("circles", [(8,), (2,), (6, 4), (5, 6), (4, 2, 6)])
def test_bases_invert_themselves_with_the_gains_of_a_unit_impulse(circles):
    (matrix,) = build(Recipe("whole", circles, tuple(Points(n, 3, 1) for n in circles), kernel=False))
    (impulse,) = build(Recipe("whole", circles, (Points(1, 0, 1),) * len(circles), kernel=True))
    real, imaginary = impulse.reshape(2, -1)
    np.testing.assert_array_equal(imaginary, 0)
    np.testing.assert_allclose(matrix.T @ (np.tile(real, 2)[:, None] * matrix), np.eye(matrix.shape[1]), atol=1e-12)
    assert np.linalg.norm(matrix, 2) <= 1 + 1e-12  # spectra are no larger than signals
    assert matrix.shape[0] == matrix.shape[1]  # nothing is stored twice


@pytest.mark.parametrize("style", ["axes", "long"])
def test_transforms_in_several_products_are_those_in_one(style):
    points = (Points(5, 2, 1), Points(7, 3, 2)) if style == "axes" else (Points(40, 3, 1),)
    for kernel in (False, True):
        recipe = Recipe(style, (6, 8), points, kernel)
        one = Recipe("whole", (6, 8) if style == "axes" else (48,), points, kernel)
        x = torch.randn(2, 3, *(p.number for p in points)).double()
        several, single = (analyse(x, [torch.from_numpy(m) for m in build(each)], each.style) for each in (recipe, one))
        if style == "long":  # its frequencies are k + 6 l, k from 0 to 2
            order = [k + 6 * column for k in range(3) for column in range(8)]
            full = torch.cat([single, single.flip(1) * torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)], 1)
            factor = scale(48) / (scale(6) * scale(8))
            single = full[:, order] / (1 / factor**2 if kernel else factor)
        assert relative_error(several, single) < 1e-12


@pytest.mark.parametrize(
    ("size", "taps", "style"),
    [
        ((1024,), (1024,), "whole"),
        ((16000,), (16000,), "long"),
        ((100_000,), (100_000,), None),
        ((8, 8), (5, 5), "whole"),
        ((96, 96), (97, 97), "axes"),
        ((32, 32, 32), (5, 5, 5), "axes"),
        ((5000, 4), (3, 3), None),
    ],
)
def test_size_decides_the_style(size, taps, style):
    geometry = geometry_of(size, taps, 1)
    plan = make_plan(size, taps, size, tuple(left for left, _ in geometry.pads), geometry.stride, geometry.dilation)
    assert (plan and plan.x.style) == style


def test_the_fft_takes_over_beyond_the_longest(monkeypatch):
    monkeypatch.setattr(_dft, "LONGEST_LINE", 8)
    monkeypatch.setattr(_dft, "LONGEST_SPLIT", 16)
    _dft._remembered_plan.cache_clear()
    tensors = torch.randn(2, 2, 40), torch.randn(2, 2, 40), None
    geometry = geometry_of((40,), (40,), 1)
    assert torch.equal(dft_conv(*tensors, geometry), fft_conv(*tensors, geometry))
    _dft._remembered_plan.cache_clear()


def test_an_empty_batch_and_an_input_never_read():
    weight = torch.randn(3, 2, 4)
    assert dft_conv(torch.randn(0, 2, 9), weight, None, geometry_of((9,), (4,), 1)).shape == (0, 3, 9)
    y = dft_conv(torch.randn(1, 2, 3), weight, torch.ones(3), Geometry((1,), ((-5, 8),), (1,), 1))
    assert torch.equal(y, torch.ones(1, 3, 3))


def test_channels_last_and_views_are_accepted():
    x, weight, bias = make((9, 8), (5, 5), 1, 4, 3)
    geometry = geometry_of((9, 8), (5, 5), 1)
    y = dft_conv(x, weight, bias, geometry)
    assert relative_error(dft_conv(x.to(memory_format=torch.channels_last), weight, bias, geometry), y) < 1e-14
    assert relative_error(dft_conv(x.mT.contiguous().mT, weight, bias, geometry), y) < 1e-14


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_the_products_and_leaves_gradients_in_float32(dtype):
    leaves = [leaf.detach().float().requires_grad_() for leaf in make((12, 12), (5, 5), 1, 3, 3)]
    geometry = geometry_of((12, 12), (5, 5), 1)
    with torch.autocast("cpu", dtype):
        y, *gradients = with_gradients(dft_conv, leaves, geometry)
        assert dft_conv(*(leaf.double() for leaf in leaves), geometry).dtype == torch.float64
    assert y.dtype == dtype
    assert [each.dtype for each in gradients] == [torch.float32] * 3
    truths = with_gradients(direct_conv, leaves, geometry)
    assert max(map(relative_error, (y, *gradients), truths)) < 1e-2


# torch's own: inductor imports a module that scripts
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("backend", "style"), [("aot_eager", "whole"), ("aot_eager", "long"), ("inductor", "whole")])
def test_compiles_in_one_graph_for_changing_shapes_with_gradients(backend, style):
    def conv(x, weight, bias, geometry):
        return dft_conv(x, weight, bias, geometry, style=style).relu()

    compiled = torch.compile(conv, fullgraph=True, backend=backend)
    for batch, length in ((2, 40), (4, 41))[: 2 if backend == "aot_eager" else 1]:
        leaves = make((length,), (9,), 2, 2, 1, torch.float32, batch)
        geometry = geometry_of((length,), (9,), 2)
        results, truths = (with_gradients(f, leaves, geometry) for f in (compiled, conv))
        assert max(map(relative_error, results, truths)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_where_all_sizes_are_unknown(dtype):
    compiled = torch.compile(dft_conv, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (40, 41):
        leaves = make((length,), (9,), 2, 2, 1, dtype)
        geometry = geometry_of((length,), (9,), 2)
        results, truths = (with_gradients(f, leaves, geometry) for f in (compiled, dft_conv))
        assert max(map(relative_error, results, truths)) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_a_graph_serves_batches_of_any_size():
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
    """All but tracing, which the compilation above does, and which is slow."""
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(operator, arguments, test_utils=checks)


@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_operators_keep_their_promises_to_compilers(case):
    size, taps, groups, fan_in, multiplier, style = case
    x, *_ = make(size, taps, groups, fan_in, multiplier)
    geometry = geometry_of(size, taps, groups)
    plan = make_plan(
        size, taps, size, tuple(left for left, _ in geometry.pads), geometry.stride, geometry.dilation, style
    )
    matrices = _dft._matrices(plan.x, x, x.dtype)
    spectra = _opaque["dft_analyse"](x, matrices, style).detach()
    opcheck(_opaque["dft_analyse"], (x, matrices, style))
    opcheck(_opaque["dft_synthesise"], (spectra.requires_grad_(), matrices, x.shape[2:], style))


class Layer(torch.nn.Module):
    def forward(self, x, weight):
        return dft_conv(x, weight, None, geometry_of((30, 30), (5, 5), 1))


def test_exports_as_a_plain_convolution_for_any_batch_and_size():
    x, weight = torch.randn(3, 2, 30, 30), torch.randn(4, 2, 5, 5)
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=3)}
    program = torch.export.export(Layer(), (x, weight), dynamic_shapes=(sizes, None))
    x = torch.randn(2, 2, 17, 30)
    assert relative_error(program.module()(x, weight), Layer()(x, weight)) < 1e-5


@pytest.mark.parametrize("style", ["whole", "axes"])
def test_shapes_without_data(style):
    geometry = geometry_of((30, 30), (5, 5), 1, stride=2)
    meta = dft_conv(
        *(torch.empty(s, device="meta") for s in ((2, 2, 30, 30), (4, 2, 5, 5))), None, geometry, style=style
    )
    with FakeTensorMode():
        fake = dft_conv(torch.empty(2, 2, 30, 30), torch.empty(4, 2, 5, 5), None, geometry, style=style)
    assert meta.shape == fake.shape == (2, 4, 15, 15)
    real = dft_conv(torch.ones(2, 2, 30, 30), torch.ones(4, 2, 5, 5), None, geometry, style=style)
    assert real[0, 0, 5, 5].item() == pytest.approx(50, rel=1e-5)  # no fake matrix was remembered


def test_function_transforms_fall_back_to_the_fft():
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


def test_the_cache_is_bounded_and_forgets_the_oldest():
    recipes = [Recipe("whole", (n,), (Points(n, 0, 1),), kernel=False) for n in (16, 24, 32)]
    needed = [8 * n * n for n in (16, 24, 32)]
    cache = MatrixCache(limit=sum(needed) - 1)
    first, second = (cache(recipe, torch.float64, torch.device("cpu")) for recipe in recipes[:2])
    assert cache(recipes[0], torch.float64, torch.device("cpu")) is first
    cache(recipes[2], torch.float64, torch.device("cpu"))
    assert (len(cache), cache.used) == (2, needed[0] + needed[2])
    assert cache(recipes[0], torch.float64, torch.device("cpu")) is first
    assert cache(recipes[1], torch.float64, torch.device("cpu")) is not second


def test_shapes_are_those_of_the_matrices():
    recipe = Recipe("axes", (8, 6), (Points(5, 1, 1), Points(4, 1, 1)), kernel=True)
    assert shapes(recipe) == [(6, 4), (16, 10)]


def test_matrices_made_in_inference_mode_serve_training():
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
def test_captured_as_a_cuda_graph(case, dtype):
    *shape, style = case
    leaves = [leaf.detach().cuda().to(dtype).requires_grad_() for leaf in make(*shape)]
    geometry = geometry_of(*shape[:3])
    with torch.no_grad():  # or gradients would be accumulated on the stream of this call
        cotangent = torch.randn_like(dft_conv(*leaves, geometry, style=style))

    def step():
        y = dft_conv(*leaves, geometry, style=style)
        return y, *torch.autograd.grad(y, leaves, cotangent)

    results = as_in_training(step, torch.device("cuda"))()
    double = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = direct_conv(*double, geometry)
    truths = y, *torch.autograd.grad(y, double, cotangent.double())
    assert max(map(relative_error, results, truths)) < TOLERANCE[dtype]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_matrices_are_not_made_during_a_capture():
    x, weight = torch.randn(1, 1, 21, device="cuda"), torch.randn(1, 1, 19, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1  # an empty capture would warn
        with pytest.raises(RuntimeError, match="once before the capture"):
            dft_conv(x, weight, None, geometry_of((21,), (19,), 1))


def test_kernels_of_every_size_share_the_matrices_of_the_data():
    plans = [
        make_plan((32, 32), taps, (32, 32), tuple(k // 2 for k in taps), (1, 1), (1, 1))
        for taps in ((5, 7), (7, 5), (7, 7))
    ]
    assert len({recipe for plan in plans for recipe in (plan.x, plan.y)}) == 1
