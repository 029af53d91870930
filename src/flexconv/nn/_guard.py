"""Limits of mean and σ that keep a mask trainable: it never vanishes, and gradients lead back into the range."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._grid import Axis, filled

SIGMA_FLOOR = 1 / 3  # in tap spacings; the neighbor of the center tap then has the weight exp(−4.5) and a gradient


def guard(mean: torch.Tensor, sigma: torch.Tensor, axes: Sequence[Axis]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and σ clamped to their safe range, with gradients that lead back into it."""
    return _keep_inside(mean, -1.0, 1.0), effective_sigma(sigma, _floor(sigma, axes))


def guarded_values(mean: torch.Tensor, sigma: torch.Tensor, axes: Sequence[Axis]) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of `guard` without gradients, in fewer operations."""
    return mean.clamp(-1.0, 1.0), torch.maximum(sigma.abs(), _floor(sigma, axes))


def guarded_numbers(
    mean: Sequence[float], sigma: Sequence[float], axes: Sequence[Axis]
) -> tuple[list[float], list[float]]:
    """The values of `guard` for numbers."""
    floors = [SIGMA_FLOOR * axis.spacing for axis in axes]
    return [min(max(m, -1.0), 1.0) for m in mean], [max(abs(s), low) for s, low in zip(sigma, floors, strict=True)]


def _floor(sigma: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    return filled([SIGMA_FLOOR * axis.spacing for axis in axes], like=sigma)


def effective_sigma(sigma: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """max(|σ|, floor), with a gradient that leads back if |σ| is below `floor`. Both have the same shape."""
    sign = torch.copysign(torch.ones_like(sigma), sigma.detach())
    return _keep_inside(sigma * sign, floor, None)  # unlike abs, the product has a gradient at 0


def _keep_inside(x: torch.Tensor, low: torch.Tensor | float, high: float | None) -> torch.Tensor:
    keep = _KeepInside if torch.compiler.is_compiling() else _KeepInsideBothModes
    return keep.apply(x, low, high)


class _KeepInside(torch.autograd.Function):
    """Clamp to [low, high]. Outside of it, only gradients whose descent leads back inside are kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, low: torch.Tensor | float, high: float | None) -> torch.Tensor:
        return torch.clamp(x, low, high)  # type: ignore[call-overload]  (numbers or tensors)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # noqa: ANN001
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, *grads: torch.Tensor):  # noqa: ANN001, ANN205
        x, inside = ctx.saved_tensors
        outward = (x - inside).sign() * grads[0] < 0  # descent moves against the gradient
        return grads[0].masked_fill(outward, 0.0), None, None


class _KeepInsideBothModes(_KeepInside):
    """The same with forward-mode derivatives, which the compiler cannot trace."""

    @staticmethod
    def jvp(ctx, *tangents: torch.Tensor) -> torch.Tensor:  # noqa: ANN001, ARG004
        return tangents[0].view_as(tangents[0])
