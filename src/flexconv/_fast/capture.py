"""A training step without the host: captured once as a CUDA graph, then replayed.

The graph holds kernel sizes as they were shortly before it was captured, with room to grow; when a mask has come near
the edge of its window, or far from it, the step is captured anew. The first steps before a capture run one by one: they
are real steps, and warm up what a capture may not.
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
from .capture_windows import STEPS_BETWEEN_LOOKS, CaptureWindows
from .kernel_sampler import KernelSampler
from .step import fast_step

if TYPE_CHECKING:
    from ..data import Batch

WARM_STEPS = 2


class GraphEngine:
    """Runs `compute(batch, sample_weight)` as a replayed graph, for batches of `batch_size`; others as they are."""

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
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # warm steps are on other streams
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._steps = 0

    def step(self, batch: Batch, sample_weight: float) -> None:
        """One step of training."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN_LOOKS == 0 and not self.windows.still_fit():
            self._graph, self._warm = None, WARM_STEPS - 1  # one step at the new sizes, then a capture
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
        """A step as it will be captured, on a stream of its own as there, so that libraries have their workspaces."""
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
        for mine, given in zip(self._batch, batch, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given)
        self._graph.replay()
        parameters_changed()

    def _run(self, batch: Batch, sample_weight: float, *, capture: torch.cuda.CUDAGraph | None = None) -> None:
        """Take a step, or capture it."""
        self.windows.hold()
        self._kernels = KernelSampler(self.model)  # a graph reads its coordinates: they must live as long
        try:
            captured = contextlib.nullcontext() if capture is None else _captured(capture)
            with captured, fast_step(self.model, self._kernels):
                self.compute(batch, sample_weight)
        except Exception as error:
            way, first = "compiled" if capture is None else "captured", error
            if capture is not None and isinstance(error.__context__, Exception):
                first = error.__context__  # the end of a capture that failed fails, too
            advice = "with engine=eager it is trained step by step, from where it is if resumed"
            raise UsageError(f"steps of this network cannot be {way} ({first_line(first)}); {advice}") from error

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


@contextlib.contextmanager
def _captured(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is inside. Python collects no garbage meanwhile: another graph among it would end the capture.

    Other threads may do as they like: one of them may read the next batches into pinned memory.
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
