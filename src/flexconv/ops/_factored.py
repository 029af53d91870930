"""Kernels that are sums of few shapes, weight[o, i, p] = Σ_r mix[o, i, r] · basis[p, r].

So are all that end in a linear map, as MAGNet's: 33 shapes under a mask, whatever the number of channels. A Fourier
transform is linear, too: the spectra of the shapes have to be computed, not those of every pair of channels. And the
shapes of many layers can be transformed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .._context import no_autocast
from .._matmul import matmul

Factors = tuple[torch.Tensor, torch.Tensor]  # basis [*taps, rank] and mix [out, in/groups, rank]
Source = Callable[[torch.dtype], Factors]  # the factors of a kernel, in a dtype


class FactoredKernel:
    """A kernel [out, in/groups, *taps] by its factors, one of several of the same taps or alone."""

    def __init__(self, batch: KernelBatch, number: int = 0) -> None:
        self._batch, self._number = batch, number
        self.basis, self.mix = batch.factors(number)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.mix.shape[:2], *self.basis.shape[:-1]])

    @property
    def ndim(self) -> int:
        return len(self.shape)

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
        return self if dtype == self.dtype else FactoredKernel(self._batch.to(dtype), self._number)

    def narrow(self, dim: int, start: int, length: int) -> FactoredKernel:
        """As of a tensor: some of the taps along a dimension of `shape`, which is not one of channels."""
        return FactoredKernel(self._batch.narrow(dim - 2, start, length), self._number)

    def transformed(self, name: Hashable, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """`function` of the basis, linear, [*taps, n] → [rows, n] for any n; known by its name."""
        return self._batch.transformed(name, function)[self._number]

    def wide_mix(self, inputs: int) -> torch.Tensor:
        """`mix` with zeros for input channels up to a number."""
        return self._batch.wide_mix(self._number, inputs)

    def tensor(self) -> torch.Tensor:
        """The kernel itself, rounded to its dtype once, also under autocast."""
        fine = self.to(torch.promote_types(self.dtype, torch.float32))
        with no_autocast(self.device.type):
            kernel = matmul(fine.mix.flatten(0, 1), fine.basis.flatten(0, -2).t())
        return kernel.view(self.shape).to(self.dtype)


class KernelBatch:
    """Kernels of the same taps. What one of them is asked is answered for all, once."""

    def __init__(self, sources: Sequence[Source], dtype: torch.dtype) -> None:
        self.sources, self.dtype = sources, dtype
        self._answers: dict[Hashable, Any] = {}

    def factors(self, number: int) -> Factors:
        return self._once(("factors", number), lambda: self.sources[number](self.dtype))

    def to(self, dtype: torch.dtype) -> KernelBatch:
        return self._once(("to", dtype), lambda: KernelBatch(self.sources, dtype))

    def narrow(self, axis: int, start: int, length: int) -> KernelBatch:
        return self._changed(("narrow", axis, start, length), lambda basis: basis.narrow(axis, start, length))

    def wide_mix(self, number: int, inputs: int) -> torch.Tensor:
        """Of a kernel; of all with as many channels at once."""
        shape = self.factors(number)[1].shape

        def all_at_once() -> dict[int, torch.Tensor]:
            mixes = {each: self.factors(each)[1] for each in range(len(self.sources))}
            same = [each for each, mix in mixes.items() if mix.shape == shape]
            wide = F.pad(torch.stack([mixes[each] for each in same]), (0, 0, 0, inputs - shape[1]))
            return dict(zip(same, wide.unbind(), strict=True))

        return self._once(("wide mix", shape, inputs), all_at_once)[number]

    def transformed(self, name: Hashable, function: Callable[[torch.Tensor], torch.Tensor]) -> Sequence[torch.Tensor]:
        def all_at_once() -> Sequence[torch.Tensor]:
            bases = [self.factors(number)[0] for number in range(len(self.sources))]
            if len(bases) == 1:
                return [function(bases[0])]
            return function(torch.cat(bases, -1)).split([basis.shape[-1] for basis in bases], -1)

        return self._once(name, all_at_once)

    def _changed(self, name: Hashable, change: Callable[[torch.Tensor], torch.Tensor]) -> KernelBatch:
        def of(source: Source) -> Source:
            def factors(dtype: torch.dtype) -> Factors:
                basis, mix = source(dtype)
                return change(basis), mix

            return factors

        return self._once(name, lambda: KernelBatch([of(source) for source in self.sources], self.dtype))

    def _once(self, question: Hashable, answer: Callable[[], Any]) -> Any:
        key = question, torch.is_grad_enabled()  # what was computed without gradients is of no use to who wants them
        if key not in self._answers:
            self._answers[key] = answer()
        return self._answers[key]


def as_tensor(weight: torch.Tensor | FactoredKernel) -> torch.Tensor:
    return weight.tensor() if isinstance(weight, FactoredKernel) else weight
