"""Learnable Gaussian masks, which determine the size of a FlexConv's kernel.

    w(x) = Π_d exp( −½ ((x_d − μ_d) / σ_d)² ),        cropped to    |x_d − μ_d| < σ_d √(−2 ln t)

The peak is 1, and the kernel is cropped where a factor falls below the threshold t. There is one mask per layer, shared
by all channels. Cropping is a comparison and has no gradient.

On another grid than the one it was trained on (`Axis.origin`) a mask covers the same interval as before. The hard edge
between the last tap kept and the first one cropped becomes a linear ramp between these two, and the values are scaled
so that their sum times the spacing does not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from .._arguments import per_axis_floats, positive_int, unknown_name
from ..errors import ArgumentError
from ._crop import RAMP_SLACK, authors_bounds, everything, keep_enough, ramp_ends
from ._extent import readable
from ._grid import Axis, coarser, coarsest, origins, tap_weights, was_resampled
from ._guard import SIGMA_FLOOR, guard, guarded_values

FORMS = ("guarded", "authors")


class GaussianMask(nn.Module):
    """Axis-aligned Gaussian mask with learnable center and width per axis.

    Arguments:
        dims: number of spatial axes.
        mean: initial center on [−1, 1], a number or one per axis. The default is the current sample of each axis: 0 on
            a centered axis, +1 on a causal one. On a causal axis, −1 is the most distant past.
        sigma: initial standard deviation, a number or one per axis.
        threshold: crop where a factor of the mask falls below this value. None: no cropping.
        form: "guarded" keeps the mask trainable for all parameter values. The mean is clamped to [−1, 1] and |σ| to at
            least a third of a tap spacing, with gradients that lead back into this range, and at least 3 taps (2 on a
            causal axis) are kept. "authors" follows the published code, which has none of this: a centered kernel is
            cropped symmetrically about 0, and a causal one always includes the newest tap.

    """

    def __init__(
        self,
        dims: int,
        *,
        mean: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] = 0.075,
        threshold: float | None = 0.1,
        form: str = "guarded",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if form not in FORMS:
            unknown_name("mask form", form, FORMS)
        if threshold is not None and not (isinstance(threshold, int | float) and 0 < threshold < 1):
            raise ArgumentError(f"threshold must lie between 0 and 1, or be None for no cropping; got {threshold!r}")
        self.dims = positive_int("dims", dims)
        self.form = form
        self.threshold = threshold
        self.initial_mean = None if mean is None else per_axis_floats("mean", mean, dims)
        self.initial_sigma = per_axis_floats("sigma", sigma, dims)
        if 0 in self.initial_sigma:
            raise ArgumentError(f"sigma must not be 0; got {sigma}")
        self.mean = nn.Parameter(torch.empty(dims, device=device, dtype=dtype))
        self.sigma = nn.Parameter(torch.empty(dims, device=device, dtype=dtype))
        GaussianMask.reset_parameters(self)

    def reset_parameters(self) -> None:
        """Restore the initial mean and σ; the mean is 0 if none was given and the mask is in no layer."""
        with torch.no_grad():
            self.mean.copy_(torch.tensor(self.initial_mean or [0.0] * self.dims, dtype=torch.float64))
            self.sigma.copy_(torch.tensor(self.initial_sigma, dtype=torch.float64))

    def attach(self, axes: Sequence[Axis]) -> None:
        """Set the grid of the layer. If the user gave no mean, the mask starts at the current sample."""
        if self.initial_mean is None:
            self.initial_mean = [axis.current for axis in axes]
            if not readable(self.mean) or not self.mean.any():  # otherwise a state was loaded
                with torch.no_grad():
                    self.mean.copy_(torch.tensor(self.initial_mean))

    def size_parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters that `bounds` needs. A layer refreshes its size when they change."""
        return self.mean, self.sigma

    def bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """Taps strictly between bounds[d, 0] and bounds[d, 1] are kept along axis d → [D, 2].

        A function of tensors, so that the same formula is used in the forward pass and on a host copy. It has no
        useful gradient.
        """
        bounds = self._bounds(parameters, origins(axes))
        if not was_resampled(axes):
            return bounds
        return torch.stack([ramp_ends(bounds[d], axis) for d, axis in enumerate(axes)])

    def _bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The bounds on the grid that the mask was trained on → [D, 2]."""
        mean, sigma = parameters
        if self.threshold is None:
            return everything(mean, axes)
        if self.form == "authors":
            return authors_bounds(mean, self._reach(sigma.abs()), axes)
        mean, sigma = guarded_values(mean, sigma, axes)
        return keep_enough(mean, self._reach(sigma), axes)

    def _kept(self, bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]) -> list[torch.Tensor]:
        """The share of every tap that is kept, per axis → [n_d]: 0 or 1, or between on a resampled grid."""
        # NaN bounds keep everything, so that the mask becomes NaN and not silently 0
        kept = [~((x <= bounds[d, 0]) | (x >= bounds[d, 1])) for d, x in enumerate(lines)]
        if not was_resampled(axes):
            return [keep.to(x.dtype) for keep, x in zip(kept, lines, strict=True)]
        widths = [axis.spacing for axis in coarser(axes)]
        return [
            (torch.minimum(x - bounds[d, 0], bounds[d, 1] - x) / widths[d] + RAMP_SLACK).clamp(0, 1) * kept[d]
            for d, x in enumerate(lines)
        ]

    def forward(self, lines: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """Values of the mask on a product grid: coordinates [n_d] per axis → [n_0, …, n_{D−1}]."""
        window = self._values(lines, axes)
        if not was_resampled(axes):
            return window
        return window * self._total(origins(axes), lines[0]) / self._total(axes, lines[0])

    def _total(self, axes: Sequence[Axis], like: torch.Tensor) -> torch.Tensor:
        """The sum of the mask over a whole grid, times the spacing → scalar."""
        whole = [axis.whole for axis in axes]
        lines = [axis.coordinates(axis.whole, device=like.device, dtype=like.dtype) for axis in axes]
        total = (self._values(lines, axes) * tap_weights(axes, whole, like=like)).sum()
        return total * math.prod(
            [axis.spacing for axis in axes]
        )  # a list, because dynamo cannot trace a generator here

    def _values(self, lines: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        mean, sigma = (parameter.to(lines[0].dtype) for parameter in (self.mean, self.sigma))
        kept = self._kept(self.bounds((mean.detach(), sigma.detach()), axes), lines, axes)
        mean, sigma = self.guarded(mean, sigma, axes)
        window = lines[0].new_ones(())
        for d, (x, keep) in enumerate(zip(lines, kept, strict=True)):
            profile = torch.exp(-0.5 * ((x - mean[d]) / sigma[d]).square())
            window = window.unsqueeze(-1) * (profile * keep)
        return window

    def guarded(
        self, mean: torch.Tensor, sigma: torch.Tensor, axes: Sequence[Axis]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and σ […, D] after clamping. Gradients beyond the limits lead back or are zero."""
        return guard(mean, sigma, coarser(axes)) if self.form == "guarded" else (mean, sigma)

    def sigma_floor(self, axes: Sequence[Axis]) -> list[float]:
        """The smallest |σ| per axis that the mask uses; 0 in the authors' form, which does not clamp it."""
        return [SIGMA_FLOOR * axis.spacing if self.form == "guarded" else 0.0 for axis in coarser(axes)]

    def _reach(self, sigma: torch.Tensor) -> torch.Tensor:
        """Distance from the center at which a factor of the mask falls to the threshold."""
        return sigma * math.sqrt(-2.0 * math.log(self.threshold or 1.0))

    def extra_repr(self) -> str:
        mean = "None" if self.initial_mean is None else _format_parameter(self.mean, self.initial_mean)
        form = "" if self.form == "guarded" else f", form={self.form!r}"
        sigma = _format_parameter(self.sigma, self.initial_sigma)
        return f"{self.dims}, mean={mean}, sigma={sigma}, threshold={self.threshold}{form}"


