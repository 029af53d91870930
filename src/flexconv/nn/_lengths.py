"""Batches of sequences that are padded to a common length: the padding must not influence the result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ._extent import readable


def check_lengths(lengths: torch.Tensor | Sequence[int], x: torch.Tensor, padding_mode: str = "zeros") -> torch.Tensor:
    """Return `lengths` as an integer tensor on the device of x [batch, channels, length]; raise if they do not fit x.

    Checking lengths on a GPU requires a copy to the host.
    """
    if padding_mode != "zeros":
        raise ArgumentError(f"lengths needs padding_mode='zeros'; this layer has {padding_mode!r}")
    if not isinstance(lengths, torch.Tensor):
        lengths = torch.as_tensor(lengths, device="cpu")  # not torch's default device
    if lengths.numel() and (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool):
        raise ArgumentTypeError(f"lengths must be integers; got {lengths.dtype}")
    if x.ndim != 3 or lengths.shape != x.shape[:1]:
        raise ArgumentError(
            f"lengths must hold one number per sequence of a batch [batch, channels, length]; "
            f"got lengths of shape {tuple(lengths.shape)} for an input of shape {tuple(x.shape)}"
        )
    if can_read_values(lengths):
        shortest, longest = int(lengths.min()), int(lengths.max())
        if shortest < 0 or longest > x.shape[-1]:
            wrong = shortest if shortest < 0 else longest
            raise ArgumentError(f"lengths must lie between 0 and the batch's length {x.shape[-1]}; got {wrong}")
    return lengths.to(x.device)


def can_read_values(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor can be read: not by a compiler, in vmap, or while a CUDA graph is captured."""
    if torch.compiler.is_compiling() or not tensor.numel() or not readable(tensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def hide_padding(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Set x [batch, channels, length] to 0 from position lengths[b] on, even if it is NaN there."""
    return x.masked_fill(~inside(x, lengths), 0.0)


def inside(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Whether a position of x [batch, channels, length] lies before lengths[b] → [batch, 1, length]."""
    return (torch.arange(x.shape[-1], device=x.device) < lengths[:, None])[:, None]
