"""From the features of a sequence to those of its classifier, and what that requires of the sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ArgumentError
from ..nn import can_read_values, check_lengths, hide_padding

MEAN_OF_A_STREAM = (
    "has readout='mean', so its result on chunks differs from that on the whole sequence: use readout='last'"
)


def check_readout_lengths(lengths: torch.Tensor | Sequence[int], x: torch.Tensor, readout: str) -> torch.Tensor:
    """Return lengths [batch] as int64 on the device of x. Only readout="every" accepts sequences of length 0."""
    checked = check_lengths(lengths, x)
    if readout != "every" and can_read_values(checked):
        shortest = int(lengths.min() if isinstance(lengths, torch.Tensor) else min(lengths))
        if shortest < 1:
            raise ArgumentError(f"lengths must be at least 1 for {readout=}; got {shortest}")
    return checked.to(torch.int64)  # short integers would overflow


def last_step(x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """The last time step of each sequence: x [batch, channels, length] → [batch, channels].

    This is step where[b] − 1 of row b, for lengths [batch], or the last one where a mask [batch, 1, length] is True.
    """
    if where is None:
        return x[..., -1]
    lengths = where
    if where.ndim > 1:
        steps = torch.arange(1, x.shape[-1] + 1, device=x.device)
        lengths = torch.where(where[:, 0], steps, 1).amax(-1)
    index = (lengths - 1)[:, None, None].expand(-1, x.shape[1], 1)
    return x.gather(2, index).squeeze(2)


def mean_over_positions(x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
    """The mean over some positions: x [batch, channels, *size] → [batch, channels].

    These are the first where[b] positions of row b, for lengths [batch] of sequences, or those where a mask
    [batch, 1, *size] is True, or all of them.
    """
    positions = tuple(range(2, x.ndim))
    if where is None:
        return x.mean(positions)
    if where.ndim > 1:
        wide = x.masked_fill(~where, 0.0).to(torch.promote_types(x.dtype, torch.float32))
        return (wide.sum(positions) / where.sum(positions).clamp(min=1)).to(x.dtype)
    lengths = where
    wide = hide_padding(x, lengths).to(torch.promote_types(x.dtype, torch.float32))  # float16 ends at 65504
    return (wide.sum(-1) / lengths[:, None]).to(x.dtype)
