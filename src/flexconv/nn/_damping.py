"""Smaller gradients for the parameters of a mask.

All values of all kernels of a layer, out × in channels × taps, depend on its mask, so the gradient of the mask is a sum
over as many terms. A step of gradient descent at a rate that suits other parameters would throw it far off. Its
gradient is therefore divided by the square root of the number of values, as Esser et al. (Learned Step Size
Quantization, 2020) do for a step size that many weights share. It is also divided by the factor r in
σ = σ_0 exp(r · growth), which makes it the gradient of ln σ. Optimizers that normalize gradients, such as Adam, are not
affected by either.
"""

from __future__ import annotations

import math

import torch


def damping(values: int, rate: float) -> float:
    """The factor of the gradient of parameters that this many values share, and that act with this rate."""
    return 1 / (rate * math.sqrt(values))


def damp(x: torch.Tensor, factor: torch.Tensor | float) -> torch.Tensor:
    """x, with its gradient multiplied by a factor."""
    if isinstance(factor, float) and factor == 1.0:
        return x
    return factor * x + (1.0 - factor) * x.detach()
