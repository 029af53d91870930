"""The kernel of a layer as factors, for transforms that are linear in it.

A generator that ends in a linear map makes a kernel of low rank: ψ = mix · basis, with the features under the mask for
a basis. A Fourier transform of the basis is much cheaper than one of every pair of channels. The bias of the output map
counts as one more feature, which is the mask itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from .._context import no_autocast
from .._matmul import matmul
from .._registry import provide
from ..nn import FlexConvNd, TapRange, mesh
from ..nn._grid import tap_weights
from ..ops import FactoredKernel, KernelBatch
from ..ops._factored import Factors, Source
from .compiled_kernels import compiled_kernel
from .fused_kernel import fused_kernel
from .fused_sampler import fused_basis
from .layer_support import has_factors, has_hooks


def sample_factors(layer: FlexConvNd, window: Sequence[TapRange]) -> FactoredKernel:
    """`layer.sample(window)` as factors. NotImplemented if the generator has none."""
    output = layer.generator.output_map
    if output is None or not has_factors(layer):
        return NotImplemented
    if torch.compiler.is_compiling():
        return NotImplemented if has_hooks(layer.mask) else compiled_kernel(layer, window)
    dtype = layer.generator.compute_dtype
    with no_autocast(layer.reference_tensor().device.type):
        basis = None if has_hooks(layer.mask) else fused_basis(layer, window)
        if basis is not None:
            return LayerKernel(layer, window, *output.own_map(dtype), basis)
        return LayerKernel(layer, window, *output.own_map(dtype), _plain_basis(layer, window))


class LayerKernel(FactoredKernel):
    """The kernel of one layer, from weight and bias of its output map and a basis [*sizes, rank]."""

    def __init__(
        self,
        layer: FlexConvNd,
        window: Sequence[TapRange],
        weight: torch.Tensor,
        bias: torch.Tensor,
        basis: torch.Tensor,
    ) -> None:
        grid = layer.grid
        if grid.scale != 1.0:
            basis = basis * grid.scale
        if grid.resampled:
            basis = basis * tap_weights(grid.axes, window, like=basis).unsqueeze(-1)
        self.weight, self.bias, self.basis = weight, bias, basis
        self._shape = torch.Size([layer.out_channels, layer.inputs_per_output, *basis.shape[:-1]])

    @functools.cached_property
    def mix(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.cat([self.weight, self.bias.unsqueeze(1)], 1).unflatten(0, self._shape[:2])

    @functools.cached_property
    def _batch(self) -> KernelBatch:  # pyright: ignore[reportIncompatibleVariableOverride]
        return KernelBatch([lambda dtype: (self.basis.to(dtype), self.mix.to(dtype))], self.dtype)

    _index = 0

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def rank(self) -> int:
        return self.basis.shape[-1]

    @property
    def requires_grad(self) -> bool:
        return self.basis.requires_grad or self.weight.requires_grad or self.bias.requires_grad

    def is_floating_point(self) -> bool:
        return self.weight.is_floating_point()

    def tensor(self) -> torch.Tensor:
        """Return the kernel as a tensor."""
        kernel = fused_kernel(self.weight, self.bias, self.basis, self._shape)
        return super().tensor() if kernel is None else kernel


def _plain_basis(layer: FlexConvNd, window: Sequence[TapRange]) -> torch.Tensor:
    """Features times the mask, and the mask itself for the bias, in the basis of the output map → [*sizes, width + 1].

    The entries of that basis are large and cancel, which half precision cannot represent. So it is applied here, in the
    precision of the generator, and not to the output map.
    """
    lines = layer.coordinates(window)
    grid = mesh(lines)
    features = layer.generator.features(grid.flatten(1).t()).unflatten(0, grid.shape[1:])
    mask = features.new_ones(grid.shape[1:]) if layer.mask is None else layer.mask(lines, layer.axes)
    basis = torch.cat([features * mask.unsqueeze(-1), mask.unsqueeze(-1)], -1)
    output = layer.generator.output_map
    return basis if output is None or output.basis is None else matmul(basis, output.basis.to(basis.dtype).t())


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
