"""`recompute=True`: the same results with less memory."""

from __future__ import annotations

import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, create_model
from flexconv.bench.memory import LiveBytes
from flexconv.errors import UsageError
from flexconv.nn import FlexConvNd
from tests.conftest import relative_error


def bytes_kept(layer, x):
    """Bytes that autograd keeps for the backward pass, besides the input and parameters, and the output."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters(), *layer.buffers())}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)
    return sum(kept.values()), y


@pytest.mark.parametrize("algorithm", ["direct", "fft", "dft"])
@pytest.mark.parametrize("generator", ["magnet", "siren"])
def test_results_are_the_same_and_nothing_is_kept(algorithm, generator):
    torch.manual_seed(0)
    layer = FlexConv2d(3, 4, 9, algorithm=algorithm, generator=generator)
    x = torch.randn(2, 3, 10, 12, requires_grad=True)
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    results, kept = [], []
    for layer.recompute in (False, True):
        number, _ = bytes_kept(layer, x)
        kept.append(number)
        results.append(torch.autograd.grad(layer(x).square().sum(), wanted))
    assert kept[1] == 0 < kept[0]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_lengths_autocast_and_second_derivatives():
    layer = FlexConv1d(2, 2, 9, padding="causal", recompute=True)
    x = torch.randn(2, 2, 12, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, [12, 7]).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert x.grad.abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()


def test_function_transforms_keep_everything():
    layer, x = FlexConv2d(2, 2, 5, recompute=True).requires_grad_(), torch.randn(2, 2, 6, 6)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(parameters, x)
    expected = torch.autograd.grad(loss(parameters, x), list(parameters.values()))
    for one, other in zip(found.values(), expected, strict=True):
        assert relative_error(one, other) < 1e-3


@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")
def test_compiles_in_one_graph():
    layer, x = FlexConv2d(2, 2, 5, recompute=True), torch.randn(2, 2, 6, 6, requires_grad=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found, expected = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, layer))
    assert relative_error(found, expected) < 1e-5


def test_reduces_the_peak_of_a_network():
    peaks = []
    for recompute in (False, True):
        net = create_model("flexnet7", in_channels=3, num_classes=4, image_size=16, widths=[6, 6, 6])
        for module in net.modules():
            if isinstance(module, FlexConvNd):
                module.recompute, module.algorithm = recompute, "fft"
        x = torch.randn(8, 3, 16, 16)
        net(x).sum().backward()
        net.zero_grad()
        with LiveBytes() as live:
            net(x).sum().backward()
        peaks.append(live.most)
    assert peaks[1] < 0.75 * peaks[0]


def test_is_shown_and_copied_with_the_layer():
    import copy

    layer = FlexConv2d(2, 2, 5, recompute=True)
    assert "recompute=True" in repr(layer)
    assert copy.deepcopy(layer).recompute
    assert "recompute" not in repr(FlexConv2d(2, 2, 5))


@pytest.mark.parametrize("algorithm", ["direct", "fft", "dft"])
def test_parameters_that_change_before_the_backward_pass_are_an_error(algorithm):
    """It would compute the gradients of another kernel."""
    layer = FlexConv1d(2, 2, 9, recompute=True, algorithm=algorithm)
    y = layer(torch.randn(1, 2, 20)).square().sum()
    with torch.no_grad():
        layer.generator.output.weight.mul_(2.0)
    with pytest.raises(UsageError, match="have changed between the forward and the backward pass"):
        y.backward()


def test_steps_of_other_models_between_forward_and_backward_pass():
    layer, other = FlexConv1d(2, 2, 9, recompute=True), FlexConv1d(2, 2, 9)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    y = layer(torch.randn(1, 2, 20)).square().sum()
    other(torch.randn(1, 2, 20)).square().sum().backward()
    optimizer.step()
    y.backward()
