"""How a training step runs: operation by operation, with compiled regions, or captured and replayed as a whole.

All engines take the same steps up to rounding. `EagerEngine` is the plain one. The other two exist for speed and are
provided by `flexconv._fast`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from rich.markup import escape
from torch import nn

from .._registry import fast_version
from ..data import Batch
from ..errors import first_line
from ..nn import refresh_extents
from .recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STEPS_WORTH_COMPILING = 1000  # on a GPU: compilation takes about a minute, which shorter runs do not win back

Compute = Callable[[Batch, float], None]


class Engine(Protocol):
    """Runs training steps: calls `compute(batch, sample_weight)` and keeps the kernel sizes up to date."""

    @property
    def name(self) -> str: ...

    def step(self, batch: Batch, sample_weight: float) -> None: ...


class EagerEngine:
    """Runs a step operation by operation. The other engines are tested against this one."""

    name = "eager"

    def __init__(self, model: nn.Module, compute: Compute) -> None:
        self.model, self.compute = model, compute
        self.on_cpu = next(model.parameters()).device.type == "cpu"

    def step(self, batch: Batch, sample_weight: float) -> None:
        """Run one training step."""
        self.compute(batch, sample_weight)
        if not self.on_cpu:
            refresh_extents(self.model)  # one copy to the host for all layers, instead of one per layer


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
    """Return the engine that the recipe asks for, or the next best one that works here.

    Reports fallbacks through `say`. `batch_size` is the number of samples that this process has of a full batch.
    `steps` is the length of the whole run, by which `engine: auto` decides.
    """
    wanted = fastest(recipe, fabric, steps) if recipe.engine == "auto" else recipe.engine
    if wanted == "graph" and (missing := _missing_for_a_graph(recipe, fabric)):
        wanted = "eager" if fabric.device.type == "cpu" else "compiled"
        say(f"[yellow]engine: graph[/] needs {missing}; using engine: {wanted} instead")
    if wanted != "eager" and (problem := _cannot_run(wanted, fabric.device)):
        say(f"[yellow]engine: {wanted}[/] {escape(problem)}; using engine: eager instead")
        wanted = "eager"
    if wanted == "eager":
        return EagerEngine(model, compute)
    say("compiling during the first steps, for about a minute")
    if wanted == "compiled":
        return fast_version("train.compiled_engine")(model, compute, batch_size)  # type: ignore[misc]
    return fast_version("train.graph_engine")(model, optimizer, compute, batch_size)  # type: ignore[misc]


def fastest(recipe: Recipe, fabric: Fabric, steps: int) -> str:
    """Return the name of the fastest engine for a run of this many steps.

    Deterministic runs use the eager engine: a captured step depends on the kernel sizes at the time of the capture, so
    an interrupted run would differ by rounding from an uninterrupted one.
    """
    if fabric.device.type == "cpu" or recipe.deterministic or steps < STEPS_WORTH_COMPILING:
        return "eager"
    return "compiled" if _missing_for_a_graph(recipe, fabric) else "graph"


def _missing_for_a_graph(recipe: Recipe, fabric: Fabric) -> str | None:
    """Return what prevents the capture of steps, or None."""
    if fabric.device.type != "cuda":
        return "a GPU"
    if fabric.world_size > 1:
        return "a single process"
    return "a precision other than fp16" if recipe.precision == "fp16" else None


def _cannot_run(engine: str, device: torch.device) -> str | None:
    """Return why a fast engine does not work on a device, or None if it does."""
    if fast_version(f"train.{engine}_engine") is None:
        return "needs flexconv._fast, which is not installed"
    try:
        torch.compile(torch.neg)(torch.ones(8, device=device))
    except Exception as error:  # no compiler for the host, no Triton for the GPU, or anything else
        return f"needs torch.compile, which fails here ({first_line(error)})"
    return None
