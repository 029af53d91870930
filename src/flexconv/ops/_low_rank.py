"""Kernels that are sums of few shapes, weight[o, i, p] = Σ_r mix[o, i, r] · basis[p, r].

So are all that end in a linear map, as MAGNet's: 33 shapes under a mask, whatever the number of channels. A Fourier
transform is linear, too: the spectra of the shapes have to be computed, not those of every pair of channels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from .._context import no_autocast
from .._matmul import matmul

Factors = tuple[torch.Tensor, torch.Tensor]


class LowRank:
    """A kernel [out, in/groups, *taps] by its factors: basis [*taps, rank] and mix [out, in/groups, rank].

    `lowered(dtype)` gives both in another dtype; whoever makes many kernels at once converts them at once.
    """

    def __init__(self, basis: torch.Tensor, mix: torch.Tensor, lowered: Callable[[torch.dtype], Factors]) -> None:
        self.basis, self.mix, self.lowered = basis, mix, lowered

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

    def to(self, dtype: torch.dtype) -> LowRank:
        return self if dtype == self.dtype else LowRank(*self.lowered(dtype), self.lowered)

    def narrow(self, dim: int, start: int, length: int) -> LowRank:
        """As of a tensor: some of the taps along a dimension of `shape`, which is not one of channels."""

        def lowered(dtype: torch.dtype) -> Factors:
            basis, mix = self.lowered(dtype)
            return basis.narrow(dim - 2, start, length), mix

        return LowRank(self.basis.narrow(dim - 2, start, length), self.mix, lowered)

    def lengthened(self, missing: int) -> LowRank:
        """With zeros behind the last axis."""

        def lowered(dtype: torch.dtype) -> Factors:
            basis, mix = self.lowered(dtype)
            return F.pad(basis, (0, 0, 0, missing)), mix

        return LowRank(F.pad(self.basis, (0, 0, 0, missing)), self.mix, lowered)

    def tensor(self) -> torch.Tensor:
        """The kernel itself, rounded to its dtype once, also under autocast."""
        fine = torch.promote_types(self.dtype, torch.float32)
        basis, mix = (self.basis, self.mix) if fine == self.dtype else self.lowered(fine)
        with no_autocast(self.device.type):
            kernel = matmul(mix.flatten(0, 1), basis.flatten(0, -2).t())
        return kernel.view(self.shape).to(self.dtype)


def as_tensor(weight: torch.Tensor | LowRank) -> torch.Tensor:
    return weight.tensor() if isinstance(weight, LowRank) else weight
