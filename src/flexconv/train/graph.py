"""A training step without the host: captured once as a CUDA graph, then replayed.

The graph holds sizes as they were when it was captured, with room to grow. Every few steps the masks are copied to the
host without waiting for them; when one has come near the edge of its window, or far from it, the step is captured anew.
The first steps before a capture run one by one: they are real steps, and warm up what a capture may not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ..data import Batch
from ..nn import refresh_extents
from ..nn._ahead import kernels_ahead
from ..nn._conv import FlexConvNd
from ..nn._extent import SizeSource, parameters_changed
from ..nn._grid import Window

STREAMS = 8  # for kernels of different layers
WARM_STEPS = 2
STEPS_BETWEEN_LOOKS = 16

Windows = tuple[Window, ...]


class GraphEngine:
    """Runs `compute(batch, share)` as a replayed graph, for batches of `batch_size`; others one by one."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        compute: Callable[[Batch, float], None],
        batch_size: int,
    ) -> None:
        self.model, self.optimizer, self.compute, self.batch_size = model, optimizer, compute, batch_size
        layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
        self.layers = [(layer, source) for layer in layers if (source := layer._size_source) is not None]
        self.streams = [torch.cuda.Stream() for _ in range(min(STREAMS, len(layers)))]
        self.captures = 0
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # kernels are on other streams
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._steps = 0
        self._copy: tuple[torch.Tensor, torch.cuda.Event] | None = None  # sizes on their way to the host

    def step(self, batch: Batch, share: float) -> None:
        """One step of training."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_LOOKS == 0:
            self._look()
        if len(batch[1]) != self.batch_size:
            self._one_by_one(batch, share)
            return
        if self._graph is None:
            if self._warm < WARM_STEPS:
                self._warm += 1
                self._one_by_one(batch, share)
                return
            self._capture(batch, share)
        for mine, given in zip(self._batch, batch, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given)
        assert self._graph is not None
        self._graph.replay()
        parameters_changed()

    def _one_by_one(self, batch: Batch, share: float) -> None:
        self._make_capturable()
        self._fix_windows()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as in a capture, so that libraries have their workspaces ready
            self._run(batch, share)
        torch.cuda.current_stream().wait_stream(side)

    def _capture(self, batch: Batch, share: float) -> None:
        self._batch = tuple(None if each is None else each.clone() for each in batch)
        self._fix_windows()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._run(self._batch, share)  # type: ignore[arg-type]
        self.captures += 1

    def _run(self, batch: Batch, share: float) -> None:
        with kernels_ahead(self.model, self.streams):
            self.compute(batch, share)

    # --- sizes --------------------------------------------------------------------------------------------------------

    def _fix_windows(self) -> None:
        """Give every layer a window with room to grow, and have it believe that this is up to date."""
        refresh_extents(self.model)
        self._windows: list[Windows] = []
        for layer, source in self.layers:
            values = [p.detach().cpu() for p in source.size_parameters()]
            needed = self._needed(layer, source, values, rooms=2)
            layer._extent.windows = tuple(axis.rung(taps) for axis, taps in zip(layer.axes, needed, strict=True))
            self._windows.append(layer._extent.windows)

    def _needed(self, layer: FlexConvNd, source: SizeSource, values: list[torch.Tensor], *, rooms: int) -> Windows:
        """The taps in use, and so many times the room that sizes may take before they are looked at again."""
        bounds = source.bounds([v.float() for v in values], layer.axes).tolist()
        # sizes are up to two looks old; Adam moves a parameter by about its rate, and so a bound by three of it
        room = rooms * 4 * 2 * STEPS_BETWEEN_LOOKS * self._rate()
        return tuple(
            axis.taps_between(low - room, high + room) for axis, (low, high) in zip(layer.axes, bounds, strict=True)
        )

    def _fits(self, layer: FlexConvNd, source: SizeSource, values: list[torch.Tensor], windows: Windows) -> bool:
        """Whether windows are large enough, and not larger than for a size that is sure to stay below them."""
        needed = self._needed(layer, source, values, rooms=1)
        if any(n[0] < w[0] or n[1] > w[1] for n, w in zip(needed, windows, strict=True)):
            return False
        roomy = self._needed(layer, source, values, rooms=4)
        smaller = [axis.rung(taps) for axis, taps in zip(layer.axes, roomy, strict=True)]
        return all(s[1] - s[0] >= w[1] - w[0] for s, w in zip(smaller, windows, strict=True))

    def _rate(self) -> float:
        """The learning rate of what decides sizes, at its highest."""
        groups = self.optimizer.param_groups
        masks = [group for group in groups if group.get("name") == "masks"] or groups
        return max(group["base_lr"] for group in masks)

    def _look(self) -> None:
        """Compare the sizes of the last look with the windows in force; send for the next."""
        if self._copy is not None:
            values, ready = self._copy
            ready.synchronize()
            start, fits = 0, True
            for (layer, source), windows in zip(self.layers, self._windows, strict=True):
                mine = []
                for parameter in source.size_parameters():
                    mine.append(values[start : start + parameter.numel()].view(parameter.shape))
                    start += parameter.numel()
                fits &= self._fits(layer, source, mine, windows)
            if not fits:
                self._graph, self._warm = None, WARM_STEPS - 1  # one step at the new sizes, then a capture
        packed = [p.detach().flatten().float() for _, source in self.layers for p in source.size_parameters()]
        if packed:
            on_device = torch.cat(packed)
            host = torch.empty(on_device.shape, pin_memory=True)
            host.copy_(on_device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
            self._copy = host, ready

    # --- the optimiser ------------------------------------------------------------------------------------------------

    def _make_capturable(self) -> None:
        """Rates and counters as tensors on the device; a checkpoint of another engine has them as numbers."""
        for group in self.optimizer.param_groups:
            device = group["params"][0].device
            group["capturable"] = True
            if not isinstance(group["lr"], torch.Tensor) or group["lr"].device != device:
                group.setdefault("base_lr", float(group["lr"]))
                group["lr"] = torch.tensor(float(group["lr"]), device=device)
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter, {})
                if "step" in state:
                    state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
