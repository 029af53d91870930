"""Kernel sizes for a captured step: windows with room to grow, checked without waiting for the device.

A graph uses the windows of its warm-up steps. Every few steps the mask parameters are copied to the host
asynchronously, and the copy is read when the next one is started. The windows have enough room that no mask can leave
its window before it is noticed.
"""

from __future__ import annotations

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

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
        self.layers = [(layer, source) for layer in layers if (source := layer.size_source) is not None]
        groups: dict[object, list[int]] = {}
        for number, (layer, source) in enumerate(self.layers):
            shapes = [p.shape for p in source.size_parameters()]
            key = repr((type(source), settings_of(source), layer.axes, shapes))  # type: ignore[arg-type]
            groups.setdefault(key, []).append(number)
        self._groups = list(groups.values())  # numbers of layers whose bounds are computed by the same formula
        self._windows: list[Windows] = []
        self._copy: tuple[torch.Tensor, torch.cuda.Event] | None = None

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
        self._windows = []

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
            values, arrived = self._copy
            arrived.synchronize()
            fit = all(
                self._fits(layer.axes, bounds, windows, self._room(source, bounds))
                for (layer, source), bounds, windows in zip(
                    self.layers, self._bounds(values), self._windows, strict=True
                )
            )
        if self.layers:
            on_device = self._packed()
            host = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            host.copy_(on_device, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._copy = host, arrived
        return fit

    @staticmethod
    def _fits(axes: tuple[Axis, ...], bounds: Bounds, windows: Windows, room: float) -> bool:
        """Whether windows are large enough, and a smaller one would not be enough with plenty of room."""
        needed = _with_room(axes, bounds, room)
        if any(n[0] < w[0] or n[1] > w[1] for n, w in zip(needed, windows, strict=True)):
            return False
        roomy = _with_room(axes, bounds, 4 * room)
        smaller = [axis.window_for(taps) for axis, taps in zip(axes, roomy, strict=True)]
        return all(s[1] - s[0] >= w[1] - w[0] for s, w in zip(smaller, windows, strict=True))

    def _room(self, source: object, bounds: Bounds) -> float:
        """Return how far a bound may move before the next check.

        A check uses values that are up to two checks old. Adam changes a parameter by about its learning rate per step.
        """
        groups = self.optimizer.param_groups
        masks = [group for group in groups if group.get("name") == "masks"] or groups
        rate = source.bound_rate(bounds) if isinstance(source, GaussianMask) else 4.0
        return rate * 2 * STEPS_BETWEEN_CHECKS * max(group["base_lr"] for group in masks)

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
