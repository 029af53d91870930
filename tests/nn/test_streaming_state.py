"""State."""

from __future__ import annotations

import pytest
import torch

from flexconv import GaussianMask, Streaming, refresh_extents
from tests.conftest import relative_error
from tests.nn.streaming_helpers import LastStep, assert_equal, causal, fed, offline, tcn

# --- streams and the model they belong to -----------------------------------------------------------------------------


def test_the_original_is_not_changed():
    model = LastStep(tcn(), 4).train()
    model.body[1].eval()  # a part that is frozen stays frozen
    x = torch.randn(2, 2, 20)
    modules = [(name, type(module), module.training) for name, module in model.named_modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    stream = Streaming(model)
    for chunk in x.split(5, -1):
        stream(chunk)
    assert [(name, type(module), module.training) for name, module in model.named_modules()] == modules
    assert model.state_dict().keys() == state.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_weights_are_shared_and_there_is_no_state_of_its_own():
    model = tcn()
    stream = Streaming(model)
    stream(torch.randn(1, 2, 5))
    ours, theirs = list(model.state_dict().values()), list(stream.state_dict().values())
    assert [value.data_ptr() for value in ours] == [value.data_ptr() for value in theirs]
    assert {*map(id, model.parameters())} == {*map(id, stream.parameters())}


def test_a_stream_stays_in_eval_mode():
    model = tcn().train()
    stream = Streaming(model)
    assert stream.train() is stream
    assert not any(module.training for module in stream.modules())
    assert model.training


def test_reset_starts_a_new_stream_with_another_batch_size():
    model = tcn().double()
    stream = Streaming(model)
    for batch in (2, 5, 1):
        x = torch.randn(batch, 2, 12).double()
        assert_equal(fed(stream, x, 5), offline(model, x))
        stream.reset()


def test_weights_that_change_are_seen_after_reset():
    layer = causal(kernel_size=40)
    stream = Streaming(layer)
    x = torch.randn(1, 2, 64)
    before = offline(layer, x)
    first = stream(x[..., :32])
    with torch.no_grad():
        layer.mask.sigma.fill_(0.7)  # a longer kernel, too
        layer.generator.output.weight.mul_(-2)
    second = stream(x[..., 32:])
    assert_equal(torch.cat([first, second], -1), before)  # a stream keeps its kernel to the end
    stream.reset()
    after = offline(layer, x)
    assert relative_error(after, before) > 0.1
    assert_equal(fed(stream, x, 5), after)


def test_a_stream_follows_training_of_the_original():
    model = tcn()
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
    assert_equal(fed(stream, x, 11), offline(model, x))


def test_two_streams_of_one_model_are_independent():
    model = tcn().double()
    one, two = Streaming(model), Streaming(model)
    x, z = torch.randn(1, 2, 12).double(), torch.randn(3, 2, 12).double()
    outputs = [(one(a), two(b)) for a, b in zip(x.split(2, -1), z.split(2, -1), strict=True)]
    assert_equal(torch.cat([y for y, _ in outputs], -1), offline(model, x))
    assert_equal(torch.cat([y for _, y in outputs], -1), offline(model, z))


def test_a_buffer_that_is_filled_again_and_again_does_no_harm():
    layer = causal(kernel_size=7).double()
    x = torch.randn(1, 2, 20).double()
    stream, buffer, outputs = Streaming(layer), torch.empty(1, 2, 2).double(), []
    for chunk in x.split(2, -1):
        y = stream(buffer.copy_(chunk))
        outputs.append(y.clone())
        y.fill_(torch.nan)
    assert_equal(torch.cat(outputs, -1), offline(layer, x))


def test_no_graph_is_kept():
    stream = Streaming(tcn())
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
        ({}, 128),  # a short kernel at the newest sample needs little …
        ({"mean": 0.5}, 512),
        ({"mean": -1.0}, 1024),  # … as short a kernel in the far past needs everything between
        (None, 1024),
    ],
    ids=["home", "past", "far past", "no mask"],
)
def test_what_is_kept_is_the_reach_of_the_kernel_and_does_not_grow(mask, most, dilation):
    mask = None if mask is None else GaussianMask(1, sigma=0.01, **mask)
    layer = causal(1, 1, 1025, dilation=dilation, mask=mask)
    ((oldest, _),) = layer.window
    stream = Streaming(layer)
    (state,) = stream._layers
    for samples in (1, 3000, 2):
        stream(torch.randn(2, 1, samples))
        assert state.past.shape == (2, 1, (1024 - oldest) * dilation)
        assert state.past.untyped_storage().nbytes() == state.past.numel() * 4  # and no view of anything larger
        assert (layer.extent[0] - 1) * dilation <= state.past.shape[-1] <= most * dilation
    if mask is None or mask.initial_mean == [-1.0]:
        assert state.past.shape[-1] == 1024 * dilation
    stream.reset()
    assert state.past is None