class RotatedGaussianMask(GaussianMask):
    """2D Gaussian mask whose axes are rotated by a learnable angle φ (the paper's steerable mask).

    σ_0 and σ_1 belong to the rotated axes u = R(φ)(x − μ), R(φ) = [[cos φ, sin φ], [−sin φ, cos φ]]. The kernel is
    cropped to the bounding box of the ellipse on which the mask equals the threshold. `angle` is the initial φ in
    radians; the other arguments are those of `GaussianMask`.
    """

    def __init__(
        self,
        dims: int = 2,
        *,
        mean: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] = 0.075,
        angle: float = 0.0,
        threshold: float | None = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dims != 2:
            raise ArgumentError(f"RotatedGaussianMask rotates in a plane: dims must be 2; got {dims}")
        super().__init__(dims, mean=mean, sigma=sigma, threshold=threshold, device=device, dtype=dtype)
        (self.initial_angle,) = per_axis_floats("angle", angle, 1)
        self.angle = nn.Parameter(torch.full((1,), self.initial_angle, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.angle, self.initial_angle)

    def size_parameters(self) -> tuple[nn.Parameter, ...]:
        return self.mean, self.sigma, self.angle

    def _bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        mean, sigma, angle = parameters
        if self.threshold is None:
            return everything(mean, axes)
        mean, sigma = guarded_values(mean, sigma, coarsest(axes))
        width = torch.hypot(angle.cos() * sigma, angle.sin() * sigma.flip(0))  # the square of a huge σ would overflow
        return keep_enough(mean, self._reach(width), axes)

    def _values(self, lines: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        mean, sigma, angle = (p.to(lines[0].dtype) for p in self.size_parameters())
        rows, columns = self._kept(self.bounds((mean.detach(), sigma.detach(), angle.detach()), axes), lines, axes)
        mean, sigma = self.guarded(mean, sigma, axes)
        cos, sin = angle.cos(), angle.sin()
        x, y = (lines[0] - mean[0]).unsqueeze(1), (lines[1] - mean[1]).unsqueeze(0)
        u, v = (cos * x + sin * y) / sigma[0], (cos * y - sin * x) / sigma[1]
        window = torch.exp(-0.5 * (u.square() + v.square()))
        return window * (rows.unsqueeze(1) * columns.unsqueeze(0))

    def guarded(
        self, mean: torch.Tensor, sigma: torch.Tensor, axes: Sequence[Axis]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return guard(mean, sigma, coarsest(coarser(axes)))

    def sigma_floor(self, axes: Sequence[Axis]) -> list[float]:
        return [SIGMA_FLOOR * axis.spacing for axis in coarsest(coarser(axes))]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, angle={_format_parameter(self.angle, [self.initial_angle])}"


def _format_parameter(parameter: nn.Parameter, initial: Sequence[float]) -> str:
    """The value of a parameter to three digits, or its initial value if it is on the meta device."""
    real = type(parameter) is nn.Parameter and not parameter.is_meta
    texts = [f"{value:.3g}" for value in (parameter.tolist() if real else initial)]
    return texts[0] if len(set(texts)) == 1 else "(" + ", ".join(texts) + ")"
