"""Transforms between signals and spectra as matrix products, with no copies before or after the products.

`analyse` computes spectra [2, frequencies, batch, channels] from signals [batch, channels, *size]; index 0 of the first
axis is the real part, index 1 the imaginary part. The strides of the spectra are those that the last product produces.
`synthesise` with the same matrices is the transpose of `analyse`, so each is the other's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ._operators import Operators, differentiable_operator
from ._row_product import row_product


def _analyse(x: torch.Tensor, matrices: Sequence[torch.Tensor], kind: str) -> torch.Tensor:
    """Signals [batch, channels, *size] → spectra [2, frequencies, batch, channels]."""
    batch, channels = x.shape[:2]
    if kind == "two-level":
        return _analyse_two_level(x, matrices)
    first, *others = matrices
    if kind == "single":
        rows = _align_rows(x.reshape(1, batch * channels, -1)).squeeze(0)
        return torch.mm(first, rows.t()).view(2, -1, batch, channels)
    lines = x[0].numel() // first.shape[1]
    t = torch.bmm(_repeat(first, lines), _align_rows(x.reshape(batch, lines, first.shape[1])).permute(1, 2, 0))
    for matrix in others:  # t is [(channel, positions of outer axes, position), (part, inner frequencies), batch]
        lines = lines * 2 // matrix.shape[1]
        t = torch.bmm(_repeat(matrix, lines), t.view(lines, matrix.shape[1], -1))
    return t.view(channels, 2, -1, batch).permute(1, 2, 3, 0)


def _synthesise(
    spectra: torch.Tensor, matrices: Sequence[torch.Tensor], size: Sequence[int], kind: str
) -> torch.Tensor:
    """Spectra [2, frequencies, batch, channels] → signals [batch, channels, *size]."""
    _, _, batch, channels = spectra.shape
    if kind == "two-level":
        return _synthesise_two_level(spectra, matrices, size)
    first, *others = matrices
    if kind == "single":
        return torch.mm(spectra.reshape(len(first), -1).t(), first).view(batch, channels, *size)
    x = spectra.new_empty(batch, channels, *size)
    t, lines = spectra.permute(3, 0, 1, 2).contiguous(), channels
    for matrix in reversed(others):
        t = torch.bmm(_repeat(matrix.T, lines), t.view(lines, matrix.shape[0], -1))
        lines = lines * matrix.shape[1] // 2
    t = t.view(lines, first.shape[0], batch).transpose(1, 2)
    torch.bmm(t, _repeat(first, lines), out=x.view(batch, lines, -1).transpose(0, 1))
    return x


def _analyse_two_level(x: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Lay every sequence out as rows; transform its columns, then its rows."""
    batch, channels, length = x.shape
    column_matrix, row_matrices = matrices
    width = row_matrices.shape[2] // 2
    t = row_product(column_matrix, x.reshape(-1, length), width, len(column_matrix) * width)
    t = t.view(batch * channels, len(row_matrices), 2 * width)  # [sequence, k, (part, column)]
    t = torch.bmm(row_matrices, t.permute(1, 2, 0))  # [k, (l, part), sequence]
    return t.view(-1, 2, batch, channels).transpose(0, 1)


def _synthesise_two_level(spectra: torch.Tensor, matrices: Sequence[torch.Tensor], size: Sequence[int]) -> torch.Tensor:
    _, _, batch, channels = spectra.shape
    column_matrix, row_matrices = matrices
    t = spectra.transpose(0, 1).reshape(len(row_matrices), row_matrices.shape[1], -1)
    rows = t.new_empty(batch * channels, len(row_matrices), row_matrices.shape[2])
    torch.bmm(t.transpose(1, 2), row_matrices, out=rows.transpose(0, 1))
    x = row_product(column_matrix.T, rows.flatten(1), row_matrices.shape[2] // 2, size[0])
    return x.view(batch, channels, *size)


def _repeat(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """View one matrix as a batch of copies."""
    return matrix.expand(times, *matrix.shape)


def _align_rows(x: torch.Tensor) -> torch.Tensor:
    """Align the rows of x [batch, rows, width] to 16 bytes, which half-precision products on a GPU need to be fast."""
    width = x.shape[-1]
    if width % 8 and x.is_cuda and x.element_size() == 2:
        if torch.compiler.is_compiling():
            return F.pad(x, (0, -width % 8))[..., :width]
        aligned = x.new_empty(*x.shape[:-1], -(-width // 8) * 8)[..., :width]
        return aligned.copy_(x)
    return x


def _setup_analysis(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    x, ctx.matrices, ctx.kind = inputs
    ctx.size = x.shape[2:]


def _setup_synthesis(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    _, ctx.matrices, _, ctx.kind = inputs


def _analysis_backward(operators: Operators, ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return operators["dft_synthesise"](grad, ctx.matrices, ctx.size, ctx.kind), None, None


def _synthesis_backward(operators: Operators, ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return operators["dft_analyse"](grad, ctx.matrices, ctx.kind), None, None, None


_analyse_operator = differentiable_operator(
    "dft_analyse", "(Tensor x, Tensor[] matrices, str kind) -> Tensor", _analyse, _setup_analysis, _analysis_backward
)
_synthesise_operator = differentiable_operator(
    "dft_synthesise",
    "(Tensor spectra, Tensor[] matrices, SymInt[] size, str kind) -> Tensor",
    _synthesise,
    _setup_synthesis,
    _synthesis_backward,
)


def analyse(x: torch.Tensor, matrices: Sequence[torch.Tensor], kind: str) -> torch.Tensor:
    """Signals [batch, channels, *size] → spectra [2, frequencies, batch, channels]."""
    return (_analyse if _is_one_product(kind) else _analyse_operator)(x, matrices, kind)


def synthesise(spectra: torch.Tensor, matrices: Sequence[torch.Tensor], size: Sequence[int], kind: str) -> torch.Tensor:
    """Spectra [2, frequencies, batch, channels] → signals [batch, channels, *size]."""
    return (_synthesise if _is_one_product(kind) else _synthesise_operator)(spectra, matrices, size, kind)


def _is_one_product(kind: str) -> bool:
    """Whether a compiler sees the transform as a plain matrix product, which it calls faster than an operator."""
    return kind == "single" and torch.compiler.is_compiling()
