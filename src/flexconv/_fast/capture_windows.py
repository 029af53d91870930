"""Kernel sizes for a captured step: windows with room to grow, checked without waiting for the device.

A graph uses the windows of its warm-up steps. Every few steps the mask parameters are copied to the host
asynchronously, and the copy is read when the next one is started. The windows have enough room that no mask can leave
its window before it is noticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import vmap

from ..nn import Axis, FlexConvNd, GaussianMask, TapRange, refresh_extents
from .kernel_sampler import settings_of

STEPS_BETWEEN_CHECKS = 8

Windows = tuple[TapRange, ...]
Bounds = list[list[float]]  # [axes][low, high]


class CaptureWindows:
    """The windows of all layers of a model during a capture."""

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.model, self.optimizers = model, optimizers
        layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
        self.layers = [(layer, source) for layer in layers if (source := layer.size_source) is not None]
        groups: dict[object, list[int]] = {}
        for number, (layer, source) in enumerate(self.layers):
            shapes = [p.shape for p in source.size_parameters()]
            key = repr((type(source), settings_of(source), layer.axes, shapes))  # type: ignore[arg-type]
            groups.setdefault(key, []).append(number)
        self._groups = list(groups.values())  # numbers of layers whose bounds are computed by the same formula
        self._windows: list[Windows] = []
        self._copy: _HostCopy | None = None
        self._bounds_before: list[Bounds] | None = None  # at the last check
        self._versions = self._version_numbers()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, all layers use the windows of `hold`, also after an optimizer step and in compiled code."""
        self.hold()
        before = [layer._extent.compiled_windows for layer, _ in self.layers]
        for layer, _ in self.layers:
            layer._extent.compiled_windows = layer._extent.windows
            layer._extent.refresh_if_changed = _do_nothing
        try:
            yield
        finally:
            for (layer, _), compiled_windows in zip(self.layers, before, strict=True):
                layer._extent.compiled_windows = compiled_windows
                del layer._extent.refresh_if_changed
            self.note_versions()

    def hold(self) -> None:
        """Set the windows of all layers, chosen with room to grow. They stay the same until `release`.

        So the steps before a capture have the shapes of the capture, also if masks change in between.
        """
        refresh_extents(self.model)
        if self.layers and not self._windows:
            self._windows = self._choose()
        for (layer, _), windows in zip(self.layers, self._windows, strict=True):
            layer._extent.windows = windows

    def release(self) -> None:
        """Let the next call of `hold` choose new windows."""
        self._windows, self._bounds_before = [], None

    def _choose(self) -> list[Windows]:
        found = []
        for (layer, source), bounds in zip(self.layers, self._bounds(self._packed().cpu()), strict=True):
            needed = _with_room(layer.axes, bounds, 2 * self._room(source, bounds))
            found.append(tuple(axis.window_for(taps) for axis, taps in zip(layer.axes, needed, strict=True)))
        return found

    def still_fit(self) -> bool:
        """Whether the windows suit the masks as of the last call. Starts the copy for the next call."""
        fit = True
        if self._copy is not None and self._windows:
            found = self._bounds(self._copy.values())
            moved = [_distance(*pair) for pair in zip(found, self._bounds_before or found, strict=True)]
            self._bounds_before = found
            fit = all(
                self._fits(layer.axes, bounds, windows, self._room(source, bounds, distance))
                for (layer, source), bounds, windows, distance in zip(
                    self.layers, found, self._windows, moved, strict=True
                )
            )
        if self.layers:
            self._copy = _HostCopy(self._packed())
        return fit

    def note_versions(self) -> None:
        """Record that the parameters that sizes depend on were changed by a training step."""
        self._versions = self._version_numbers()

    def fit_after_changes(self) -> bool:
        """Whether the windows are large enough. Waits for the device, but only if something else than a step has
        changed the parameters that sizes depend on, such as `load_state_dict`.
        """
        if not self._windows or self._versions == self._version_numbers():
            return True
        self.note_versions()
        self._copy = self._bounds_before = None
        return all(
            _contains(windows, _with_room(layer.axes, bounds, self._room(source, bounds)))
            for (layer, source), bounds, windows in zip(
                self.layers, self._bounds(self._packed().cpu()), self._windows, strict=True
            )
        )

    def _version_numbers(self) -> list[int]:
        return [p._version for _, source in self.layers for p in source.size_parameters()]

    @staticmethod
    def _fits(axes: tuple[Axis, ...], bounds: Bounds, windows: Windows, room: float) -> bool:
        """Whether windows are large enough, and a smaller one would not be enough with plenty of room."""
        if not _contains(windows, _with_room(axes, bounds, room)):
            return False
        roomy = _with_room(axes, bounds, 4 * room)
        smaller = [axis.window_for(taps) for axis, taps in zip(axes, roomy, strict=True)]
        return all(s[1] - s[0] >= w[1] - w[0] for s, w in zip(smaller, windows, strict=True))

    def _room(self, source: Any, bounds: Bounds, moved: float = 0.0) -> float:
        """Return how far a bound may move before the next check.

        A check uses values that are up to two checks old. Adam changes a parameter by about its learning rate per step.
        Other optimizers may take larger steps: `moved` is how far the bounds moved since the last check.
        """
        sizes = {id(p) for p in source.size_parameters()}
        groups = [group for each in self.optimizers for group in each.param_groups]
        own = [group for group in groups if any(id(p) in sizes for p in group["params"])]
        rate = source.bound_rate(bounds) if isinstance(source, GaussianMask) else 4.0
        step = max((_largest_rate(group) for group in own), default=0.0)
        return max(rate * 2 * STEPS_BETWEEN_CHECKS * step, 2 * moved)

    def _packed(self) -> torch.Tensor:
        """Return all parameters on which sizes depend, concatenated."""
        return torch.cat([p.detach().flatten().float() for _, source in self.layers for p in source.size_parameters()])

    def _bounds(self, packed: torch.Tensor) -> list[Bounds]:
        """Compute the bounds of every layer from a host copy of `_packed`, group by group."""
        pieces = iter(packed.split([p.numel() for _, source in self.layers for p in source.size_parameters()]))
        values = [[next(pieces).view(p.shape) for p in source.size_parameters()] for _, source in self.layers]
        found: list[Bounds] = [[]] * len(self.layers)
        for numbers in self._groups:
            layer, source = self.layers[numbers[0]]
            stacked = [torch.stack(each) for each in zip(*(values[number] for number in numbers), strict=True)]
            bounds = vmap(lambda *given, of=source, axes=layer.axes: of.bounds(given, axes))(*stacked).tolist()
            for number, each in zip(numbers, bounds, strict=True):
                found[number] = each
        return found


