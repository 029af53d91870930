"""How a training step runs: operation by operation, with compiled regions, or captured whole and replayed.

All three take the same steps, to rounding. `make_engine` gives the one that was asked for, or the next best one where
something is missing that it needs, and says so; or, where nobody asked, the one that a run is soonest over with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from lightning.fabric import Fabric
from rich.markup import escape
from torch import nn

from .._fast.capture import GraphEngine, brief
from .._fast.kernel_batch import KernelsTogether
from .._fast.regions import compiled_regions
from ..data import Batch
from ..nn import refresh_extents
from .recipe import Recipe

STEPS_WORTH_COMPILING = 1000  # on a GPU: that many one by one take longer than the compiler, which needs a minute

Compute = Callable[[Batch, float], None]


class Engine(Protocol):
    """Takes steps: `compute(batch, share)` by another name, and the kernel sizes that follow from it."""

    @property
    def name(self) -> str: ...

    def step(self, batch: Batch, share: float) -> None: ...


class EagerEngine:
    """Operation by operation. Every other engine is measured against this one."""

    name = "eager"

    def __init__(self, model: nn.Module, compute: Compute) -> None:
        self.model, self.compute = model, compute
        self.on_cpu = next(model.parameters()).device.type == "cpu"

    def step(self, batch: Batch, share: float) -> None:
        self.compute(batch, share)
        if not self.on_cpu:
            refresh_extents(self.model)  # one copy to the host for all layers, instead of one each


class CompiledEngine:
    """Kernels of all layers together, and regions compiled: once for each shape, not for each set of kernel sizes.

    For batches of `batch_size`; the last one of an epoch, where it is smaller, is not worth compiling for.
    """

    name = "compiled"

    def __init__(self, model: nn.Module, compute: Compute, batch_size: int) -> None:
        self.model, self.compute, self.batch_size = model, compute, batch_size
        self._kernels = KernelsTogether(model)

    def step(self, batch: Batch, share: float) -> None:
        refresh_extents(self.model)
        if len(batch[1]) != self.batch_size:
            self.compute(batch, share)
            return
        if not self._kernels.up_to_date:
            self._kernels = KernelsTogether(self.model)
        with compiled_regions(), self._kernels.ahead():
            self.compute(batch, share)


def make_engine(
    recipe: Recipe,
    fabric: Fabric,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    compute: Compute,
    say: Callable[[str], None],
    *,
    batch_size: int,
    steps: int,
) -> Engine:
    """The engine that a recipe asks for, as far as device, processes and precision allow; `say` hears of the rest.

    `batch_size` is what this process has of a whole batch; `steps`, how many the whole run has, is what `auto` goes by.
    """
    wanted = fastest(recipe, fabric, steps) if recipe.engine == "auto" else recipe.engine
    if wanted == "graph" and (lacking := _lacking_for_a_graph(recipe, fabric)):
        wanted = "eager" if fabric.device.type == "cpu" else "compiled"
        way = "step by step" if wanted == "eager" else "with compiled regions"
        say(f"[yellow]engine: graph[/] needs {lacking}; training {way} instead")
    if wanted != "eager" and (problem := _cannot_compile(fabric.device)):
        instead = f"training step by step ({escape(problem)})"
        say(f"[yellow]engine: {wanted}[/] needs torch.compile, which fails here; {instead}")
        wanted = "eager"
    if wanted == "eager":
        return EagerEngine(model, compute)
    say("the first steps are compiled, for about a minute")
    if wanted == "compiled":
        return CompiledEngine(model, compute, batch_size)
    return GraphEngine(model, optimizer, compute, batch_size)


def fastest(recipe: Recipe, fabric: Fabric, steps: int) -> str:
    """The engine that has a run of so many steps over with soonest.

    Deterministic runs are taken step by step: the windows of a capture depend on when it was made, so that a run that
    was interrupted would differ by rounding from one that was not.
    """
    if fabric.device.type == "cpu" or recipe.deterministic or steps < STEPS_WORTH_COMPILING:
        return "eager"
    return "compiled" if _lacking_for_a_graph(recipe, fabric) else "graph"


def _lacking_for_a_graph(recipe: Recipe, fabric: Fabric) -> str | None:
    if fabric.device.type != "cuda":
        return "a GPU"
    if fabric.world_size > 1:
        return "a single process"
    return "a precision other than fp16" if recipe.precision == "fp16" else None


def _cannot_compile(device: torch.device) -> str | None:
    """Why torch.compile does not work on a device, if so: no compiler for the host, no Triton for a GPU."""
    try:
        torch.compile(torch.neg)(torch.ones(8, device=device))
    except Exception as error:  # whatever it is, there is a way without
        return brief(error)
    return None
