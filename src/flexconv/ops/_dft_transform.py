"""From signals to spectra and back by matrix products, without a copy before or after them.

Spectra are [2, frequencies, batch, channels], part 0 real and 1 imaginary; how they are stored depends on the style, as
whatever comes out of the last product. `analyse` and `synthesise` with the same matrices are transposes, and so each
other's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._row_product import row_product
from ._steps import Steps, step


def _each(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """One matrix as a batch of itself, without copies."""
    return matrix.expand(times, *matrix.shape)


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """x [batch, rows, width], its rows starting at multiples of 16 bytes where a GPU wants that: in half precision."""
    width = x.shape[-1]
    if width % 8 and x.is_cuda and x.element_size() == 2:
        room = x.new_empty(*x.shape[:-1], -(-width // 8) * 8)[..., :width]
        return room.copy_(x)
    return x


def _analyse(x: torch.Tensor, matrices: Sequence[torch.Tensor], style: str) -> torch.Tensor:
    """Signals [batch, channels, *size] → spectra [2, frequencies, batch, channels]."""
    batch, channels = x.shape[:2]
    if style == "long":
        return _analyse_long(x, matrices)
    first, *others = matrices
    if style == "whole":
        rows = aligned_rows(x.reshape(1, batch * channels, -1))[0]
        return torch.mm(first, rows.t()).view(2, -1, batch, channels)
    lines = x[0].numel() // first.shape[1]
    t = torch.bmm(_each(first, lines), aligned_rows(x.reshape(batch, lines, first.shape[1])).permute(1, 2, 0))
    for matrix in others:  # t is [(channel, points of outer axes, point), (part, inner frequencies), batch]
        lines = lines * 2 // matrix.shape[1]
        t = torch.bmm(_each(matrix, lines), t.view(lines, matrix.shape[1], -1))
    return t.view(channels, 2, -1, batch).permute(1, 2, 3, 0)


def _synthesise(
    spectra: torch.Tensor, matrices: Sequence[torch.Tensor], size: Sequence[int], style: str
) -> torch.Tensor:
    """Spectra → signals [batch, channels, *size]: the transpose of `_analyse`."""
    _, _, batch, channels = spectra.shape
    if style == "long":
        return _synthesise_long(spectra, matrices, size)
    first, *others = matrices
    if style == "whole":
        return torch.mm(spectra.reshape(len(first), -1).t(), first).view(batch, channels, *size)
    x = spectra.new_empty(batch, channels, *size)
    t, lines = spectra.permute(3, 0, 1, 2).contiguous(), channels
    for matrix in reversed(others):
        t = torch.bmm(_each(matrix.T, lines), t.view(lines, matrix.shape[0], -1))
        lines = lines * matrix.shape[1] // 2
    t = t.view(lines, first.shape[0], batch).transpose(1, 2)
    torch.bmm(t, _each(first, lines), out=x.view(batch, lines, -1).transpose(0, 1))
    return x


def _analyse_long(x: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sequences in two levels: down the columns of each, then across the rows of all."""
    batch, channels, length = x.shape
    down, across = matrices
    width = across.shape[2] // 2
    t = row_product(down, x.reshape(-1, length), width, len(down) * width)  # [sequence, (row frequency, part, column)]
    t = t.view(batch * channels, len(across), 2 * width)
    t = torch.bmm(across, t.permute(1, 2, 0))  # [row frequency, (column frequency, part), sequence]
    return t.view(-1, 2, batch, channels).transpose(0, 1)


def _synthesise_long(spectra: torch.Tensor, matrices: Sequence[torch.Tensor], size: Sequence[int]) -> torch.Tensor:
    _, _, batch, channels = spectra.shape
    down, across = matrices
    t = spectra.transpose(0, 1).reshape(len(across), across.shape[1], -1)
    rows = t.new_empty(batch * channels, len(across), across.shape[2])
    torch.bmm(t.transpose(1, 2), across, out=rows.transpose(0, 1))
    x = row_product(down.T, rows.flatten(1), across.shape[2] // 2, size[0])
    return x.view(batch, channels, *size)


def _keep_analysis(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    x, ctx.matrices, ctx.style = inputs
    ctx.size = x.shape[2:]


def _keep_synthesis(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    _, ctx.matrices, _, ctx.style = inputs


def _analysis_gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return steps["dft_synthesise"](gradient, ctx.matrices, ctx.size, ctx.style), None, None


def _synthesis_gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return steps["dft_analyse"](gradient, ctx.matrices, ctx.style), None, None, None


analyse = step(
    "dft_analyse", "(Tensor x, Tensor[] matrices, str style) -> Tensor", _analyse, _keep_analysis, _analysis_gradient
)
synthesise = step(
    "dft_synthesise",
    "(Tensor spectra, Tensor[] matrices, SymInt[] size, str style) -> Tensor",
    _synthesise,
    _keep_synthesis,
    _synthesis_gradient,
)
