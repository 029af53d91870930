"""Kernels that are linear combinations of a few basis functions, weight[o, i, p] = Σ_r mix[o, i, r] · basis[p, r].

Every generator that ends in a linear map produces such kernels. MAGNet, for example, has 33 basis functions under a
mask, whatever the number of channels. Since the Fourier transform is linear, only the basis functions have to be
transformed, not the kernel of every pair of channels. The basis functions of many layers can be transformed together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .._context import no_autocast
from .._matmul import matmul

#: basis [*taps, rank] and mix [out, in/groups, rank]
Factors = tuple[torch.Tensor, torch.Tensor]

#: a function that returns the factors of a kernel in a given dtype
Source = Callable[[torch.dtype], Factors]


class FactoredKernel:
    """A kernel [out, in/groups, *taps] given by its factors, with the part of the tensor interface that `ops` needs.

    It is one of the kernels of a `KernelBatch`, which may contain only this one.
    """

    def __init__(self, batch: KernelBatch, index: int = 0) -> None:
        self._batch, self._index = batch, index
        self.basis, self.mix = batch.factors(index)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.mix.shape[:2], *self.basis.shape[:-1]])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def rank(self) -> int:
        """The number of basis functions."""
        return self.mix.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.mix.dtype

    @property
    def device(self) -> torch.device:
        return self.mix.device

    @property
    def requires_grad(self) -> bool:
        return self.basis.requires_grad or self.mix.requires_grad

    def is_floating_point(self) -> bool:
        return self.mix.is_floating_point()

    def to(self, dtype: torch.dtype) -> FactoredKernel:
        return self if dtype == self.dtype else FactoredKernel(self._batch.to(dtype), self._index)

    def narrow(self, dim: int, start: int, length: int) -> FactoredKernel:
        """Like `torch.Tensor.narrow`, for a dimension of taps."""
        return FactoredKernel(self._batch.narrow(dim - 2, start, length), self._index)

    def tensor(self) -> torch.Tensor:
        """Return the kernel as a tensor. It is computed in float32, also under autocast, and rounded once."""
        fine = self.to(torch.promote_types(self.dtype, torch.float32))
        with no_autocast(self.device.type):
            kernel = matmul(fine.mix.flatten(0, 1), fine.basis.flatten(0, -2).t())
        return kernel.view(self.shape).to(self.dtype)

    def transform_basis(self, key: Hashable, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Apply a linear function [*taps, n] → [rows, n], for any n, to the basis. The result is cached under `key`."""
        return self._batch.transform_bases(key, function)[self._index]

    def padded_mix(self, channels: int) -> torch.Tensor:
        """Return `mix` with zeros for additional input channels."""
        return self._batch.padded_mix(self._index, channels)


class KernelBatch:
    """Factored kernels with the same taps. Whatever is computed for one of them is computed for all at once."""

    def __init__(self, sources: Sequence[Source], dtype: torch.dtype) -> None:
        self.sources, self.dtype = sources, dtype
        self._cache: dict[Hashable, Any] = {}

    def factors(self, index: int) -> Factors:
        """Return the factors of one kernel."""
        return self._cached(("factors", index), lambda: self.sources[index](self.dtype))

    def to(self, dtype: torch.dtype) -> KernelBatch:
        """Return the same kernels in another dtype."""
        return self._cached(("to", dtype), lambda: KernelBatch(self.sources, dtype))

    def narrow(self, axis: int, start: int, length: int) -> KernelBatch:
        """Return the same kernels with some of the taps along an axis."""

        def narrowed(source: Source) -> Source:
            def factors(dtype: torch.dtype) -> Factors:
                basis, mix = source(dtype)
                return basis.narrow(axis, start, length), mix

            return factors

        def compute() -> KernelBatch:
            return KernelBatch([narrowed(source) for source in self.sources], self.dtype)

        return self._cached(("narrow", axis, start, length), compute)

    def transform_bases(
        self, key: Hashable, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Apply a linear function to the bases of all kernels. See `FactoredKernel.transform_basis`."""

        def compute() -> Sequence[torch.Tensor]:
            bases = [self.factors(index)[0] for index in range(len(self.sources))]
            if len(bases) == 1:
                return [function(bases[0])]
            return function(torch.cat(bases, -1)).split([basis.shape[-1] for basis in bases], -1)

        return self._cached(key, compute)

    def padded_mix(self, index: int, channels: int) -> torch.Tensor:
        """Pad the input channels of `mix` for one kernel, together with all kernels of the same shape."""
        shape = self.factors(index)[1].shape

        def compute() -> dict[int, torch.Tensor]:
            mixes = {each: self.factors(each)[1] for each in range(len(self.sources))}
            same = [each for each, mix in mixes.items() if mix.shape == shape]
            padded = F.pad(torch.stack([mixes[each] for each in same]), (0, 0, 0, channels - shape[1]))
            return dict(zip(same, padded.unbind(), strict=True))

        return self._cached(("padded mix", shape, channels), compute)[index]

    def _cached(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        key = key, torch.is_grad_enabled()  # a result without gradients cannot be used where they are needed
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]


def as_tensor(weight: torch.Tensor | FactoredKernel) -> torch.Tensor:
    """Return a kernel as a tensor, whether it is one or given by its factors."""
    return weight.tensor() if isinstance(weight, FactoredKernel) else weight
