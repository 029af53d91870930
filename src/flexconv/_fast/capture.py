"""Training steps that are captured once as a CUDA graph and then replayed, without work on the host.

The kernel sizes in a graph are fixed, with room to grow. When a mask comes close to the edge of its window, or becomes
much smaller than it, the step is captured again. A few steps before each capture run without a graph. They are training
steps like any other, and do what must not happen during a capture, such as compilation.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from .._registry import provide
from ..errors import UsageError, first_line
from ..nn import parameters_changed
from .capture_windows import STEPS_BETWEEN_CHECKS, CaptureWindows
from .kernel_sampler import KernelSampler
from .step import fast_step

if TYPE_CHECKING:
    from ..data import Batch

WARM_STEPS = 2


class GraphEngine:
    """Runs `compute(batch, sample_weight)` as a replayed graph. Batches that are not full run without a graph."""

    name = "graph"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        compute: Callable[[Batch, float], None],
        batch_size: int,
    ) -> None:
        self.model, self.optimizer, self.compute, self.batch_size = model, optimizer, compute, batch_size
        self.windows = CaptureWindows(model, optimizer)
        self.captures = 0
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # warm-up steps use another stream
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._steps = 0

    def step(self, batch: Batch, sample_weight: float) -> None:
        """Run one training step."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_CHECKS == 0 and not self.windows.still_fit():
            self._graph, self._warm = None, WARM_STEPS - 1  # one warm-up step at the new sizes, then a capture
            self.windows.release()
        if len(batch[1]) != self.batch_size:
            self._make_capturable()
            self.compute(batch, sample_weight)
        elif self._graph is None and self._warm < WARM_STEPS:
            self._warm += 1
            self._warm_up(batch, sample_weight)
        else:
            self._replay(batch, sample_weight)

    def _warm_up(self, batch: Batch, sample_weight: float) -> None:
        """Run a step as it will be captured, on a separate stream, so that libraries allocate their workspaces."""
        self._make_capturable()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run(batch, sample_weight)
        torch.cuda.current_stream().wait_stream(side)

    def _replay(self, batch: Batch, sample_weight: float) -> None:
        if self._graph is None:
            self._batch = tuple(None if each is None else each.clone() for each in batch)
            self._graph = torch.cuda.CUDAGraph()
            self._run(self._batch, sample_weight, capture=self._graph)  # type: ignore[arg-type]
            self.captures += 1
        for static, given in zip(self._batch, batch, strict=True):
            if static is not None and given is not None:
                static.copy_(given)
        self._graph.replay()
        parameters_changed()

    def _run(self, batch: Batch, sample_weight: float, *, capture: torch.cuda.CUDAGraph | None = None) -> None:
        """Run a step, or capture it."""
        self.windows.hold()
        self._kernels = KernelSampler(self.model)  # must live as long as the graph, which reads its coordinates
        try:
            captured = contextlib.nullcontext() if capture is None else _captured(capture)
            with captured, fast_step(self.model, self._kernels):
                self.compute(batch, sample_weight)
        except Exception as error:
            way, first = "compiled" if capture is None else "captured", error
            if capture is not None and isinstance(error.__context__, Exception):
                first = error.__context__  # ending a failed capture raises another error
            name = "training steps of this network"
            advice = "use engine=eager, also to resume this run"
            raise UsageError(f"{name} cannot be {way} ({first_line(first)}); {advice}") from error

    def _make_capturable(self) -> None:
        """Store learning rates and step counts as tensors on the device. Checkpoints of other engines have numbers."""
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


@contextlib.contextmanager
def _captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture the operations inside.

    Garbage collection is off, because deleting another graph would end the capture. Other threads may use the device:
    one of them may copy the next batches to pinned memory.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            yield
    finally:
        if collecting:
            gc.enable()


provide("train.graph_engine", GraphEngine)
