"""Which taps a mask keeps: those strictly between the bounds […, axes, 2]. Bounds have no gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ._grid import Axis, filled

RAMP_SLACK = 1e-4  # in ramp widths: at integer ratios a ramp ends on a tap, which rounding must not keep


def keep_enough(mean: torch.Tensor, reach: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    """Mean ± reach, widened to at least `Axis.fewest_taps`, wherever the mean is."""
    half, inner = smallest_intervals(axes, mean.dtype)
    limit = filled(inner, like=mean)
    centre = torch.minimum(torch.maximum(mean, -limit), limit)
    width = filled(half, like=mean)
    return torch.stack([torch.minimum(mean - reach, centre - width), torch.maximum(mean + reach, centre + width)], -1)


def smallest_intervals(axes: Sequence[Axis], dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Half the width of an interval that contains `Axis.fewest_taps` per axis, and how far from 0 its center may be."""
    rounding = 4 * torch.finfo(dtype).eps
    half = [math.inf if a.fewest_taps == a.size else a.fewest_taps / 2 * a.spacing + rounding for a in axes]
    return half, [1.0 - (a.fewest_taps - 1) / 2 * a.spacing for a in axes]


def authors_bounds(mean: torch.Tensor, reach: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    """The published rule: symmetric about 0, or up to the end of a causal axis; everything if the root is outside."""
    bounds = []
    everything = torch.full_like(mean[0], math.inf)
    for axis, centre, distance in zip(axes, mean, reach, strict=True):
        root = (
            centre - distance if axis.causal else -torch.maximum((centre - distance).abs(), (centre + distance).abs())
        )
        low = torch.where(root.abs() < 1, root, -everything)
        bounds.append(torch.stack([low, everything if axis.causal else -low]))
    return torch.stack(bounds)


def everything(like: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    ends = like.new_full((len(axes), 2), math.inf)
    return torch.cat([-ends[:, :1], ends[:, 1:]], 1)


def ramp_ends(bounds: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Where the interval that `bounds` […, 2] keep on the old grid fades to 0 on the new one; infinite at its ends.

    The interval ends half a spacing before the first cropped tap, and the ramp is as wide as the coarser spacing.
    """
    old = axis.origin or axis
    position = (bounds - old.first) / old.spacing
    below, above = position[..., 0].floor(), position[..., 1].ceil()  # the first cropped taps
    fade = max(axis.spacing - old.spacing, 0.0) / 2 - RAMP_SLACK * max(old.spacing, axis.spacing)
    low = torch.where(below < 0, -math.inf, old.first + below * old.spacing - fade)
    high = torch.where(above > old.size - 1, math.inf, old.first + above * old.spacing + fade)
    return torch.stack([low, high], -1)
