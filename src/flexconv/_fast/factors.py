"""The kernel of a layer as factors, for transforms that are linear in it.

A generator that ends in a linear map makes a kernel of low rank: ψ = mix · basis, with the features under the mask for
a basis. A Fourier transform of the basis is much cheaper than one of every pair of channels. The bias of the output map
counts as one more feature, which is the mask itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .._context import no_autocast
from .._hooks import hooks_of
from .._registry import provide
from ..nn import FlexConvNd, TapRange, mesh
from ..nn._grid import tap_weights
from ..ops import FactoredKernel, KernelBatch
from ..ops._factored import Factors, Source
from .fused_sampler import fused_basis


def sample_factors(layer: FlexConvNd, window: Sequence[TapRange]) -> FactoredKernel:
    """`layer.sample(window)` as factors. NotImplemented if the generator has none, or under a compiler."""
    output = layer.generator.output_map
    if output is None or torch.compiler.is_compiling() or not layer.generator.has_factors or _overrides(layer):
        return NotImplemented
    dtype = layer.generator.compute_dtype
    with no_autocast(layer.reference_tensor().device.type):
        basis = None if _has_hooks(layer.mask) else fused_basis(layer, window)
        if basis is None:
            basis, (weight, bias) = _plain_basis(layer, window), output.effective_map(dtype)
        else:
            weight, bias = output.own_map(dtype)
        mix = torch.cat([weight, bias.unsqueeze(1)], 1)
    source = kernel_source(layer, lambda dtype: (basis.to(dtype), mix.to(dtype)), window)
    return FactoredKernel(KernelBatch([source], dtype))


def _plain_basis(layer: FlexConvNd, window: Sequence[TapRange]) -> torch.Tensor:
    """Features times the mask, and the mask itself for the bias → [*sizes, width + 1]."""
    lines = layer.coordinates(window)
    grid = mesh(lines)
    features = layer.generator.features(grid.flatten(1).t()).unflatten(0, grid.shape[1:])
    mask = features.new_ones(grid.shape[1:]) if layer.mask is None else layer.mask(lines, layer.axes)
    return torch.cat([features * mask.unsqueeze(-1), mask.unsqueeze(-1)], -1)


def _overrides(layer: FlexConvNd) -> bool:
    """Whether a subclass samples its kernel in another way."""
    cls = type(layer)
    return cls.sample is not FlexConvNd.sample or cls.coordinates is not FlexConvNd.coordinates


def _has_hooks(module: nn.Module | None) -> bool:
    return module is not None and bool(hooks_of(module))


def kernel_source(layer: FlexConvNd, factors: Source, window: Sequence[TapRange]) -> Source:
    """The factors of a layer's kernel, from a mix [channels, rank] and a basis [*block, rank] that covers the window.

    The block may be larger than the window, which is at its start. Scale and weights of a resampled grid are applied.
    """
    sizes = tuple(stop - start for start, stop in window)
    block = tuple(slice(size) for size in sizes)
    shape = layer.out_channels, layer.in_channels // layer.groups

    def of_layer(dtype: torch.dtype) -> Factors:
        basis, mix = factors(dtype)
        if basis.shape[:-1] != sizes:
            basis = basis[block]
        if layer.grid.scale != 1.0:
            basis = basis * layer.grid.scale
        if layer.grid.resampled:
            basis = basis * tap_weights(layer.axes, window, like=basis).unsqueeze(-1)
        return basis, mix.unflatten(0, shape)

    return of_layer


provide("nn.sample", sample_factors)
