"""Spectra of kernels for `_dft.py`, conjugated: what every frequency of every input channel is multiplied by.

The transform of a kernel that is a sum of shapes (`_low_rank.py`) is the sum of their transforms, ĝ = (F basis) mixᵀ:
33 spectra and one product, where a kernel of 48 channels to 48 has 2,304 of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ._dft_matrices import Recipe
from ._dft_transform import analyse
from ._low_rank import LowRank


def gains_of(
    weight: torch.Tensor | LowRank, recipe: Recipe, matrices: Sequence[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """Weight [out, in/groups, *taps] in the dtype of its matrices → gains [2, frequencies, out, in/groups] in another.

    There may be more input channels than there are, with gains of 0.
    """
    if not isinstance(weight, LowRank):
        taps = math.prod(weight.shape[2:])  # the rest of a matrix is its remainder
        whole = recipe.style == "whole"
        return analyse(weight, [matrices[0].narrow(1, 0, taps)] if whole else matrices, recipe.style).to(dtype)

    def spectra(basis: torch.Tensor) -> torch.Tensor:  # [*taps, n] → [(part, frequency), n]
        if recipe.style == "whole":
            return _FineProduct.apply(matrices[0], basis.flatten(0, -2))
        return analyse(basis.movedim(-1, 0).unsqueeze(1), matrices, recipe.style).to(dtype).flatten(0, 1).squeeze(2)

    shapes = weight.transformed((recipe, dtype), spectra)
    mix = weight.mix.to(dtype)
    if dtype.itemsize == 2 and mix.shape[1] > 1 and mix.shape[0] * mix.shape[1] % 8:
        mix = F.pad(mix, (0, 0, 0, -mix.shape[1] % 8))  # rows of whole 16 bytes, which tensor cores load faster
    return torch.mm(shapes, mix.flatten(0, 1).t()).view(2, -1, *mix.shape[:2])


class _FineProduct(torch.autograd.Function):
    """Matrix · signals of signals [points, n], for a matrix [rows, (points and room), twice]: itself and its remainder.

    Bases in half precision are wrong by as much as everything that is rounded later. With what is missing beside them
    the spectra are rounded once. Gradients can do without. Other matrices, [rows, points], have no remainder.
    """

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
        points, number = signals.shape
        ctx.basis = matrix[:, :points]
        if matrix.shape[1] == points:
            return torch.mm(matrix, signals)
        twice = signals.new_zeros(2, matrix.shape[1] // 2, number)
        twice[:, :points] = signals
        return torch.mm(matrix, twice.view(-1, number))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, torch.mm(ctx.basis.t(), gradients[0])
