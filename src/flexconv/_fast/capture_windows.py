"""Kernel sizes for a captured step: windows with room to grow, watched without stopping the device.

A graph has the windows of the steps that warmed up for it. Every few steps the masks are sent to the host; nobody waits
for them, they are read when the next ones are sent. Until a mask may have left its window there is time to react.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.func import vmap

from ..nn import Axis, FlexConvNd, TapRange, refresh_extents
from .kernel_sampler import settings_of

STEPS_BETWEEN_LOOKS = 8

Windows = tuple[TapRange, ...]
Bounds = list[list[float]]  # [axes][low, high]


class CaptureWindows:
    """The windows of all layers of a model that is trained by an optimiser."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
        self.layers = [(layer, source) for layer in layers if (source := layer.size_source) is not None]
        groups: dict[object, list[int]] = {}
        for number, (layer, source) in enumerate(self.layers):
            shapes = [p.shape for p in source.size_parameters()]
            likeness = repr((type(source), settings_of(source), layer.axes, shapes))  # type: ignore[arg-type]
            groups.setdefault(likeness, []).append(number)
        self._alike = list(groups.values())  # layers whose bounds are one formula, by their numbers
        self._windows: list[Windows] = []
        self._sent: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def hold(self) -> None:
        """Have every layer believe that its window is up to date; chosen with room to grow, until `release`.

        So steps before a capture have the shapes that are captured, wherever masks go meanwhile.
        """
        refresh_extents(self.model)
        if self.layers and not self._windows:
            self._windows = self._roomy()
        for (layer, _), windows in zip(self.layers, self._windows, strict=True):
            layer._extent.windows = windows

    def release(self) -> None:
        """The next ones to be held are chosen anew."""
        self._windows = []

    def _roomy(self) -> list[Windows]:
        found = []
        for (layer, _), bounds in zip(self.layers, self._bounds(self._packed().cpu()), strict=True):
            needed = _with_room(layer.axes, bounds, 2 * self._room())
            found.append(tuple(axis.rung(taps) for axis, taps in zip(layer.axes, needed, strict=True)))
        return found

    def still_fit(self) -> bool:
        """Whether the windows held suit the sizes that were sent for at the last call; sends for the next."""
        fit = True
        if self._sent is not None and self._windows:
            values, arrived = self._sent
            arrived.synchronize()
            fit = all(
                self._fits(layer.axes, bounds, windows)
                for (layer, _), bounds, windows in zip(self.layers, self._bounds(values), self._windows, strict=True)
            )
        if self.layers:
            on_device = self._packed()
            host = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            host.copy_(on_device, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._sent = host, arrived
        return fit

    def _fits(self, axes: tuple[Axis, ...], bounds: Bounds, windows: Windows) -> bool:
        """Large enough, and not larger than for a size that is sure to stay below them."""
        needed = _with_room(axes, bounds, self._room())
        if any(n[0] < w[0] or n[1] > w[1] for n, w in zip(needed, windows, strict=True)):
            return False
        roomy = _with_room(axes, bounds, 4 * self._room())
        smaller = [axis.rung(taps) for axis, taps in zip(axes, roomy, strict=True)]
        return all(s[1] - s[0] >= w[1] - w[0] for s, w in zip(smaller, windows, strict=True))

    def _room(self) -> float:
        """How far a bound may move before somebody looks at it again.

        What is looked at is up to two looks old; Adam moves a parameter by about its rate, and so a bound, which is a
        mean and some 2.15 σ, by less than four times that.
        """
        groups = self.optimizer.param_groups
        masks = [group for group in groups if group.get("name") == "masks"] or groups
        return 4 * 2 * STEPS_BETWEEN_LOOKS * max(group["base_lr"] for group in masks)

    def _packed(self) -> torch.Tensor:
        """All parameters that sizes depend on, one behind the other."""
        return torch.cat([p.detach().flatten().float() for _, source in self.layers for p in source.size_parameters()])

    def _bounds(self, packed: torch.Tensor) -> list[Bounds]:
        """The bounds of every layer from a host copy of `_packed`; layers of like masks and grids at once."""
        pieces = iter(packed.split([p.numel() for _, source in self.layers for p in source.size_parameters()]))
        values = [[next(pieces).view(p.shape) for p in source.size_parameters()] for _, source in self.layers]
        found: list[Bounds] = [[]] * len(self.layers)
        for numbers in self._alike:
            layer, source = self.layers[numbers[0]]
            stacked = [torch.stack(each) for each in zip(*(values[number] for number in numbers), strict=True)]
            bounds = vmap(lambda *given, of=source, axes=layer.axes: of.bounds(given, axes))(*stacked).tolist()
            for number, each in zip(numbers, bounds, strict=True):
                found[number] = each
        return found


def _with_room(axes: tuple[Axis, ...], bounds: Bounds, room: float) -> Windows:
    """The taps in use, and those within `room` of them."""
    return tuple(axis.taps_between(low - room, high + room) for axis, (low, high) in zip(axes, bounds, strict=True))
