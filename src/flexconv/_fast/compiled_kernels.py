"""Kernels of layers in code that is compiled by `torch.compile`, sampled by the operators of `fused_operators.py`.

Layers with the same window, and generators and masks of the same kind, are a group. Their features, masks, output maps
and spectra are computed together, in as many launches as those of one layer. The networks of `flexconv.models` sample
all their kernels at the start of a compiled forward pass (`sample_together`). In other networks, every layer is a group
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .._context import exporting, no_autocast
from .._matmul import matmul
from .._registry import provide
from ..nn import Affine, FlexConvNd, TapRange
from ..nn._crop import smallest_intervals
from ..nn._grid import Axis, filled
from ..ops import FactoredKernel
from . import fused_sampler as fused
from .compiled_norm import batch_counts
from .layer_support import has_shared_factors

ALIGNMENT = 8  # basis functions are padded to a multiple of this number, as products in half precision need it


# --- groups of kernels ------------------------------------------------------------------------------------------------


class KernelGroup:
    """Kernels with bases [layers, *sizes, rank], and output maps of all layers, joined: weights and biases."""

    def __init__(
        self,
        bases: torch.Tensor,
        weights: torch.Tensor,
        biases: torch.Tensor,
        shapes: Sequence[tuple[int, int]],
    ) -> None:
        self.bases, self.weights, self.biases, self.shapes = bases, weights, biases, shapes
        self._known: list[tuple[Any, Any]] = []

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        key = key, torch.is_grad_enabled()  # a result without gradients cannot be used where they are needed
        for known, value in self._known:
            if known == key:
                return value
        value = compute()
        self._known.append((key, value))
        return value

    def basis(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """The basis of one kernel [*sizes, rank]."""
        return self._once(("bases", str(dtype)), lambda: _converted(self.bases, dtype).unbind())[index]

    def mix(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        """The output map of one kernel [out, in/groups, rank]."""

        def compute() -> Sequence[torch.Tensor]:
            joined = torch.ops.flexconv.mix_maps(self.weights, self.biases, self.bases.shape[-1], dtype)
            if len(self.shapes) == 1:
                return [joined]
            return joined.split([math.prod(shape) for shape in self.shapes])

        return self._once(("mixes", str(dtype)), compute)[index].unflatten(0, self.shapes[index])

    def spectrum(self, index: int, key: Any, function: Any, dtype: torch.dtype) -> torch.Tensor:
        """`FactoredKernel.transform_basis`, of all kernels at once."""
        number = len(self.shapes)

        def compute() -> Sequence[torch.Tensor]:
            columns = self.bases.movedim(0, -2).flatten(-2)  # [*sizes, (layer, rank)]
            return function(_converted(columns, dtype)).split(self.bases.shape[-1], -1)

        if number == 1:
            return self._once(key, lambda: [function(_converted(self.bases[0], dtype))])[0]
        return self._once(key, compute)[index]

    def narrow(self, axis: int, start: int, length: int) -> KernelGroup:
        """The same kernels with some of the taps along an axis."""

        def compute() -> KernelGroup:
            return KernelGroup(self.bases.narrow(axis + 1, start, length), self.weights, self.biases, self.shapes)

        return self._once(("narrow", axis, start, length), compute)


class CompiledKernel(FactoredKernel):
    """One kernel of a group."""

    def __init__(self, group: KernelGroup, index: int, dtype: torch.dtype) -> None:
        self._group, self._own, self._dtype = group, index, dtype

    @property
    def basis(self) -> torch.Tensor:  # type: ignore[override]
        return self._group.basis(self._own, self._dtype)

    @property
    def mix(self) -> torch.Tensor:  # type: ignore[override]
        return self._group.mix(self._own, self._dtype)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self._group.shapes[self._own], *self._group.bases.shape[1:-1]])

    @property
    def rank(self) -> int:
        return self._group.bases.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._group.bases.device

    @property
    def requires_grad(self) -> bool:
        group = self._group
        return group.bases.requires_grad or group.weights.requires_grad or group.biases.requires_grad

    def is_floating_point(self) -> bool:
        return self._dtype.is_floating_point

    def to(self, dtype: torch.dtype) -> CompiledKernel:
        return CompiledKernel(self._group, self._own, dtype)

    def narrow(self, dim: int, start: int, length: int) -> CompiledKernel:
        return CompiledKernel(self._group.narrow(dim - 2, start, length), self._own, self._dtype)

    def transform_basis(self, key: Hashable, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        spec, dtype = key  # type: ignore[misc]
        positions = [(each.number, each.start, each.step) for each in spec.positions]
        plain = (spec.kind, tuple(spec.lengths), tuple(positions), str(dtype), str(self._dtype))
        return self._group.spectrum(self._own, plain, function, self._dtype)

    def padded_mix(self, channels: int) -> torch.Tensor:
        mix = self.mix
        return F.pad(mix, (0, 0, 0, channels - mix.shape[1]))


# --- sampling ---------------------------------------------------------------------------------------------------------


def compiled_kernel(layer: FlexConvNd, window: Sequence[TapRange]) -> CompiledKernel:
    """`layer.sample(window)` in compiled code. NotImplemented if the layer is not supported, or in an export."""
    if _group_key(layer, window) is None:
        return NotImplemented
    group = _sample([layer], window)
    return CompiledKernel(group, 0, layer.generator.compute_dtype)


def _group_key(layer: FlexConvNd, window: Sequence[TapRange]) -> Any:
    """What layers have in common that are sampled together. None if a layer cannot be sampled here."""
    output = layer.generator.output_map
    found = None if exporting() or output is None else fused.plan_of(layer, window)
    if found is None or layer.grid.resampled or output is None:
        return None
    tensors, settings = found
    given = [*tensors, *(() if layer.mask is None else layer.mask.size_parameters())]
    kinds = [None if tensor is None else (tuple(tensor.shape), tensor.dtype, tensor.device) for tensor in given]
    mask = None if settings is None else (settings.form, settings.rotated, settings.reach, *_floors(layer))
    axes = tuple((axis.size, axis.causal) for axis in layer.axes)
    return axes, tuple(window), tuple(kinds), mask, output.basis is not None


def _floors(layer: FlexConvNd) -> tuple[float, ...]:
    if layer.mask is None:
        return (0.0,) * len(layer.axes)
    return tuple([_as_constant(floor) for floor in layer.mask.sigma_floor(layer.axes)])


def _sample(layers: Sequence[FlexConvNd], window: Sequence[TapRange]) -> KernelGroup:
    """Kernels of layers that have the same `_group_key`."""
    first = layers[0]
    dtype, device = first.generator.compute_dtype, first.reference_tensor().device
    axes = tuple((axis.size, axis.causal) for axis in first.axes)
    found = fused.plan_of(first, window)
    assert found is not None
    tensors, settings = found
    mix_weight, gamma = tensors[2], tensors[5]
    assert mix_weight is not None
    hidden_layers, hidden, _ = mix_weight.shape
    kind = [hidden, hidden_layers, 0 if gamma is None else gamma.shape[-1], int(tensors[6] is not None)]
    dampings = tuple(1.0 if layer.mask is None else _as_constant(layer.mask.damping) for layer in layers)
    sizes = [stop - start for start, stop in window]
    number = len(layers)
    with no_autocast(device.type):
        lines, limits, damping = constant_grid(axes, tuple(window), _floors(first), dampings, dtype, device)
        features: list[torch.Tensor] = []
        for layer in layers:
            features += [each for each in fused.feature_tensors(layer.generator) if each is not None]  # type: ignore[union-attr]
        packed = torch.ops.flexconv.join(features, number)
        bases, _ = torch.ops.flexconv.sample_features(lines, sizes, packed, kind)
        outputs = [layer.generator.output_map for layer in layers]
        if outputs[0].basis is not None:  # type: ignore[union-attr]
            maps: list[torch.Tensor] = [output.basis for output in outputs]  # type: ignore[misc, union-attr]
            joined = maps[0] if number == 1 else torch.ops.flexconv.join(maps, number).view(number, *maps[0].shape)
            bases = matmul(bases, joined.mT)
        if settings is not None:
            masks: list[torch.Tensor] = []
            for layer in layers:
                masks += layer.mask.size_parameters()  # type: ignore[union-attr]
            packed = torch.ops.flexconv.join(masks, number)
            bases = torch.ops.flexconv.apply_mask(
                bases, lines, limits, sizes, packed, damping, settings.form, settings.rotated, settings.reach
            )
        bases = F.pad(bases, (0, -bases.shape[-1] % ALIGNMENT))
        own = [_own_map(output, dtype) for output in outputs]  # type: ignore[arg-type]
        if number == 1:
            weights, biases = own[0]
        else:
            biases = torch.ops.flexconv.join([bias for _, bias in own], 1).view(-1)
            weights = torch.ops.flexconv.join([weight for weight, _ in own], len(biases))
    shapes = [(layer.out_channels, layer.inputs_per_output) for layer in layers]
    return KernelGroup(bases.view(number, *sizes, bases.shape[-1]), weights, biases, shapes)


def _as_constant(number: float) -> float:
    """The same number, as a constant of the graph.

    Dynamo replaces a float attribute by a symbol if it has had different values in the same code, or with dynamic=True.
    `constant_grid` does not accept symbols. As a ratio of integers, the number is a constant again.
    """
    numerator, denominator = number.as_integer_ratio()
    return numerator / denominator


def _own_map(output: Affine, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`output.own_map(dtype)`, without nodes if it is a pair of parameters."""
    if output.weight_norm or output.bias.dtype != dtype:
        return output.own_map(dtype)
    return output.weight, output.bias


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor.to(dtype)`, which is a node of a graph even if it does nothing."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


class _Together:
    """A context in which the kernels of a module's layers have been sampled on entry. Norms count batches on exit."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.prepared: list[FlexConvNd] = []

    def __enter__(self) -> None:
        self.counted_before = batch_counts.begin()
        groups: list[tuple[Any, list[FlexConvNd]]] = []
        for layer in self.module.modules():
            if isinstance(layer, FlexConvNd) and _can_be_sampled(layer):
                key = _group_key(layer, layer.window)
                if key is not None:
                    _add_to_group(groups, key, layer)
        for _, layers in groups:
            if len(layers) > 1:
                group = _sample(layers, layers[0].window)
                for index, layer in enumerate(layers):
                    layer._provider.prepared = CompiledKernel(group, index, layer.generator.compute_dtype)
                    self.prepared.append(layer)

    def __exit__(self, *_: object) -> None:
        batch_counts.finish(self.counted_before)
        for layer in self.prepared:
            layer._provider.prepared = None


def _can_be_sampled(layer: FlexConvNd) -> bool:
    return has_shared_factors(layer) and layer._provider.prepared is None and not layer.recompute


def _add_to_group(groups: list[tuple[Any, list[FlexConvNd]]], key: Any, layer: FlexConvNd) -> None:
    for known, layers in groups:
        if known == key:
            layers.append(layer)
            return
    groups.append((key, [layer]))


def sample_together(module: nn.Module) -> Any:
    """See `nn.sample_together`. Only compiled code has kernels like this."""
    together = torch.compiler.is_compiling() and not exporting() and not _has_checkpoints(module)
    return _Together(module) if together else nullcontext()


def _has_checkpoints(module: nn.Module) -> bool:
    """Whether parts of a module are wrapped by torch's `checkpoint_wrapper`.

    Code that runs again in the backward pass must not change what was created outside of it, such as a `KernelGroup`.
    """
    return any("_checkpoint_wrapped_module" in name for name, _ in module.named_modules())


# --- coordinates ------------------------------------------------------------------------------------------------------

_grids: dict[tuple[object, ...], list[torch.Tensor]] = {}


def constant_grid(
    axes: tuple[tuple[int, bool], ...],
    window: tuple[TapRange, ...],
    floors: tuple[float, ...],
    dampings: tuple[float, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """Coordinates and limits of `fused_sampler.Grid`, and dampings, as constants of a graph that is being compiled.

    All layers with the same grid share them, so a graph does not compute them again for every layer. The arguments are
    plain values, which Dynamo can pass to a function that it evaluates as a constant.
    """
    key = axes, window, floors, dampings, dtype, device
    if key not in _grids:
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            known = [Axis(size, causal) for size, causal in axes]
            ranges = zip(known, window, strict=True)
            lines = torch.cat([axis.coordinates(taps, device=device, dtype=dtype) for axis, taps in ranges])
            halves, inner = smallest_intervals(known, dtype)
            causal = [float(axis.causal) for axis in known]
            numbers = [n for each in zip(floors, halves, inner, causal, strict=True) for n in each]
            limits, damping = filled(numbers, like=lines).view(-1, 4), filled(dampings, like=lines)
        for tensor in (lines, limits, damping):  # as in `ops._dft_cache.constant_matrices`
            tensor._dynamo_static_indices = set(range(tensor.ndim))  # type: ignore[attr-defined]
        _grids[key] = [lines, limits, damping]
    return _grids[key]


# This is what torch.compiler.assume_constant_result does, without importing the compiler.
constant_grid._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]

provide("nn.sample_together", sample_together)
