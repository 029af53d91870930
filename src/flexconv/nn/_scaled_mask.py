"""Scaled parameters of a mask: how far its center and width are from where they started, in units of the initial width.

    μ = μ_0 + r σ_0 · shift,        σ = σ_0 exp(r · growth),        r = 4

An optimizer changes `shift` and `growth`. So a learning rate means the same on every grid, σ stays positive, and weight
decay leads back to the initial mask instead of to an empty one. `start` holds μ_0 and σ_0 and is not learned. Gradients
are damped (`_damping.py`).
"""

from __future__ import annotations

import torch

RATE = 4.0  # a step of 0.001, usual for Adam, changes σ by 0.4 %


def scaled_values(start: torch.Tensor, shift: torch.Tensor, growth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and σ […, D] of a scaled mask that started at `start` […, 2, D]."""
    mean, sigma = start.unbind(-2)
    return mean + sigma * (RATE * shift), sigma * torch.exp(RATE * growth)  # 4 σ may overflow


def convert_state(state: dict[str, torch.Tensor], prefix: str, form: str) -> None:
    """Replace the entries of a mask in a state by those of another form, if it has all of another form."""
    start, shift, growth, mean, sigma = (prefix + name for name in ("start", "shift", "growth", "mean", "sigma"))
    if form == "scaled" and mean in state and sigma in state and growth not in state:
        values = state.pop(mean), state.pop(sigma)
        state[start] = torch.stack([values[0], values[1].abs()], -2)
        state[shift], state[growth] = torch.zeros_like(values[0]), torch.zeros_like(values[1])
    elif form != "scaled" and all(key in state for key in (start, shift, growth)) and sigma not in state:
        state[mean], state[sigma] = scaled_values(*(state.pop(key) for key in (start, shift, growth)))
