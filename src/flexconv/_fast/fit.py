"""Fast gradients for fitting generators to pictures on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from .._registry import provide

if TYPE_CHECKING:
    from ..nn.kernels import KernelGenerator
    from ..train.fit_group import FitGroup


def fit_step(group: FitGroup, generator: KernelGenerator) -> Callable[[], object] | None:
    """Return a function that computes the gradients of a group of generators like `generator`.

    It uses Triton kernels for the generators that they support, and the compiled loss for others. Returns None on a
    CPU, where the plain version is used.
    """
    if group.targets.device.type != "cuda":
        return None
    return fused_step(group, generator) or _compiled_step(group)


def fused_step(group: FitGroup, generator: KernelGenerator) -> Callable[[], torch.Tensor] | None:
    """Return a step that consists of a few Triton kernels; None without Triton or for an unsupported generator."""
    if torch.version.hip is not None:  # the kernels contain NVIDIA instructions
        return None
    try:
        from .fused_fit import FusedSirenStep, FusedStep, can_fuse, can_fuse_siren
    except ImportError:
        return None
    lines = group.rows[:, 0, 0], group.rows[0, 1]
    if can_fuse_siren(generator):
        return FusedSirenStep(group.parameters, group.buffers["omega_0"], group.targets, *lines)
    return FusedStep(group.parameters, group.targets, *lines) if can_fuse(generator) else None


def _compiled_step(group: FitGroup) -> Callable[[], None]:
    squared_error = torch.compile(group.squared_error, dynamic=False)
    return lambda: group.compute_gradients(squared_error)


provide("train.fit_step", fit_step)
