"""Example inputs: one to trace a model with, and others of different batch and size for the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from .._arguments import per_axis
from ..errors import ArgumentError, ArgumentTypeError
from ..models import Inputs, trained_size
from ._standalone import raw_dtype, raw_noise, raw_shape

Tensors = tuple[torch.Tensor, ...]

AXES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
TRACED_BATCH = 2  # torch.export takes a batch of 1 for a constant
STEP = 16  # sizes grow by a power of two, at most this one, so that pooling and upsampling still fit


def make_example(
    model: nn.Module,
    example: torch.Tensor | Sequence[torch.Tensor] | None,
    shape: Sequence[int] | None,
    preprocessing: Inputs | None,
) -> Tensors:
    """The given inputs, or noise of the given shape, or noise of the size that a network of flexconv.models is for.

    With preprocessing, the first input consists of raw samples.
    """
    if example is not None and shape is not None:
        raise ArgumentError(f"give either example or shape, not both; got shape={tuple(shape)} as well")
    if example is not None:
        tensors = (example,) if isinstance(example, torch.Tensor) else tuple(example)
        if not tensors or not all(isinstance(each, torch.Tensor) for each in tensors):
            raise ArgumentTypeError(
                f"example must be a tensor, or a tuple with all tensors that forward takes; got {example!r}"
            )
        return _checked(tuple(each.detach().cpu() for each in tensors), preprocessing)
    if shape is None:
        shape = _own_shape(model) if preprocessing is None else (1, *raw_shape(preprocessing))
    sizes = per_axis("shape", tuple(shape), len(tuple(shape)), minimum=1)
    if preprocessing is not None:
        return (raw_noise(preprocessing, sizes),)
    return (torch.randn(sizes, generator=torch.Generator().manual_seed(0)),)


def _checked(example: Tensors, preprocessing: Inputs | None) -> Tensors:
    """The example, if it has the dtypes that the file will expect."""
    wanted = torch.float32 if preprocessing is None else raw_dtype(preprocessing)
    if preprocessing is not None and example[0].dtype != wanted:
        raise ArgumentError(
            f"the file standardizes raw samples, which are {wanted}, but the example is {example[0].dtype}: give raw "
            f"samples, or preprocessing=False for standardized inputs"
        )
    for each in example:
        if each.is_floating_point() and each.dtype != torch.float32:
            raise ArgumentError(f"export writes float32, but the example is {each.dtype}: convert it with .float()")
    return example


def _own_shape(model: nn.Module) -> tuple[int, ...]:
    size = trained_size(model)
    if size is None:
        raise ArgumentError(
            f"the input shape of {type(model).__name__} is not known: give shape=(1, channels, …), or example= with an "
            f"input or a tuple of inputs"
        )
    channels: int = model.in_channels  # type: ignore[assignment]  (it is a Model: it has a size)
    return (1, channels, *size)


# --- axes -------------------------------------------------------------------------------------------------------------


def free_axes(tensor: torch.Tensor, *, fixed_sizes: bool) -> dict[int, str]:
    """Axes of an input that may have any size, with their names: the batch and the axes after the channels."""
    if tensor.ndim == 0:
        return {}
    spatial = range(2, tensor.ndim) if not fixed_sizes else ()
    names = AXES.get(tensor.ndim - 2, tuple(f"size_{axis}" for axis in spatial))
    return {0: "batch"} | {axis: names[axis - 2] for axis in spatial}


def for_tracing(example: Tensors, *, fixed_sizes: bool) -> Tensors:
    """The example with a size of at least 2 on every free axis."""
    for tensor in example:
        for axis, name in free_axes(tensor, fixed_sizes=fixed_sizes).items():
            if axis and tensor.shape[axis] < 2:
                raise ArgumentError(
                    f"the {name} of the example must be at least 2, so that the file accepts any {name}; got "
                    f"{tuple(tensor.shape)}. With fixed_sizes=True the file accepts only the sizes of the example"
                )
    batch = max(TRACED_BATCH, *(tensor.shape[0] for tensor in example if tensor.ndim), 0)
    return tuple(_resized(tensor, {0: batch} if tensor.ndim else {}) for tensor in example)


def other_examples(example: Tensors, *, fixed_sizes: bool) -> tuple[list[Tensors], list[Tensors]]:
    """Inputs of other batches, and inputs of larger and smaller sizes, which some models do not accept."""
    batch = max([tensor.shape[0] for tensor in example if tensor.ndim], default=1)
    batches = [_varied(example, size, None) for size in sorted({1, batch + 2} - {batch})]
    return batches, ([] if fixed_sizes else [_varied(example, batch + 1, True), _varied(example, batch, False)])


def _varied(example: Tensors, batch: int, larger: bool | None) -> Tensors:
    results = []
    for tensor in example:
        sizes = {axis: tensor.shape[axis] for axis in free_axes(tensor, fixed_sizes=larger is None)}
        for axis, size in sizes.items():
            # height and width change differently; equal axes of two inputs stay equal
            sizes[axis] = size + (axis - 1) * math.gcd(size, STEP) if larger else -(-size // axis) if axis else size
        if 0 in sizes:
            sizes[0] = batch
        results.append(_resized(tensor, sizes))
    return tuple(results)


def _resized(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """The tensor cut or repeated to new sizes of some axes. Repeated floats get random amplitudes."""
    before = tensor.shape
    for axis, size in sizes.items():
        tensor = tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
    if tensor.shape == before or not tensor.is_floating_point():
        return tensor
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=tensor.dtype)
    return tensor * (0.5 + noise)
