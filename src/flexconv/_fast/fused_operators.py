"""The launches of `many_launches.py` as operators of torch, for compiled code: one node each, forward and backward.

Parameters of many layers are joined before, and their gradients are views of one tensor, so that a compiler launches
nothing for single layers. Eager code launches the kernels of one layer from an `autograd.Function`, which takes less
time on the host than an operator with a registered gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import UsageError
from . import many_launches
from .sampler_launches import FeatureKind, Grid, MaskSettings

LIBRARY = torch.library.Library("flexconv", "DEF")

_FEATURES = "Tensor lines, int[] sizes, Tensor packed, int[] kind"
_MASK = "Tensor features, Tensor lines, Tensor limits, int[] sizes, Tensor packed, Tensor damping, str form, bool rotated, float? reach"  # noqa: E501
LIBRARY.define("join(Tensor[] tensors, int rows) -> Tensor")
LIBRARY.define(f"sample_features({_FEATURES}) -> (Tensor, Tensor)")
LIBRARY.define(f"sample_features_backward({_FEATURES}, Tensor kept, Tensor grad) -> Tensor")
LIBRARY.define(f"apply_mask({_MASK}) -> Tensor")
LIBRARY.define(f"apply_mask_backward({_MASK}, Tensor grad) -> (Tensor, Tensor)")
LIBRARY.define("mix_maps(Tensor weights, Tensor biases, int columns, ScalarType dtype) -> Tensor")
LIBRARY.define("mix_maps_backward(Tensor grad, int width, ScalarType dtype) -> (Tensor, Tensor)")


# --- joined tensors ---------------------------------------------------------------------------------------------------


def _join(tensors: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
    """All numbers of some tensors, one after the other, as [rows, …].

    Inductor would copy each tensor by a kernel of its own. `reshape` takes longer on the host than `view`, and there
    are a hundred tensors in a network.
    """
    return torch.cat([t.view(-1) if t.is_contiguous() else t.reshape(-1) for t in tensors]).view(rows, -1)


def _fake_join(tensors: Sequence[torch.Tensor], rows: int) -> torch.Tensor:
    return tensors[0].new_empty(rows, sum([tensor.numel() for tensor in tensors]) // rows)


def _save_shapes(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.shapes = [tensor.shape for tensor in inputs[0]]


def _join_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    pieces = grad.flatten().split([math.prod(shape) for shape in ctx.shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, ctx.shapes, strict=True)], None


# --- features ---------------------------------------------------------------------------------------------------------


def _sample_features(
    lines: torch.Tensor, sizes: Sequence[int], packed: torch.Tensor, kind: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    return many_launches.launch_features(_grid(lines, lines, sizes), packed.contiguous(), _kind(sizes, kind))


def _sample_features_backward(
    lines: torch.Tensor,
    sizes: Sequence[int],
    packed: torch.Tensor,
    kind: Sequence[int],
    kept: torch.Tensor,
    grad: torch.Tensor,
) -> torch.Tensor:
    grid = _grid(lines, lines, sizes)
    return many_launches.launch_features_backward(
        grid, packed.contiguous(), _kind(sizes, kind), kept.contiguous(), grad.contiguous()
    )


def _fake_features(
    lines: torch.Tensor,  # noqa: ARG001
    sizes: Sequence[int],
    packed: torch.Tensor,
    kind: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, layers, *_ = kind
    taps = math.prod(sizes)
    return packed.new_empty(len(packed), taps, hidden + 1), packed.new_empty(len(packed), layers, taps, hidden)


def _fake_features_backward(
    lines: torch.Tensor,  # noqa: ARG001
    sizes: Sequence[int],  # noqa: ARG001
    packed: torch.Tensor,
    *_: Any,
) -> torch.Tensor:
    return packed.new_empty(packed.shape)


def _save_features(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    lines, ctx.sizes, packed, ctx.kind = inputs
    ctx.save_for_backward(lines, packed, output[1])


def _features_gradient(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    _refuse_second_derivative()
    lines, packed, kept = ctx.saved_tensors
    sums = torch.ops.flexconv.sample_features_backward(lines, ctx.sizes, packed, ctx.kind, kept, grad)
    return None, None, sums, None


# --- masks ------------------------------------------------------------------------------------------------------------


def _apply_mask(
    features: torch.Tensor,
    lines: torch.Tensor,
    limits: torch.Tensor,
    sizes: Sequence[int],
    packed: torch.Tensor,
    damping: torch.Tensor,  # noqa: ARG001
    form: str,
    rotated: bool,
    reach: float | None,
) -> torch.Tensor:
    settings = MaskSettings(form, rotated, reach, 1.0)
    return many_launches.launch_masks(features.contiguous(), _grid(lines, limits, sizes), settings, packed.contiguous())


def _apply_mask_backward(
    features: torch.Tensor,
    lines: torch.Tensor,
    limits: torch.Tensor,
    sizes: Sequence[int],
    packed: torch.Tensor,
    damping: torch.Tensor,
    form: str,
    rotated: bool,
    reach: float | None,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    settings = MaskSettings(form, rotated, reach, 1.0)
    grid = _grid(lines, limits, sizes)
    return many_launches.launch_masks_backward(
        features.contiguous(), grid, settings, packed.contiguous(), damping, grad.contiguous()
    )


def _fake_mask(features: torch.Tensor, *_: Any) -> torch.Tensor:
    return features.new_empty(features.shape)


def _fake_mask_backward(features: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return features.new_empty(features.shape), features.new_empty(others[3].shape)


def _save_mask(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    features, lines, limits, ctx.sizes, packed, damping, *ctx.settings = inputs
    ctx.save_for_backward(features, lines, limits, packed, damping)


def _mask_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    _refuse_second_derivative()
    features, lines, limits, packed, damping = ctx.saved_tensors
    found, of_masks = torch.ops.flexconv.apply_mask_backward(
        features, lines, limits, ctx.sizes, packed, damping, *ctx.settings, grad
    )
    return found, None, None, None, of_masks, None, None, None, None


# --- output maps ------------------------------------------------------------------------------------------------------


def _mix_maps(weights: torch.Tensor, biases: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Weights [channels, width] and biases [channels] → [channels, columns]: weight, bias and zeros."""
    mix = weights.new_zeros(len(weights), columns, dtype=dtype)
    width = weights.shape[1]
    mix[:, :width] = weights
    mix[:, width] = biases
    return mix


