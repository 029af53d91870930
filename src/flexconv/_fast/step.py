"""The context in which a fast engine runs a training step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from torch import nn

from .._registry import provide
from ..ops import launches_are_free
from .blocks import fused_blocks
from .kernel_sampler import KernelSampler
from .regions import compiled_regions, provide_region


@contextlib.contextmanager
def fast_step(model: nn.Module, kernels: KernelSampler) -> Iterator[None]:
    """Inside, `model` computes a step with everything that exists for speed.

    `kernels` must have been made for the model at its current kernel sizes.
    """
    with launches_are_free(), compiled_regions(), fused_blocks(model), kernels.ahead():
        yield


def _step_of(model: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Return `fast_step` for a model whose kernel sizes do not change."""
    return functools.partial(fast_step, model, KernelSampler(model))


provide("bench.step", _step_of)
provide_region("train.loss", dynamic=False)
