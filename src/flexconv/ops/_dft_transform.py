"""The steps of `_dft.py`, every one a matrix product without a copy before or after it.

Spectra are [channels, parts, frequencies, batch], stored in this order, or as [frequencies, parts, channels, batch]
where `long` is set: whatever comes out of the last product. `analyse` and `synthesise` with the same matrices are
transposes of each other, `mix` and `correlate` each other's gradients, so the four are closed under differentiation.
Compilers see each as one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _each(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """One matrix as a batch of itself, without copies."""
    return matrix.expand(times, *matrix.shape)


def _aligned_rows(x: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """x [batch, …] as [batch, rows, width]. Half precision on a GPU wants rows that start at multiples of 16 bytes."""
    x = x.reshape(x.shape[0], rows, width)
    if width % 8 and x.is_cuda and x.element_size() == 2:
        room = x.new_empty(x.shape[0], rows, -(-width // 8) * 8)[..., :width]
        return room.copy_(x)
    return x


def _analyse(x: torch.Tensor, matrices: Sequence[torch.Tensor], parts: int, long: bool) -> torch.Tensor:
    """Signals [batch, channels, *size] → spectra [channels, parts, frequencies, batch]."""
    batch, channels = x.shape[:2]
    if long:
        return _analyse_long(x, matrices, parts)
    first, *others = matrices
    lines = x[0].numel() // first.shape[1]
    t = torch.bmm(_each(first, lines), _aligned_rows(x, lines, first.shape[1]).permute(1, 2, 0))
    for matrix in others:  # t is [(channel, points of outer axes, point), (part, inner frequencies), batch]
        lines = lines * 2 // matrix.shape[1]
        t = torch.bmm(_each(matrix, lines), t.view(lines, matrix.shape[1], -1))
    return t.view(channels, parts, -1, batch)


def _synthesise(
    spectra: torch.Tensor, matrices: Sequence[torch.Tensor], size: Sequence[int], long: bool
) -> torch.Tensor:
    """Spectra → signals [batch, channels, *size]: the transpose of `_analyse`."""
    channels, _, _, batch = spectra.shape
    x = spectra.new_empty(batch, channels, *size)
    if long:
        return _synthesise_long(spectra, matrices, x)
    first, *others = matrices
    t, lines = spectra.contiguous(), channels
    for matrix in reversed(others):
        t = torch.bmm(_each(matrix.T, lines), t.view(lines, matrix.shape[0], -1))
        lines = lines * matrix.shape[1] // 2
    t = t.view(lines, first.shape[0], batch).transpose(1, 2)
    torch.bmm(t, _each(first, lines), out=x.view(batch, lines, -1).transpose(0, 1))
    return x


def _analyse_long(x: torch.Tensor, matrices: Sequence[torch.Tensor], parts: int) -> torch.Tensor:
    """Sequences in two levels, after a product with the identity: the fastest way from [batch, …] to […, batch]."""
    batch, channels, length = x.shape
    identity, down, across = matrices
    inner, lines = len(identity), channels * length // len(identity)
    turned = x.new_empty(inner, lines, batch)  # [column, (channel, row), batch]
    torch.bmm(_each(identity, lines), x.reshape(batch, lines, inner).permute(1, 2, 0), out=turned.transpose(0, 1))
    t = x.new_empty(len(down), inner * channels, batch)  # [(row frequency, part), (column, channel), batch]
    rows = turned.view(inner * channels, down.shape[1], batch)
    torch.bmm(_each(down, inner * channels), rows, out=t.transpose(0, 1))
    t = torch.bmm(across, t.view(len(across), across.shape[2], channels * batch))
    return t.view(-1, parts, channels, batch).permute(2, 1, 0, 3)


def _synthesise_long(spectra: torch.Tensor, matrices: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    batch, channels, length = x.shape
    identity, down, across = matrices
    inner, lines = len(identity), channels * length // len(identity)
    t = spectra.permute(2, 1, 0, 3).reshape(len(across), across.shape[1], channels * batch)
    t = torch.bmm(across.transpose(1, 2), t).view(len(down), inner * channels, batch)
    turned = x.new_empty(inner, lines, batch)
    rows = turned.view(inner * channels, down.shape[1], batch)
    torch.bmm(_each(down.T, inner * channels), t.transpose(0, 1), out=rows)
    columns = turned.permute(1, 2, 0)  # [(channel, row), batch, column]
    torch.bmm(columns, _each(identity, lines), out=x.view(batch, lines, inner).transpose(0, 1))
    return x


def _slots(spectra: torch.Tensor, groups: int, long: bool) -> torch.Tensor:
    """Spectra as [groups · frequencies, slots, batch]; a slot is (channel, part), or (part, channel) if long."""
    channels, _, frequencies, batch = spectra.shape
    split = spectra.unflatten(0, (groups, channels // groups))
    split = split.permute(0, 3, 2, 1, 4) if long else split.permute(0, 3, 1, 2, 4)
    return split.reshape(groups * frequencies, -1, batch)


def _mix(spectra: torch.Tensor, blocks: torch.Tensor, groups: int, long: bool) -> torch.Tensor:
    """The channel mix: blocks [groups, frequencies, slots in, slots out] applied at every frequency."""
    _, _, frequencies, batch = spectra.shape
    out = groups * blocks.shape[3] // 2
    if blocks.shape[2:] == (2, 2):  # depthwise: nothing to sum but real and imaginary parts
        y = torch.empty_like(spectra)
        factor = blocks.permute(2, 3, 0, 1).unsqueeze(-1)  # [part in, part out, channels, frequencies, 1]
        for part in (0, 1):
            torch.mul(spectra[:, 0], factor[0, part], out=y[:, part]).addcmul_(spectra[:, 1], factor[1, part])
        return y
    flat = blocks.reshape(groups * frequencies, *blocks.shape[2:]).transpose(1, 2)
    slots = _slots(spectra, groups, long)
    if long:
        y = torch.bmm(flat, slots).view(groups, frequencies, 2, -1, batch)
        return y.permute(1, 2, 0, 3, 4).reshape(frequencies, 2, out, batch).permute(2, 1, 0, 3)
    y = spectra.new_empty(out, 2, frequencies, batch)
    target = y.view(groups, -1, frequencies, batch).transpose(1, 2)  # [groups, frequencies, slots, batch]
    if groups == 1:
        torch.bmm(flat, slots, out=target[0])
    else:
        target.copy_(torch.bmm(flat, slots).view(target.shape))
    return y


def _correlate(spectra: torch.Tensor, gradient: torch.Tensor, groups: int, long: bool) -> torch.Tensor:
    """Gradient of `_mix` with respect to its blocks: Σ over the batch."""
    product = torch.bmm(_slots(spectra, groups, long), _slots(gradient, groups, long).transpose(1, 2))
    return product.unflatten(0, (groups, -1))


Steps = dict[str, Callable[..., Any]]

_eager: Steps = {}  # autograd Functions: called faster
_opaque: Steps = {}  # custom operators: what compilers need


def _step(name: str, schema: str, body: Callable[..., torch.Tensor], keep: Any, gradient: Any) -> Any:
    """`body` with its gradient, in both forms. `gradient` gets the other steps in the form it is called from."""

    def eager_body(ctx: Any, *inputs: Any) -> torch.Tensor:
        output = body(*inputs)
        keep(ctx, inputs, output)
        return output

    def eager_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return gradient(_eager, ctx, grad)

    def opaque_gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        first, second, *others = gradient(_opaque, ctx, grad)
        if hasattr(ctx, "matrices"):
            second = [None] * len(ctx.matrices)
        return first, second, *others

    members = {"forward": eager_body, "backward": eager_gradient}
    function: Any = type(name, (torch.autograd.Function,), {key: staticmethod(each) for key, each in members.items()})
    operator = torch.library.custom_op(f"flexconv::dft_{name}", body, mutates_args=(), schema=schema)
    operator.register_fake(body)
    operator.register_autograd(opaque_gradient, setup_context=keep)
    _eager[name], _opaque[name] = function.apply, operator
    return lambda *each: (_opaque if torch.compiler.is_compiling() else _eager)[name](*each)


def _keep_matrices(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    x, ctx.matrices, _, ctx.long = inputs
    ctx.shape = x.shape


def _analysis_gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return steps["synthesise"](gradient, ctx.matrices, ctx.shape[2:], ctx.long), None, None, None


def _synthesis_gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return steps["analyse"](gradient, ctx.matrices, ctx.shape[1], ctx.long), None, None, None


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    first, second, ctx.groups, ctx.long = inputs
    ctx.save_for_backward(first, second)


def _mix_gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    spectra, blocks = ctx.saved_tensors
    how = ctx.groups, ctx.long
    for_spectra = steps["mix"](gradient, blocks.transpose(2, 3), *how) if ctx.needs_input_grad[0] else None
    for_blocks = steps["correlate"](spectra, gradient, *how) if ctx.needs_input_grad[1] else None
    return for_spectra, for_blocks, None, None


def _correlation_gradient(steps: Steps, ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    spectra, other = ctx.saved_tensors
    how = ctx.groups, ctx.long
    for_spectra = steps["mix"](other, gradient.transpose(2, 3), *how) if ctx.needs_input_grad[0] else None
    for_other = steps["mix"](spectra, gradient, *how) if ctx.needs_input_grad[1] else None
    return for_spectra, for_other, None, None


analyse = _step(
    "analyse",
    "(Tensor x, Tensor[] matrices, int parts, bool long) -> Tensor",
    _analyse,
    _keep_matrices,
    _analysis_gradient,
)
synthesise = _step(
    "synthesise",
    "(Tensor spectra, Tensor[] matrices, SymInt[] size, bool long) -> Tensor",
    _synthesise,
    _keep_matrices,
    _synthesis_gradient,
)
mix = _step(
    "mix", "(Tensor spectra, Tensor blocks, int groups, bool long) -> Tensor", _mix, _keep_operands, _mix_gradient
)
correlate = _step(
    "correlate",
    "(Tensor spectra, Tensor gradient, int groups, bool long) -> Tensor",
    _correlate,
    _keep_operands,
    _correlation_gradient,
)