def _mix_maps_backward(grad: torch.Tensor, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    weights, biases = (
        grad.new_empty(shape, dtype=dtype).copy_(part)
        for shape, part in (((len(grad), width), grad[:, :width]), ((len(grad),), grad[:, width]))
    )
    return weights, biases


def _fake_mix(weights: torch.Tensor, biases: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:  # noqa: ARG001
    return weights.new_empty(len(weights), columns, dtype=dtype)


def _fake_mix_backward(grad: torch.Tensor, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return grad.new_empty(len(grad), width, dtype=dtype), grad.new_empty(len(grad), dtype=dtype)


def _save_width(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.width, ctx.dtype = inputs[0].shape[1], inputs[0].dtype


def _mix_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    _refuse_second_derivative()
    return *torch.ops.flexconv.mix_maps_backward(grad, ctx.width, ctx.dtype), None, None


# --- registration -----------------------------------------------------------------------------------------------------


def _refuse_second_derivative() -> None:
    """Gradients are operators that have no gradients themselves. Of the backends, only "eager" comes here for one."""
    if torch.is_grad_enabled():
        raise UsageError("create_graph=True is not possible for the kernel of a compiled FlexConv: do not compile it")


def _kind(sizes: Sequence[int], kind: Sequence[int]) -> FeatureKind:
    hidden, layers, gammas, steerable = kind
    return FeatureKind(len(sizes), hidden, layers, gammas, bool(steerable))


def _grid(lines: torch.Tensor, limits: torch.Tensor, sizes: Sequence[int]) -> Grid:
    return Grid(lines, limits, tuple(sizes), ())


def _vmap_rule(name: str) -> Callable[..., Any]:
    """A rule for `torch.vmap` that launches the operator once for every entry of the batch."""

    def entry(x: Any, dim: Any, index: int) -> Any:
        if isinstance(x, list | tuple) and isinstance(dim, list | tuple):
            return [entry(each, own, index) for each, own in zip(x, dim, strict=True)]
        return x.select(dim, index) if isinstance(dim, int) and isinstance(x, torch.Tensor) else x

    def rule(info: Any, in_dims: Sequence[Any], *given: Any) -> tuple[Any, Any]:
        operator = getattr(torch.ops.flexconv, name)
        results = []
        for index in range(info.batch_size):
            results.append(operator(*(entry(x, dim, index) for x, dim in zip(given, in_dims, strict=True))))
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0,) * len(results[0])

    return rule


for _name, _function, _fake in (
    ("join", _join, _fake_join),
    ("sample_features", _sample_features, _fake_features),
    ("sample_features_backward", _sample_features_backward, _fake_features_backward),
    ("apply_mask", _apply_mask, _fake_mask),
    ("apply_mask_backward", _apply_mask_backward, _fake_mask_backward),
    ("mix_maps", _mix_maps, _fake_mix),
    ("mix_maps_backward", _mix_maps_backward, _fake_mix_backward),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexconv::{_name}", _fake, lib=LIBRARY)
    torch.library.register_vmap(f"flexconv::{_name}", _vmap_rule(_name), lib=LIBRARY)
for _name, _gradient, _save in (
    ("join", _join_gradient, _save_shapes),
    ("sample_features", _features_gradient, _save_features),
    ("apply_mask", _mask_gradient, _save_mask),
    ("mix_maps", _mix_gradient, _save_width),
):
    torch.library.register_autograd(f"flexconv::{_name}", _gradient, setup_context=_save, lib=LIBRARY)
