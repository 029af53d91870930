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
    """Replace the entries of a mask in a state by those of another form, if it has those of another form."""
    keys = {name: prefix + name for name in ("start", "shift", "growth", "mean", "sigma")}
    if form == "scaled" and keys["sigma"] in state and keys["growth"] not in state:
        mean, sigma = state.pop(keys["mean"]), state.pop(keys["sigma"])
        state[keys["start"]] = torch.stack([mean, sigma.abs()], -2)
        state[keys["shift"]], state[keys["growth"]] = torch.zeros_like(mean), torch.zeros_like(sigma)
    elif form != "scaled" and keys["growth"] in state and keys["sigma"] not in state:
        start, shift, growth = (state.pop(keys[name]) for name in ("start", "shift", "growth"))
        state[keys["mean"]], state[keys["sigma"]] = scaled_values(start, shift, growth)
