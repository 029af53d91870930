"""Dropout that draws a byte for every activation, a quarter of what uniform numbers take.

An activation is kept where its byte, followed by that of an activation further on, is a number below 65,536 times the
share that is kept. Each is kept with the probability that was asked for, to 2⁻¹⁶; the other byte matters in one case of
256, so that two activations which share one are correlated by less than 0.005.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import nn

from .._hooks import hooks_of

FURTHER_ON = 16  # bytes: reads of both are aligned


def is_plain_dropout(module: nn.Module) -> TypeGuard[nn.Dropout]:
    """Torch's own that leaves something, with no hook that would want to be called."""
    return type(module) is nn.Dropout and module.p < 1 and not hooks_of(module)


def draw(dropout: nn.Dropout | None, x: torch.Tensor) -> tuple[torch.Tensor | None, float]:
    """Random bytes, one for each of x and a few more, and the share of x that is to be kept; (None, 1) for all of it.

    Drawn apart from where it is used, so that it is the same draw in and outside of regions.
    """
    if dropout is None or not dropout.training or dropout.p == 0:
        return None, 1.0
    count = x.numel() + FURTHER_ON
    if x.is_cuda and not torch.compiler.is_compiling():  # torch.compile has no `random_`
        # all 64 bits as they come; any narrower range takes a GPU a division for each word
        drawn = torch.empty(count // 8 + 1, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    else:
        drawn = torch.randint(-(2**31), 2**31 - 1, (count // 4 + 1,), dtype=torch.int32, device=x.device)
    return drawn.view(torch.uint8), 1.0 - dropout.p


def keep(x: torch.Tensor, drawn: torch.Tensor | None, share: float) -> torch.Tensor:
    """What is kept of x, enlarged so that the mean stays, and zero elsewhere."""
    if drawn is None:
        return x
    first, second = (drawn[start : start + x.numel()].view(x.shape) for start in (0, FURTHER_ON))
    kept = torch.add(second, first.to(torch.int32), alpha=256) < round(2**16 * share)
    return x * kept * (1.0 / share)
