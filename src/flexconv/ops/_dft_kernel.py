"""Conjugated spectra of kernels for `_dft.py`.

The spectrum of a factored kernel (`_factored.py`) is a sum of the spectra of its basis functions, (F · basis) · mixᵀ. A
kernel of 48 input and 48 output channels then needs 33 transforms and one product instead of 2,304 transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ._dft_matrices import TransformSpec
from ._dft_transform import analyse
from ._factored import FactoredKernel


def kernel_spectrum(
    weight: torch.Tensor | FactoredKernel, spec: TransformSpec, matrices: Sequence[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """Weight [out, in/groups, *taps] → conjugated spectrum [2, frequencies, out, in/groups] in `dtype`.

    The weight has the dtype of the matrices. The spectrum of a factored kernel may have more input channels than the
    kernel. They are zero.
    """
    if not isinstance(weight, FactoredKernel):
        taps = math.prod(weight.shape[2:])  # the columns after them, if any, hold the rounding error
        rounded = [matrices[0].narrow(1, 0, taps)] if spec.kind == "single" else matrices
        return analyse(weight, rounded, spec.kind).to(dtype)

    def transform(basis: torch.Tensor) -> torch.Tensor:  # [*taps, n] → [rows, n], with parts and frequencies as below
        if spec.kind == "single":
            return _CompensatedProduct.apply(matrices[0], basis.flatten(0, -2))
        if spec.kind == "two-level":
            return _two_level_basis_spectra(basis, *matrices)
        return analyse(basis.movedim(-1, 0).unsqueeze(1), matrices, spec.kind).to(dtype).flatten(0, 1).squeeze(2)

    basis_spectra = weight.transform_basis((spec, dtype), transform)
    out, channels = weight.shape[:2]
    if dtype.itemsize == 2 and channels > 1 and out * channels % 8:
        channels += -channels % 8  # rows of a multiple of 16 bytes, which tensor cores load faster
    mix = (weight.mix if channels == weight.shape[1] else weight.padded_mix(channels)).to(dtype)
    spectrum = torch.mm(basis_spectra, mix.flatten(0, 1).t())
    if spec.kind == "two-level":
        return spectrum.view(-1, 2, *mix.shape[:2]).transpose(0, 1)
    return spectrum.view(2, -1, *mix.shape[:2])


def _two_level_basis_spectra(
    basis: torch.Tensor, column_matrix: torch.Tensor, row_matrices: torch.Tensor
) -> torch.Tensor:
    """[taps, n] → [(frequency, part), n], by columns and then rows as in `_dft_transform.py`.

    The n basis functions are the innermost axis, so every product reads and writes contiguous memory.
    """
    frequencies, width, _ = row_matrices.shape
    taps, number = basis.shape
    if taps % (width // 2):
        basis = F.pad(basis, (0, 0, 0, -taps % (width // 2)))
    t = _compensated_product(column_matrix, basis.reshape(-1, width // 2 * number))  # [(k, part), (column, n)]
    return _compensated_product(row_matrices, t.view(frequencies, width, -1)).flatten(0, 1)


def _compensated_product(matrix: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
    """Multiply matrix [rows, 2·(points and padding)], which holds its own rounding error, by signals [points, n].

    In half precision, rounding the Fourier basis would cost as much accuracy as all later rounding together. With the
    rounding error as a second half of the matrix, only the result is rounded. A matrix [rows, points] has no such half
    and is multiplied as it is. Both operands may have a batch dimension.
    """
    *batch, points, number = signals.shape
    if matrix.shape[-1] == points:
        return torch.matmul(matrix, signals)
    padding = signals.new_zeros(*batch, matrix.shape[-1] // 2 - points, number)
    return torch.matmul(matrix, torch.cat([signals, padding, signals, padding], -2))


class _CompensatedProduct(torch.autograd.Function):
    """`_compensated_product` whose gradient omits the rounding error, which a single product does not need."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, signals: torch.Tensor) -> torch.Tensor:
        ctx.rounded_matrix = matrix[:, : len(signals)]
        return _compensated_product(matrix, signals)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, torch.mm(ctx.rounded_matrix.t(), grads[0])
