"""Run any training step as a CUDA graph that is captured once and then replayed.

On a GPU, a step of a network with FlexConvs consists of hundreds of small operations, and the host takes longer to
start them than the GPU takes to compute them. A replayed graph starts them all at once.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ._registry import fast_version
from .errors import ArgumentError, ArgumentTypeError, UsageError
from .nn import refresh_extents

P = ParamSpec("P")
R = TypeVar("R")

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device)


def capture(
    train_step: Callable[P, R],
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    compile: bool = True,  # noqa: A002  (the word that torch uses)
) -> TrainStep[P, R]:
    """Return a function that does the same as `train_step`, on a GPU as a replayed CUDA graph.

        def train_step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step = flexconv.capture(train_step, model, optimizer)
        for x, y in loader:
            loss = step(x, y)
        scheduler.step()  # outside of the step

    The first two calls run without a graph. They are training steps like any other. The third one captures the step.
    Later calls replay it, and capture it again when something changes that the graph depends on: when kernels become
    larger or smaller than those of the graph, or after `model.eval()`, `requires_grad_`, `model.to`,
    `optimizer.load_state_dict`, a changed weight decay, or gradients that were cleared or kept where they were not
    before. Learning rates may change in every step.

    A call with other shapes or dtypes, such as that of the last batch of an epoch, runs without a graph. After 8 such
    calls in a row, the step is captured again. The same is true for other values of numbers and strings, which are
    constants in a graph.

    Where steps cannot be captured, every call runs `train_step` as it is: on a CPU, with several processes, and if the
    model is on several devices.

    Arguments:
        train_step: everything from `zero_grad` to `optimizer.step()`. Its arguments are tensors, numbers and strings,
            also in lists, tuples and dicts. It must not read values of tensors on the host (`loss.item()`,
            `if loss > 3`), and must not call `scheduler.step()`. Whatever else it does in Python does not happen in a
            replay.
        model: all networks that the step trains or whose kernel sizes change.
        optimizer: all optimizers that the step uses: SGD, or those with the option `capturable`, such as Adam and
            AdamW. The option itself need not be set.
        compile: whether to compile parts of the step and to compute the kernels of all layers together. The first three
            calls then take about 45 seconds, and later calls take several times less time than without compilation.
            Models that are already compiled are used as they are.

    Returns:
        A function with the arguments of `train_step`. Tensors in host memory are copied to the device of the model. It
        returns what `train_step` returns, with tensors that have no gradient and that later calls do not change.
        `step.captured` is whether there is a graph, and `step.captures` counts how often the step was captured.

    """
    models = _several(model, nn.Module, "model", "an nn.Module")
    optimizers = [_unwrapped(each) for each in _several(optimizer, torch.optim.Optimizer, "optimizer", "an Optimizer")]
    for each in optimizers:
        check_capturable(each)
    captured_step = fast_version("capture.step")
    if captured_step is None or not torch.cuda.is_available() or _processes() > 1:
        return TrainStep(train_step, models, optimizers)
    return captured_step(train_step, models, optimizers, compile=compile)


class TrainStep(Generic[P, R]):
    """A training step, as returned by `capture`. This class runs it operation by operation.

    Arguments:
        train_step: the function to run.
        models: the networks that it trains.
        optimizers: the optimizers that it uses.

    """

    def __init__(
        self, train_step: Callable[P, R], models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self.train_step, self.models, self.optimizers = train_step, list(models), list(optimizers)
        self.captures = 0  #: how often the step was captured

    @property
    def captured(self) -> bool:
        """Whether the step is captured, so that the next call can replay it."""
        return False

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.optimizers[0].param_groups[0]["params"][0].device

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one training step."""
        args, kwargs = on_device((args, kwargs), self.device)  # type: ignore[assignment]
        with constant_rates(self.optimizers):
            result = self.train_step(*args, **kwargs)
        if self.device.type != "cpu":
            for model in self.models:
                refresh_extents(model)  # one copy to the host for all layers, instead of one per layer
        return copied(result)


def on_device(tree: Any, device: torch.device) -> Any:
    """Copy all tensors of a tree of arguments to a device."""

    def move(value: Any) -> Any:
        check_argument(value)
        return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(move, tree)


def check_argument(value: Any) -> None:
    """Raise an error for arguments that a replayed step cannot have: a change inside an object is not noticed."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            raise ArgumentError(
                f"a tensor of shape {list(value.shape)} that requires a gradient cannot be the input of a captured "
                "step: pass tensor.detach(), or compute it inside the step"
            )
    elif not isinstance(value, CONSTANTS):
        raise ArgumentTypeError(
            "the arguments of a captured step are tensors, numbers and strings, also in lists, tuples and dicts; "
            f"got {type(value).__name__}"
        )


def detached(tree: Any) -> Any:
    """Return a tree with all tensors detached."""
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


def copied(tree: Any) -> Any:
    """Return a tree with copies of all tensors, which later steps do not change."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), tree)


@contextlib.contextmanager
def constant_rates(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Raise an error if a learning rate changes inside: a replayed step would not change it."""
    before = [(group, group["lr"], _version(group["lr"])) for each in optimizers for group in each.param_groups]
    yield
    for group, rate, version in before:
        now = group["lr"]
        same = now is rate and version == _version(now) if isinstance(now, torch.Tensor) else now == rate
        if not same:
            raise UsageError(
                "the training step changes a learning rate, which a captured step cannot do: "
                "call scheduler.step() after the step, not inside"
            )


def _version(rate: float | torch.Tensor) -> int:
    return rate._version if isinstance(rate, torch.Tensor) else 0


def check_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Raise an error if the steps of an optimizer cannot be captured."""
    if "capturable" not in optimizer.defaults and not isinstance(optimizer, torch.optim.SGD):
        raise UsageError(
            f"steps of {type(optimizer).__name__} cannot be captured: use SGD or an optimizer with the option "
            "capturable, such as Adam, AdamW or RMSprop"
        )


def _several(given: Any, kind: type, name: str, needed: str) -> list[Any]:
    """Return an object, or a sequence of objects, as a list."""
    found = [given] if isinstance(given, kind) else list(given) if isinstance(given, list | tuple) else []
    if not found or not all(isinstance(each, kind) for each in found):
        raise ArgumentTypeError(f"{name} must be {needed} or a list of them; got {type(given).__name__}")
    return found


def _unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer inside a wrapper of Lightning or Fabric, which has a copy of its attributes."""
    inner = getattr(optimizer, "optimizer", None)
    return _unwrapped(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _processes() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
