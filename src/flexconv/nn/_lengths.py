"""Batches of sequences padded to a common length: keep the padding out of the result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ._extent import readable


def check_lengths(lengths: torch.Tensor | Sequence[int], x: torch.Tensor, padding_mode: str = "zeros") -> torch.Tensor:
    """`lengths` as an integer tensor on x's device, refused where it does not describe x [batch, channels, length].

    Lengths on the host are checked for free; lengths on a GPU are read back for it.
    """
    if padding_mode != "zeros":
        raise ArgumentError(f"lengths needs padding_mode='zeros'; this layer has {padding_mode!r}")
    lengths = torch.as_tensor(lengths)
    if lengths.numel() and (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool):
        raise ArgumentTypeError(f"lengths must be integers; got {lengths.dtype}")
    if x.ndim != 3 or lengths.shape != x.shape[:1]:
        raise ArgumentError(
            f"lengths must hold one number per sequence of a batch [batch, channels, length]; "
            f"got lengths of shape {tuple(lengths.shape)} for an input of shape {tuple(x.shape)}"
        )
    if can_look(lengths):
        shortest, longest = int(lengths.min()), int(lengths.max())
        if shortest < 0 or longest > x.shape[-1]:
            wrong = shortest if shortest < 0 else longest
            raise ArgumentError(f"lengths must lie between 0 and the batch's length {x.shape[-1]}; got {wrong}")
    return lengths.to(x.device)


def can_look(tensor: torch.Tensor) -> bool:
    """Whether there are numbers that may be read here: not by compilers, in vmap or in the capture of a CUDA graph."""
    if torch.compiler.is_compiling() or not tensor.numel() or not readable(tensor):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def hide_padding(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Zeros from lengths[b] on: x [batch, channels, length] → the same. Replaces, so that not even NaN gets through."""
    time = torch.arange(x.shape[-1], device=x.device)
    return x.masked_fill((time >= lengths[:, None])[:, None], 0.0)