def _with_room(axes: tuple[Axis, ...], bounds: Bounds, room: float) -> Windows:
    """Return the taps in use, extended by `room` on both sides."""
    return tuple(axis.taps_between(low - room, high + room) for axis, (low, high) in zip(axes, bounds, strict=True))


def _contains(windows: Windows, needed: Windows) -> bool:
    return all(w[0] <= n[0] and n[1] <= w[1] for n, w in zip(needed, windows, strict=True))


def _distance(bounds: Bounds, before: Bounds) -> float:
    """How far the bounds of a layer have moved at most."""
    return max(abs(a - b) for now, then in zip(bounds, before, strict=True) for a, b in zip(now, then, strict=True))


def _largest_rate(group: dict[str, Any]) -> float:
    """The largest known learning rate of a group: that of the recipe, or the current one and those of a scheduler."""
    if "base_lr" in group:
        return float(group["base_lr"])
    return max(float(group[name]) for name in ("lr", "initial_lr", "max_lr") if name in group)


def _do_nothing(*_: object, **__: object) -> None:
    """Replaces the method with which a layer refreshes its size."""


class _HostCopy:
    """A copy of a tensor in host memory, which is made without waiting for the device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._values.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        else:
            self._values = tensor.clone()

    def values(self) -> torch.Tensor:
        """Return the values, as soon as they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values
