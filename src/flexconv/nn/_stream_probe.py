"""Finds layers that act along time, by the sizes that they get for chunks of two lengths.

A linear layer or a layer norm acts along the last axes of its input. Whether these are features or time is decided by
the `forward` of the model that it is in. So the model runs on two short chunks of zeros.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn


def sizes_follow_time(
    model: Callable[[torch.Tensor], object],
    convolutions: Sequence[tuple[nn.Module, int, int]],
    watched: Mapping[str, tuple[nn.Module, int]],
    chunk: torch.Tensor,
) -> str | None:
    """The name of the first of the watched layers whose sizes change with the length of a chunk, or None.

    Arguments:
        model: starts a new stream with a chunk.
        convolutions: the causal layers, each with its time axis, counted from the end, and its stride along it.
        watched: layers by name, each with the number of its last axes that must not be time.
        chunk: a chunk as the model gets it. Only its shape, dtype and device matter.

    """
    axes = [axis for _, axis, _ in convolutions]
    unit = math.prod([stride for _, _, stride in convolutions])
    others = [axis for axis in range(-chunk.ndim, 0) if axis not in axes]
    for axis in [*dict.fromkeys(axes), *others]:  # the model may move its axes first
        if axis < -chunk.ndim:
            continue
        shapes = []
        for length in (unit, 2 * unit):
            size = list(chunk.shape)
            size[axis] = length
            shapes.append(_input_shapes(model, [layer for layer, _, _ in convolutions], watched, chunk.new_zeros(size)))
        (before, first_before), (after, first_after) = shapes
        if first_before is None or first_after is None or first_before[axes[0]] == first_after[axes[0]]:
            continue  # this axis is not time: the first causal layer did not get more samples
        for name, (_, number) in watched.items():
            if name in before and name in after and before[name][-number:] != after[name][-number:]:
                return name
        return None
    return None


def _input_shapes(
    model: Callable[[torch.Tensor], object],
    convolutions: Sequence[nn.Module],
    watched: Mapping[str, tuple[nn.Module, int]],
    x: torch.Tensor,
) -> tuple[dict[str, torch.Size], torch.Size | None]:
    """The shapes of the inputs of the watched layers, and of the first causal layer, as far as the model runs."""
    shapes: dict[str, torch.Size] = {}
    first: list[torch.Size] = []

    def record(name: str) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if first and inputs and isinstance(inputs[0], torch.Tensor):  # before any convolution, nothing is known
                shapes.setdefault(name, inputs[0].shape)

        return hook

    hooks = [module.register_forward_pre_hook(record(name)) for name, (module, _) in watched.items()]
    hooks += [each.register_forward_pre_hook(lambda _, inputs: first.append(inputs[0].shape)) for each in convolutions]
    try:
        with contextlib.suppress(Exception):  # the real chunk will raise it
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return shapes, first[0] if first else None
