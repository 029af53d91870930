"""The engine that runs training steps with compiled regions. `capture.py` has the one that captures whole steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from .._registry import provide
from ..nn import refresh_extents
from .kernel_sampler import KernelSampler
from .step import fast_step

if TYPE_CHECKING:
    from ..data import Batch


class CompiledEngine:
    """Samples the kernels of all layers together and compiles regions of the step.

    A region is compiled once per shape, not once per combination of kernel sizes. Batches of another size than
    `batch_size`, such as the last one of an epoch, run without compilation.
    """

    name = "compiled"

    def __init__(self, model: nn.Module, compute: Callable[[Batch, float], None], batch_size: int) -> None:
        self.model, self.compute, self.batch_size = model, compute, batch_size
        self._kernels = KernelSampler(model)

    def step(self, batch: Batch, sample_weight: float) -> None:
        """Run one training step."""
        refresh_extents(self.model)
        if len(batch[1]) != self.batch_size:
            self.compute(batch, sample_weight)
            return
        if not self._kernels.up_to_date:
            self._kernels = KernelSampler(self.model)
        with fast_step(self.model, self._kernels):
            self.compute(batch, sample_weight)


provide("train.compiled_engine", CompiledEngine)
