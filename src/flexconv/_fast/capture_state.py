"""What a captured step depends on besides its inputs. If it changes, the step must be captured again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn

from .._context import autocast_enabled
from ..nn import FlexConvNd

SIMPLE = frozenset((bool, int, float, str, type(None)))


class CapturedState:
    """Addresses of parameters, buffers and optimizer states, and settings of modules and optimizers.

    Nothing here reads a value on the device. Objects are kept, so that no other object can get their address.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.modules, self.optimizers = list(model.modules()), optimizers
        self._kept = [*self._module_tensors(), *self._states(), *self._grids()]
        self._taken = self._take()
        self._objects = _Objects(self.modules, self.optimizers)

    def change(self) -> str | None:
        """Return what has changed, in words, or None."""
        if self._objects.unchanged() and self._taken["autocast or gradient mode"] == _modes():
            groups = [self._group_settings(group) for each in self.optimizers for group in each.param_groups]
            if groups == self._taken["a setting of the optimizer"]:
                return None
        for name, value in self._take().items():
            if value != self._taken[name]:
                return name
        self._objects = _Objects(self.modules, self.optimizers)  # something was replaced by an equal object
        return None

    def _take(self) -> dict[str, object]:
        return {
            "autocast or gradient mode": _modes(),
            "modules or hooks of the model": [self._parts(module) for module in self.modules],
            "the mode or a setting of a module": [_settings(vars(module).values()) for module in self.modules],
            "parameters or buffers of the model": [
                (tensor.data_ptr(), tensor.dtype, tensor.requires_grad) for tensor in self._module_tensors()
            ],
            "the grid of a FlexConv": [id(grid) for grid in self._grids()],
            "a setting of the optimizer": [
                self._group_settings(group) for each in self.optimizers for group in each.param_groups
            ],
            "the state of the optimizer": [id(tensor) for tensor in self._states()],
        }

    @staticmethod
    def _parts(module: nn.Module) -> list[int]:
        return [*map(id, module._modules.values()), *module._forward_hooks, *module._forward_pre_hooks]

    def _module_tensors(self) -> list[torch.Tensor]:
        owners = (owner for module in self.modules for owner in (module._parameters, module._buffers))
        return [tensor for owner in owners for tensor in owner.values() if tensor is not None]

    def _grids(self) -> list[object]:
        return [module.grid for module in self.modules if isinstance(module, FlexConvNd)]

    @staticmethod
    def _group_settings(group: dict[str, Any]) -> list[object]:
        """All settings but the learning rate, which may change; of one that is a tensor on the device, its address."""
        lr = group["lr"]
        own = lr.data_ptr() if isinstance(lr, torch.Tensor) and lr.device == group["params"][0].device else None
        values = _settings(value for name, value in group.items() if name != "lr")
        return [own, len(group["params"]), group.get("betas"), *values]

    def _states(self) -> list[torch.Tensor]:
        states = (each.state.get(p) for each in self.optimizers for group in each.param_groups for p in group["params"])
        return [value for state in states if state for value in state.values() if isinstance(value, torch.Tensor)]


class _Objects:
    """The objects that `CapturedState` looks at, to tell in a fraction of the time that all are still the same.

    They are the values of many small dictionaries. Objects are compared by identity, tensors also by what can change
    in place.
    """

    def __init__(self, modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        hooks = [each for module in modules for each in (module._forward_hooks, module._forward_pre_hooks)]
        owners = [
            each for module in modules for each in (vars(module), module._modules, module._parameters, module._buffers)
        ]
        states = [each.state for each in optimizers]
        dictionaries: list[Mapping[Any, Any]] = [
            *owners,
            *states,
            *(each for state in states for each in state.values()),
        ]
        self._optimizers, self._of_optimizers = optimizers, self._take_optimizers(optimizers)
        parameters = [group["params"] for each in optimizers for group in each.param_groups]
        self._filled = [each for each in [*dictionaries, *parameters] if each]
        self._empty = [each for each in [*dictionaries, *parameters] if not each]
        self._number = sum(map(len, self._filled))
        self._current = [each if isinstance(each, list) else each.values() for each in self._filled]  # follow changes
        self._objects = list(chain.from_iterable(self._current))
        self._hooks, self._hook_numbers = hooks, [list(each) for each in hooks if each]
        tensors = [t for module in modules for each in (module._parameters, module._buffers) for t in each.values()]
        self._tensors = [tensor for tensor in tensors if tensor is not None]
        self._kinds = self._take_kinds()

    def unchanged(self) -> bool:
        if any(self._empty) or sum(map(len, self._filled)) != self._number:
            return False
        if not all(map(is_, chain.from_iterable(self._current), self._objects)):
            return False
        of_optimizers = self._take_optimizers(self._optimizers)
        if len(of_optimizers) != len(self._of_optimizers) or not all(map(is_, of_optimizers, self._of_optimizers)):
            return False
        return [list(each) for each in self._hooks if each] == self._hook_numbers and self._take_kinds() == self._kinds

    @staticmethod
    def _take_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> list[object]:
        """What `load_state_dict` of an optimizer replaces."""
        groups = [group for each in optimizers for group in each.param_groups]
        return [*(each.state for each in optimizers), *groups, *(group["params"] for group in groups)]

    def _take_kinds(self) -> list[list[object]]:
        tensors = self._tensors
        return [[*map(torch.Tensor.data_ptr, tensors)], [t.dtype for t in tensors], [t.requires_grad for t in tensors]]


def _modes() -> tuple[object, ...]:
    return torch.is_grad_enabled(), autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")


def _settings(values: Iterable[object]) -> list[object]:
    return [value for value in values if value.__class__ in SIMPLE]


class CapturedGradients:
    """The gradients before and after a captured step.

    A replay writes to the gradients of the capture. Depending on where they are cleared, it also adds to them, or
    expects that there are none.

    Arguments:
        parameters: all parameters. Make this object right before the capture.

    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)
        self._before = [p.grad for p in self._parameters]
        self._after: list[torch.Tensor | None] = []
        self._needed: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def captured(self) -> None:
        """Note the gradients that the step leaves, right after the capture."""
        self._after = [p.grad for p in self._parameters]
        self._needed = [
            (p, before)
            for p, before, after in zip(self._parameters, self._before, self._after, strict=True)
            if before is None or after is before  # otherwise the step has replaced the gradient, whatever it was
        ]
        self._before = []

    def change(self) -> str | None:
        """Return what a replay would do wrong with the current gradients, in words, or None."""
        if all(p.grad is needed for p, needed in self._needed):
            return None
        return "gradients that are cleared or kept between steps"

    def replayed(self) -> None:
        """Set the gradients to those of the replayed step."""
        for parameter, grad in zip(self._parameters, self._after, strict=True):
            if parameter.grad is not grad:
                parameter.grad = grad
