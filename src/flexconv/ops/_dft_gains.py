"""Spectra of kernels for `_dft.py`, conjugated: what every frequency of every input channel is multiplied by.

The transform of a kernel that is a sum of shapes (`_factored.py`) is the sum of their transforms, ĝ = (F basis) mixᵀ:
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
from ._factored import FactoredKernel


def gains_of(
    weight: torch.Tensor | FactoredKernel, recipe: Recipe, matrices: Sequence[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """Weight [out, in/groups, *taps] in the dtype of its matrices → gains [2, frequencies, out, in/groups] in another.

    There may be more input channels than there are, with gains of 0.
    """
    if not isinstance(weight, FactoredKernel):
        taps = math.prod(weight.shape[2:])  # the rest of a matrix is its remainder
        whole = recipe.style == "whole"
        return analyse(weight, [matrices[0].narrow(1, 0, taps)] if whole else matrices, recipe.style).to(dtype)

    def spectra(basis: torch.Tensor) -> torch.Tensor:  # [*taps, n] → [rows, n], parts and frequencies as below
        if recipe.style == "whole":
            return _FineProduct.apply(matrices[0], basis.flatten(0, -2))
        if recipe.style == "long":
            return _long_spectra(basis, *matrices)
        return analyse(basis.movedim(-1, 0).unsqueeze(1), matrices, recipe.style).to(dtype).flatten(0, 1).squeeze(2)

    shapes = weight.transformed((recipe, dtype), spectra)
    out, inputs = weight.shape[:2]
    if dtype.itemsize == 2 and inputs > 1 and out * inputs % 8:
        inputs += -inputs % 8  # rows of whole 16 bytes, which tensor cores load faster
    mix = (weight.mix if inputs == weight.shape[1] else weight.wide_mix(inputs)).to(dtype)
    gains = torch.mm(shapes, mix.flatten(0, 1).t())
    if recipe.style == "long":
        return gains.view(-1, 2, *mix.shape[:2]).transpose(0, 1)
    return gains.view(2, -1, *mix.shape[:2])


def _long_spectra(basis: torch.Tensor, down: torch.Tensor, across: torch.Tensor) -> torch.Tensor:
    """[taps, n] → [(frequency, part), n], down the columns and across the rows as in `_dft_transform.py`.

    With the shapes side by side every product reads and writes in order.
    """
    row_frequencies, width, _ = across.shape
    taps, number = basis.shape
    if taps % (width // 2):
        basis = F.pad(basis, (0, 0, 0, -taps % (width // 2)))
    t = _fine_product(down, basis.reshape(-1, width // 2 * number))  # [(row frequency, part), (column, n)]
    return _fine_product(across, t.view(row_frequencies, width, -1)).flatten(0, 1)


def _fine_product(matrix: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    """Matrix · signals of signals [points, n], for a matrix [rows, (points and room), twice]: itself and its remainder.

    Bases in half precision are wrong by as much as everything that is rounded later. With what is missing beside them
    the product is rounded once. Other matrices, [rows, points], have no remainder. There may be a batch of them, and
    as many signals.
    """
    *batch, points, number = signals.shape
    if matrix.shape[-1] == points:
        return torch.matmul(matrix, signals)
    room = signals.new_zeros(*batch, matrix.shape[-1] // 2 - points, number)
    return torch.matmul(matrix, torch.cat([signals, room, signals, room], -2))


class _FineProduct(torch.autograd.Function):
    """`_fine_product` with gradients by the matrix alone: those of a single product can do without the remainder."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
        ctx.basis = matrix[:, : len(signals)]
        return _fine_product(matrix, signals)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, torch.mm(ctx.basis.t(), gradients[0])
