"""`Streaming`: the state of a stream, and its relation to the original model."""

from __future__ import annotations

import pytest
import torch

from flexconv import GaussianMask, Streaming, refresh_extents
from tests.conftest import relative_error
from tests.nn.streaming_helpers import (
    LastStepClassifier,
    assert_same_output,
    causal_layer,
    make_tcn,
    run_offline,
    stream_in_chunks,
)


def test_original_model_is_not_changed():
    model = LastStepClassifier(make_tcn(), 4).train()
    model.body[1].eval()  # a module in eval mode stays in eval mode
    x = torch.randn(2, 2, 20)
    modules = [(name, type(module), module.training) for name, module in model.named_modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    learned = [parameter.requires_grad for parameter in model.parameters()]
    stream = Streaming(model)
    for chunk in x.split(5, -1):
        stream(chunk)
    assert [(name, type(module), module.training) for name, module in model.named_modules()] == modules
    assert model.state_dict().keys() == state.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert [parameter.requires_grad for parameter in model.parameters()] == learned
    assert all(parameter.grad is None for parameter in model.parameters())


def test_stream_shares_parameters_and_adds_no_state():
    model = make_tcn()
    stream = Streaming(model)
    stream(torch.randn(1, 2, 5))
    ours, theirs = list(model.state_dict().values()), list(stream.state_dict().values())
    assert [value.data_ptr() for value in ours] == [value.data_ptr() for value in theirs]
    assert {*map(id, model.parameters())} == {*map(id, stream.parameters())}


def test_stream_stays_in_eval_mode():
    model = make_tcn().train()
    stream = Streaming(model)
    assert stream.train() is stream
    assert not any(module.training for module in stream.modules())
    assert model.training


def test_batch_size_can_change_after_reset():
    model = make_tcn().double()
    stream = Streaming(model)
    for batch in (2, 5, 1):
        x = torch.randn(batch, 2, 12).double()
        assert_same_output(stream_in_chunks(stream, x, 5), run_offline(model, x))
        stream.reset()


def test_changed_weights_are_used_after_reset():
    layer = causal_layer(kernel_size=40)
    stream = Streaming(layer)
    x = torch.randn(1, 2, 64)
    before = run_offline(layer, x)
    first = stream(x[..., :32])
    with torch.no_grad():
        layer.mask.set_(sigma=0.7)  # also makes the kernel longer
        layer.generator.output.weight.mul_(-2)
    second = stream(x[..., 32:])
    assert_same_output(torch.cat([first, second], -1), before)  # a stream keeps its kernel until reset
    stream.reset()
    after = run_offline(layer, x)
    assert relative_error(after, before) > 0.1
    assert_same_output(stream_in_chunks(stream, x, 5), after)


def test_stream_uses_trained_weights_after_reset():
    model = make_tcn()
    stream = Streaming(model)
    x = torch.randn(2, 2, 30)
    stream(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    refresh_extents(model)
    stream.reset()
    assert_same_output(stream_in_chunks(stream, x, 11), run_offline(model, x))


def test_streams_of_one_model_are_independent():
    model = make_tcn().double()
    one, two = Streaming(model), Streaming(model)
    x, z = torch.randn(1, 2, 12).double(), torch.randn(3, 2, 12).double()
    outputs = [(one(a), two(b)) for a, b in zip(x.split(2, -1), z.split(2, -1), strict=True)]
    assert_same_output(torch.cat([y for y, _ in outputs], -1), run_offline(model, x))
    assert_same_output(torch.cat([y for _, y in outputs], -1), run_offline(model, z))


def test_input_buffer_and_outputs_can_be_overwritten():
    layer = causal_layer(kernel_size=7).double()
    x = torch.randn(1, 2, 20).double()
    stream, buffer, outputs = Streaming(layer), torch.empty(1, 2, 2).double(), []
    for chunk in x.split(2, -1):
        y = stream(buffer.copy_(chunk))
        outputs.append(y.clone())
        y.fill_(torch.nan)
    assert_same_output(torch.cat(outputs, -1), run_offline(layer, x))


def test_stream_does_not_require_grad():
    stream = Streaming(make_tcn())
    x = torch.randn(1, 2, 4, requires_grad=True)
    assert torch.is_grad_enabled()
    assert not stream(x).requires_grad
    for layer in stream._layers:
        assert not layer.past.requires_grad
        assert not layer.weight.requires_grad


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize(
    ("mask", "most"),
    [
        ({}, 128),  # a short kernel at the newest sample
        ({"mean": 0.5}, 512),
        ({"mean": -1.0}, 1024),  # a short kernel at the oldest sample needs all samples after it
        (None, 1024),
    ],
    ids=["default mean", "past", "oldest sample", "no mask"],
)
def test_state_size_is_reach_of_kernel_and_does_not_grow(mask, most, dilation):
    mask = None if mask is None else GaussianMask(1, sigma=0.01, **mask)
    layer = causal_layer(1, 1, 1025, dilation=dilation, mask=mask)
    ((oldest, _),) = layer.window
    stream = Streaming(layer)
    (state,) = stream._layers
    for samples in (1, 3000, 2):
        stream(torch.randn(2, 1, samples))
        assert state.past.shape == (2, 1, (1024 - oldest) * dilation)
        assert state.past.untyped_storage().nbytes() == state.past.numel() * 4  # not a view of a larger tensor
        assert (layer.extent[0] - 1) * dilation <= state.past.shape[-1] <= most * dilation
    if mask is None or mask.initial_mean == [-1.0]:
        assert state.past.shape[-1] == 1024 * dilation
    stream.reset()
    assert state.past is None
