"""The launches of `fused_sampler.py` as operators of torch, for compiled code: one node each, forward and backward.

Eager code launches the same kernels from an `autograd.Function`. An operator with a registered gradient takes 50 µs
more on the host, forward and backward together, than such a function does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

from .._context import exporting, no_autocast
from .._matmul import matmul
from ..nn import FlexConvNd, TapRange
from ..nn._crop import smallest_intervals
from ..nn._grid import Axis, filled
from ..ops import FactoredKernel
from . import fused_sampler as fused
from . import sampler_launches

LIBRARY = torch.library.Library("flexconv", "DEF")

_TENSORS = (
    "Tensor frequency, Tensor phase, Tensor mix_weight, Tensor mix_bias, Tensor? mu, Tensor? gamma, Tensor? theta"
)
_MASK = "Tensor first, Tensor second, Tensor? third, Tensor? angle, str form, float? reach, float damping"
LIBRARY.define(f"sample_features(Tensor lines, int[] sizes, {_TENSORS}) -> (Tensor, Tensor)")
LIBRARY.define(f"sample_features_backward(Tensor lines, int[] sizes, {_TENSORS}, Tensor kept, Tensor grad) -> Tensor")
LIBRARY.define(f"apply_mask(Tensor features, Tensor lines, Tensor limits, int[] sizes, {_MASK}) -> Tensor")
LIBRARY.define(
    f"apply_mask_backward(Tensor features, Tensor lines, Tensor limits, int[] sizes, {_MASK}, Tensor grad)"
    " -> (Tensor, Tensor)"
)

Optional = torch.Tensor | None
ALIGNMENT = 8  # basis functions are padded to a multiple of this number, as products in half precision need it
SUMS = 8  # gradients of a mask: 3 of the mean or shift, 3 of σ or growth, 1 of the angle


class CompiledKernel(FactoredKernel):
    """A factored kernel in compiled code. Nothing is cached: the compiler computes what it needs once."""

    def __init__(self, basis: torch.Tensor, mix: torch.Tensor) -> None:
        self.basis, self.mix = basis, mix

    def to(self, dtype: torch.dtype) -> CompiledKernel:
        return self if dtype == self.dtype else CompiledKernel(self.basis.to(dtype), self.mix.to(dtype))

    def narrow(self, dim: int, start: int, length: int) -> CompiledKernel:
        return CompiledKernel(self.basis.narrow(dim - 2, start, length), self.mix)

    def transform_basis(self, key: Hashable, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        return function(self.basis)

    def padded_mix(self, channels: int) -> torch.Tensor:
        return F.pad(self.mix, (0, 0, 0, channels - self.mix.shape[1]))


def compiled_kernel(layer: FlexConvNd, window: Sequence[TapRange]) -> CompiledKernel:
    """`layer.sample(window)` in compiled code. NotImplemented if the layer is not supported, or in an export."""
    generator, mask, output = layer.generator, layer.mask, layer.generator.output_map
    found = None if exporting() or output is None else fused.plan_of(layer, window)
    if found is None or layer.grid.resampled or output is None:
        return NotImplemented
    tensors, settings = found
    dtype, device = generator.compute_dtype, layer.reference_tensor().device
    axes = tuple((axis.size, axis.causal) for axis in layer.axes)
    floors = (0.0,) * len(axes) if mask is None else tuple(mask.sigma_floor(layer.axes))
    with no_autocast(device.type):
        lines, limits = constant_grid(axes, tuple(window), floors, dtype, device)
        grid = fused.Grid(lines, limits, tuple(stop - start for start, stop in window), ())
        basis, _ = torch.ops.flexconv.sample_features(grid.lines, grid.sizes, *tensors)
        if output.basis is not None:
            basis = matmul(basis, output.basis.t())
        if mask is not None and settings is not None:
            parameters = list(mask.size_parameters())
            angle = parameters.pop() if settings.rotated else None
            third = parameters[2] if len(parameters) == 3 else None
            basis = torch.ops.flexconv.apply_mask(
                basis, grid.lines, grid.limits, grid.sizes, parameters[0], parameters[1], third, angle,
                settings.form, settings.reach, settings.damping,
            )  # fmt: skip
        weight, bias = output.own_map(dtype)
        mix = torch.cat([weight, bias.unsqueeze(1)], 1)
        padding = 0, -basis.shape[1] % ALIGNMENT
        basis, mix = F.pad(basis, padding), F.pad(mix, padding)
    return CompiledKernel(basis.view(*grid.sizes, -1), mix.view(layer.out_channels, layer.inputs_per_output, -1))


# --- coordinates ------------------------------------------------------------------------------------------------------

_grids: dict[tuple[object, ...], list[torch.Tensor]] = {}


def constant_grid(
    axes: tuple[tuple[int, bool], ...],
    window: tuple[TapRange, ...],
    floors: tuple[float, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """Coordinates and limits of `fused_sampler.Grid`, as constants of a graph that is being compiled.

    All layers with the same grid share them, so a graph does not compute them again for every layer. The arguments are
    plain values, which Dynamo can pass to a function that it evaluates as a constant.
    """
    key = axes, window, floors, dtype, device
    if key not in _grids:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            known = [Axis(size, causal) for size, causal in axes]
            ranges = zip(known, window, strict=True)
            lines = torch.cat([axis.coordinates(taps, device=device, dtype=dtype) for axis, taps in ranges])
            halves, inner = smallest_intervals(known, dtype)
            causal = [float(axis.causal) for axis in known]
            numbers = [n for each in zip(floors, halves, inner, causal, strict=True) for n in each]
            limits = filled(numbers, like=lines).view(-1, 4)
        for tensor in (lines, limits):  # as in `ops._dft_cache.constant_matrices`
            tensor._dynamo_static_indices = set(range(tensor.ndim))  # type: ignore[attr-defined]
        _grids[key] = [lines, limits]
    return _grids[key]


# This is what torch.compiler.assume_constant_result does, without importing the compiler.
constant_grid._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


# --- features ---------------------------------------------------------------------------------------------------------


def _sample_features(lines: torch.Tensor, sizes: Sequence[int], *tensors: Optional) -> tuple[torch.Tensor, ...]:
    features, kept = fused.launch_features(_grid(lines, lines, sizes), tensors, keep=True)
    assert kept is not None
    return features, kept


def _sample_features_backward(lines: torch.Tensor, sizes: Sequence[int], *tensors: Optional) -> torch.Tensor:
    *tensors, kept, grad = tensors  # type: ignore[assignment]
    return sampler_launches.launch_feature_sums(_grid(lines, lines, sizes), tensors, kept, grad)  # type: ignore[arg-type]


def _fake_features(lines: torch.Tensor, sizes: Sequence[int], *tensors: Optional) -> tuple[torch.Tensor, ...]:
    layers, hidden, _ = tensors[2].shape  # type: ignore[union-attr]
    taps = math.prod(sizes)
    return lines.new_empty(taps, hidden + 1), lines.new_empty(layers, taps, hidden)


def _fake_features_backward(lines: torch.Tensor, sizes: Sequence[int], *tensors: Optional) -> torch.Tensor:  # noqa: ARG001
    return lines.new_empty(sum(t.numel() for t in tensors[:-2] if t is not None))


def _save_features(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    lines, ctx.sizes, *tensors = inputs
    ctx.save_for_backward(lines, *tensors, output[1])


def _features_gradient(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    lines, *tensors, kept = ctx.saved_tensors
    sums = torch.ops.flexconv.sample_features_backward(lines, ctx.sizes, *tensors, kept, grad)
    return None, None, *sampler_launches.split_sums(sums, tensors)


# --- masks ------------------------------------------------------------------------------------------------------------


def _apply_mask(
    features: torch.Tensor, lines: torch.Tensor, limits: torch.Tensor, sizes: Sequence[int], *mask: Any
) -> torch.Tensor:
    settings, parameters = _mask_of(*mask)
    return fused.launch_mask(features.contiguous(), _grid(lines, limits, sizes), settings, parameters)


def _apply_mask_backward(
    features: torch.Tensor, lines: torch.Tensor, limits: torch.Tensor, sizes: Sequence[int], *mask: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    *mask, grad = mask  # type: ignore[assignment]
    settings, parameters = _mask_of(*mask)
    grid = _grid(lines, limits, sizes)
    found, sums = sampler_launches.launch_mask_sums(
        features.contiguous(), grid, settings, parameters, grad, of_features=True, of_mask=True
    )
    assert found is not None
    assert sums is not None
    return found, sums


def _fake_mask(features: torch.Tensor, *_: Any) -> torch.Tensor:
    return features.new_empty(features.shape)


def _fake_mask_backward(features: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return features.new_empty(features.shape), features.new_empty(SUMS)


def _save_mask(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    features, lines, limits, ctx.sizes, *mask = inputs
    ctx.save_for_backward(features, lines, limits, *mask[:4])
    ctx.settings = mask[4:]


def _mask_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    features, lines, limits, *mask = ctx.saved_tensors
    found, sums = torch.ops.flexconv.apply_mask_backward(features, lines, limits, ctx.sizes, *mask, *ctx.settings, grad)
    dims = len(ctx.sizes)
    first, second, angle = sums[:dims], sums[3 : 3 + dims], sums[6:7]
    natural = (None, first, second) if ctx.settings[0] == "scaled" else (first, second, None)
    return found, None, None, None, *natural, None if mask[3] is None else angle, None, None, None


def _mask_of(
    first: torch.Tensor,
    second: torch.Tensor,
    third: Optional,
    angle: Optional,
    form: str,
    reach: float | None,
    damping: float,
) -> tuple[sampler_launches.MaskSettings, list[torch.Tensor]]:
    parameters = [t for t in (first, second, third, angle) if t is not None]
    return sampler_launches.MaskSettings(form, angle is not None, reach, damping), parameters


def _grid(lines: torch.Tensor, limits: torch.Tensor, sizes: Sequence[int]) -> sampler_launches.Grid:
    return sampler_launches.Grid(lines, limits, tuple(sizes), ())


def _vmap_rule(name: str) -> Callable[..., Any]:
    """A rule for `torch.vmap` that launches the operator once for every entry of the batch."""

    def rule(info: Any, in_dims: Sequence[Any], *given: Any) -> tuple[Any, Any]:
        operator = getattr(torch.ops.flexconv, name)
        results = []
        for index in range(info.batch_size):
            pairs = zip(given, in_dims, strict=True)
            results.append(operator(*(x.select(dim, index) if isinstance(dim, int) else x for x, dim in pairs)))
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0,) * len(results[0])

    return rule


for _name, _function, _fake in (
    ("sample_features", _sample_features, _fake_features),
    ("sample_features_backward", _sample_features_backward, _fake_features_backward),
    ("apply_mask", _apply_mask, _fake_mask),
    ("apply_mask_backward", _apply_mask_backward, _fake_mask_backward),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexconv::{_name}", _fake, lib=LIBRARY)
    torch.library.register_vmap(f"flexconv::{_name}", _vmap_rule(_name), lib=LIBRARY)
torch.library.register_autograd(
    "flexconv::sample_features", _features_gradient, setup_context=_save_features, lib=LIBRARY
)
torch.library.register_autograd("flexconv::apply_mask", _mask_gradient, setup_context=_save_mask, lib=LIBRARY)
