"""The kernel of a layer as factors, for transforms that are linear in it.

A generator that ends in a linear map makes a kernel of low rank: ψ = mix · basis, with the features under the mask for
a basis. A Fourier transform of the basis is much cheaper than one of every pair of channels. The bias of the output map
counts as one more feature, which is the mask itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._context import no_autocast
from .._matmul import matmul
from .._registry import provide
from ..nn import FlexConvNd, TapRange, mesh
from ..nn._grid import tap_weights
from ..nn.kernels._linear import Affine
from ..ops import FactoredKernel, KernelBatch
from ..ops._factored import Factors, Source


def sample_factors(layer: FlexConvNd, window: Sequence[TapRange]) -> FactoredKernel:
    """`layer.sample(window)` as factors. NotImplemented if the generator has none, or under a compiler."""
    output = layer.generator.output_map
    if output is None or not layer.generator.has_factors or torch.compiler.is_compiling():
        return NotImplemented
    lines = layer.coordinates(window)
    grid = mesh(lines)
    dtype = grid.dtype
    with no_autocast(grid.device.type):
        features = layer.generator.features(grid.flatten(1).t()).unflatten(0, grid.shape[1:])
        mask = features.new_ones(grid.shape[1:]) if layer.mask is None else layer.mask(lines, layer.axes)
        basis = torch.cat([features * mask.unsqueeze(-1), mask.unsqueeze(-1)], -1)
        if output.basis is not None:
            basis = matmul(basis, output.basis.to(dtype).t())
        mix = torch.cat(bare_map(output, dtype), 1)
    source = kernel_source(layer, lambda dtype: (basis.to(dtype), mix.to(dtype)), window)
    return FactoredKernel(KernelBatch([source], layer.generator.compute_dtype))


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


def bare_map(output: Affine, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [out, in] and bias [out, 1] of an output map without its basis.

    The basis is applied to the features instead. Its entries are large and cancel, which half precision cannot
    represent, while the features that result are of the same size.
    """
    return output._normed_weight(dtype), output.bias.to(dtype).unsqueeze(1)


provide("nn.sample", sample_factors)
