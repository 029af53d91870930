"""`flexconv.capture` where steps cannot be captured: it runs the step as it is."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flexconv
from flexconv import FlexConv2d
from flexconv import capture as public
from flexconv.errors import ArgumentError, ArgumentTypeError, UsageError

from .conftest import mentions


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(FlexConv2d(1, 2, 5), nn.Flatten(), nn.Linear(2 * 36, 3))


def batches(number):
    draw = torch.Generator().manual_seed(1)
    for _ in range(number):
        yield torch.randn(4, 1, 6, 6, generator=draw), torch.randint(3, (4,), generator=draw)


def make_step(model, optimizer):
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "size": len(x)}

    return train_step


def test_runs_the_step_on_a_cpu():
    models = [small_net(), small_net()]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
    eager, own = (make_step(*pair) for pair in zip(models, optimizers, strict=True))
    step = flexconv.capture(own, models[1], optimizers[1])
    for batch in batches(6):
        expected, found = eager(*batch), step(*batch)
        assert torch.equal(found["loss"], expected["loss"].detach())
        assert not found["loss"].requires_grad
        assert found["size"] == 4
    assert not step.captured
    assert step.captures == 0
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_any_optimizer_option_is_left_as_it_is():
    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    flexconv.capture(make_step(model, optimizer), model, optimizer)(*next(batches(1)))
    assert {name: value for name, value in optimizer.param_groups[0].items() if name != "params"} == before


@pytest.mark.parametrize("make", [torch.optim.LBFGS, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_optimizers_that_cannot_be_captured_are_named(make):
    model = small_net()
    with pytest.raises(UsageError, match=mentions(make.__name__, "capturable")):
        flexconv.capture(print, model, make(model.parameters()))


def test_wrong_arguments_are_named():
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ArgumentTypeError, match=mentions("model", "str")):
        flexconv.capture(print, "model", optimizer)
    with pytest.raises(ArgumentTypeError, match=mentions("optimizer", "Sequential")):
        flexconv.capture(print, model, model)
    with pytest.raises(ArgumentTypeError, match="model"):
        flexconv.capture(print, [], optimizer)


def test_inputs_that_require_gradients_are_an_error():
    model = small_net()
    step = flexconv.capture(lambda x: model(x), model, torch.optim.SGD(model.parameters()))
    with pytest.raises(ArgumentError, match=mentions("[4, 1, 6, 6]", "detach")):
        step(torch.zeros(4, 1, 6, 6, requires_grad=True))


def test_arguments_of_other_types_are_an_error():
    """A graph would not notice that an attribute has changed."""
    model = small_net()
    step = flexconv.capture(lambda _: None, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(ArgumentTypeError, match=mentions("tensors", "SimpleNamespace")):
        step(SimpleNamespace(x=torch.zeros(3)))


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_scheduler_inside_the_step_is_an_error(lr):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train_step(x, y):
        make_step(model, optimizer)(x, y)
        scheduler.step()

    with pytest.raises(UsageError, match=mentions("learning rate", "scheduler.step()")):
        flexconv.capture(train_step, model, optimizer)(*next(batches(1)))


def test_runs_eagerly_with_several_processes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(public.__globals__, "_processes", lambda: 2)
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters())
    assert type(flexconv.capture(print, model, optimizer)).__name__ == "TrainStep"
    monkeypatch.setitem(public.__globals__, "_processes", lambda: 1)
    assert type(flexconv.capture(print, model, optimizer)).__name__ == "CapturedStep"


def test_optimizer_of_fabric_is_unwrapped():
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    model = small_net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped_model, wrapped = fabric.setup(model, inner)

    def train_step(x, y):
        wrapped.zero_grad()
        loss = F.cross_entropy(wrapped_model(x), y)
        fabric.backward(loss)
        wrapped.step()
        return loss

    step = flexconv.capture(train_step, wrapped_model, wrapped)
    assert step.optimizers == [inner]
    losses = [step(*batch) for batch in batches(3)]
    assert all(loss.isfinite() for loss in losses)


def test_later_calls_do_not_change_what_was_returned():
    model = nn.Sequential(flexconv.FlexConv1d(1, 1, 5), nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train_step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        return {"bias": model[0].bias, "mean": model[1].running_mean}

    step = flexconv.capture(train_step, model, optimizer)
    returned = step(torch.randn(2, 1, 9))
    before = {name: tensor.clone() for name, tensor in returned.items()}
    step(torch.randn(2, 1, 9))
    assert all(torch.equal(returned[name], before[name]) for name in before)
