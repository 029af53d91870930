"""Convolutions under torch.compile, torch.export and the function transforms of torch.func."""

from __future__ import annotations

import pytest
import torch

from flexconv.ops import conv1d, conv2d
from flexconv.ops._circular import _correlate, correlation_operator
from tests.conftest import relative_error

from .test_conv import both


# inductor imports a torch module that uses torch.jit.script_method
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("algorithm", ["fft", "auto"])
def test_compiles_in_one_graph(algorithm):
    def conv(x, weight, bias):
        return conv1d(x, weight, bias, padding="causal", algorithm=algorithm)

    tensors = torch.randn(2, 2, 40), torch.randn(4, 2, 5), torch.randn(4)
    assert relative_error(torch.compile(conv, fullgraph=True)(*tensors), conv(*tensors)) < 1e-5


@pytest.mark.parametrize(("algorithm", "lengths"), [("fft", (40, 41, 77)), ("auto", (40, 41, 9000))])
def test_compiles_with_gradients_for_changing_lengths(algorithm, lengths):
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
def test_correlation_operator_equals_eager_code(size, batch, groups, fan_in, multiplier):
    x = torch.randn(batch, *size, groups * fan_in, dtype=torch.float64).movedim(-1, 1).requires_grad_()
    taps = [n - 1 for n in size]
    weight = torch.randn(groups * multiplier, fan_in, *taps, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(batch, groups * multiplier, *size, dtype=torch.float64)

    def with_gradients(correlate):
        y = correlate(x, weight, groups)
        return y, *torch.autograd.grad(y, (x, weight), cotangent)

    truths = with_gradients(_correlate)
    compiled = torch.compile(correlation_operator, fullgraph=True, backend="aot_eager")
    for operator in (correlation_operator, compiled):
        assert max(map(relative_error, with_gradients(operator), truths)) < 1e-10
    torch.library.opcheck(correlation_operator, (x, weight, groups))


class LargeKernel(torch.nn.Module):
    def __init__(self, stride=1, padding="same"):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(4, 2, 33, 33)), torch.nn.Parameter(torch.randn(4))
        self.options = {"stride": stride, "padding": padding, "groups": 2}

    def forward(self, x):
        return conv2d(x, self.weight, self.bias, **self.options)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": ("causal", "same")}])
def test_exports_without_fft_with_dynamic_batch_and_size(options):
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
def test_func_grad_equals_autograd_grad(algorithm, groups):
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
