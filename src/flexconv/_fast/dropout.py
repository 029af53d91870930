"""Dropout that draws one random byte per activation, a quarter of what uniform float32 numbers take.

The byte of an activation and the byte of an activation 16 positions later form a 16-bit number; the activation is kept
if that number is below 65,536 times the share to keep. The probability is therefore exact to 2⁻¹⁶. The second byte
matters in one case of 256, so two activations that share a byte are correlated by less than 0.005.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import nn

from .._hooks import hooks_of

SECOND_BYTE = 16  # offset in bytes; reads of both are aligned


def is_plain_dropout(module: nn.Module) -> TypeGuard[nn.Dropout]:
    """Whether this is torch's own dropout with p < 1 and without hooks."""
    return type(module) is nn.Dropout and module.p < 1 and not hooks_of(module)


def draw(dropout: nn.Dropout | None, x: torch.Tensor) -> tuple[torch.Tensor | None, float]:
    """Random bytes, one for each element of x and a few more, and the share to keep; (None, 1) to keep everything.

    Drawn outside of the regions that use them, so that the numbers are the same with and without compilation.
    """
    if dropout is None or not dropout.training or dropout.p == 0:
        return None, 1.0
    count = x.numel() + SECOND_BYTE
    if x.is_cuda and not torch.compiler.is_compiling():  # torch.compile has no `random_`
        # all 64 bits; a narrower range costs a GPU one division per word
        drawn = torch.empty(count // 8 + 1, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    else:
        drawn = torch.randint(-(2**31), 2**31 - 1, (count // 4 + 1,), dtype=torch.int32, device=x.device)
    return drawn.view(torch.uint8), 1.0 - dropout.p


def keep(x: torch.Tensor, drawn: torch.Tensor | None, share: float) -> torch.Tensor:
    """x where it is kept, scaled so that the mean stays the same, and 0 elsewhere."""
    if drawn is None:
        return x
    first, second = (drawn[start : start + x.numel()].view(x.shape) for start in (0, SECOND_BYTE))
    kept = torch.add(second, first.to(torch.int32), alpha=256) < round(2**16 * share)
    return x * kept * (1.0 / share)
