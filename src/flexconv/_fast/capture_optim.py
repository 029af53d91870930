"""Optimizers inside a captured step: learning rates and step counts are tensors on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class CapturableOptimizer:
    """Makes an optimizer capturable inside `ready()`. Outside, its groups are as the user has set them.

    So schedulers, checkpoints and logs see numbers as learning rates. The captured step reads a tensor per group, which
    `fill_rates` sets before every step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._rates: dict[int, torch.Tensor] = {}  # by number of the group
        self._filled: dict[int, float] = {}

    def fill_rates(self) -> list[torch.Tensor]:
        """Set the tensors from the learning rates of the groups, without waiting for the device. Returns them."""
        return [self._rate(number, group) for number, group in enumerate(self.optimizer.param_groups)]

    def _rate(self, number: int, group: dict[str, Any]) -> torch.Tensor:
        lr, device = group["lr"], group["params"][0].device
        if isinstance(lr, torch.Tensor) and lr.device == device:
            return lr  # the user's own
        value = float(lr)
        rate = self._rates.get(number)
        if rate is None or rate.device != device:
            self._rates[number] = rate = torch.full((), value, device=device, dtype=torch.float32)
        elif self._filled[number] != value:
            rate.fill_(value)
        self._filled[number] = value
        return rate

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Inside, a step of the optimizer can be captured."""
        rates = self.fill_rates()
        before = []
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            changes = {"lr": rate, **self._options(group)}
            before.append((group, {name: group[name] for name in changes}))
            group.update(changes)
            for parameter in group["params"]:
                _move_counts(self.optimizer.state.get(parameter, {}), parameter.device)
        try:
            yield
        finally:
            for group, values in before:
                group.update(values)

    def _options(self, group: dict[str, Any]) -> dict[str, bool]:
        """The options with which a group can be captured. CPUs have no graphs, and refuse them."""
        if group["params"][0].device.type == "cpu":
            return {}
        if "capturable" in group:
            self.optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]  (by warm-up steps)
            return {"capturable": True}
        return {"fused": True, "foreach": False}  # other versions of SGD read the learning rate on the host


def _move_counts(state: dict[str, Any], device: torch.device) -> None:
    """Move step counts and other scalars to the device. Old checkpoints have step counts that are numbers."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            if value.ndim == 0 and value.device != device:
                state[name] = value.to(device)
        elif name == "step":
            state[name] = torch.tensor(float(value), device=device)
