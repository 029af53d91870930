"""Learnable Gaussian masks, which determine the size of a FlexConv's kernel.

    w(x) = Π_d exp( −½ ((x_d − μ_d) / σ_d)² ),        cropped to    |x_d − μ_d| < σ_d √(−2 ln t)

The peak is 1, and the kernel is cropped where a factor falls below the threshold t. Cropping is a comparison and has no
gradient. There is one mask per layer, shared by all channels, or one per channel of a depthwise layer
(`_channel_mask.py`).

The center μ and the width σ come from the parameters that an optimizer changes (`_mask_parameters.py`). They are
clamped to what the grid can resolve (`_guard.py`), then they decide which taps are kept (`_crop.py`). The form
"authors" has other rules for both: those of the published code.

On another grid than the one it was trained on (`Axis.origin`) a mask covers the same interval as before. The hard edge
between the last tap kept and the first one cropped becomes a linear ramp between these two, and the values are scaled
so that their sum times the spacing does not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from .._arguments import per_axis_floats
from ..errors import ArgumentError
from ._crop import RAMP_SLACK, authors_bounds, everything, keep_enough, ramp_ends
from ._extent import readable
from ._grid import Axis, coarser, coarsest, filled, origins, tap_weights, was_resampled
from ._guard import SIGMA_FLOOR, effective_sigma, guard, guarded_values
from ._mask_parameters import FORMS, MaskParameters, format_values


class GaussianMask(MaskParameters):
    """Axis-aligned Gaussian mask with learnable center and width per axis.

    Read the center and the width with `mean` and `sigma`, and change them with `set_`. In a scaled mask, which a layer
    has by default, they are computed each time they are read. Assigning to them raises an error. After writing into
    them, as in `mask.sigma.fill_(0.3)`, the next use of the mask raises an error.

    Arguments:
        dims: number of spatial axes.
        mean: initial center on [−1, 1], a number or one per axis. The default is the current sample of each axis: 0 on
            a centered axis, +1 on a causal one. On a causal axis, −1 is the most distant past.
        sigma: initial standard deviation, a number or one per axis. The default is 0.075 and, in a scaled mask, at
            least 1.5 tap spacings of the layer's grid, which keeps 7 taps.
        threshold: crop where a factor of the mask falls below this value. None: no cropping.
        form: what is learned. "guarded": mean and σ themselves. "scaled": the parameters `shift` and `growth`, with
            mean = μ_0 + 4 σ_0 · shift and σ = σ_0 exp(4 · growth). "authors": mean and σ as in the published code. The
            first two keep the mask trainable for all parameter values: the mean is clamped to [−1, 1] and |σ| to at
            least a third of a tap spacing, with gradients that lead back into this range, and at least 3 taps (2 on a
            causal axis) are kept. "authors" has none of this: a centered kernel is cropped symmetrically about 0, and a
            causal one always includes the newest tap. The default, None, is "guarded" until the mask is given to a
            layer. A layer with parametrization="scaled", the default, then replaces the parameters of the mask by
            scaled ones with the same mean and σ, so create the optimizer after the layer. A mask that several layers
            share takes the form of the first one.

    """

    # --- values -------------------------------------------------------------------------------------------------------

    def forward(self, lines: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """Values of the mask on a product grid: coordinates [n_d] per axis → [n_0, …, n_{D−1}]."""
        mean, sigma, *others = self.natural([p.to(lines[0].dtype) for p in self.size_parameters()])
        return self.evaluate((*self.guarded(mean, sigma, axes), *others), lines, axes)

    def guarded(
        self, mean: torch.Tensor, sigma: torch.Tensor, axes: Sequence[Axis]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and σ […, D] clamped to what the grid that they were trained on can resolve.

        Gradients beyond the limits lead back or are zero. This holds for the whole gradient of a parameter, so the
        guard is applied once, before everything that depends on the parameter.
        """
        return (mean, sigma) if self.form == "authors" else guard(mean, sigma, self._limiting_axes(origins(axes)))

    def evaluate(
        self, values: Sequence[torch.Tensor], lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        """The same as `forward` for given values: mean and σ from `guarded`, then any further ones."""
        detached = [value.detach() for value in values]
        bounds, here = self._bounds_at(detached, axes), self._resolved(values, axes)
        mask = self._gaussian(here, bounds, lines, axes)
        if not was_resampled(axes):
            return mask
        before = self._integral(values, self._bounds_at(detached, origins(axes)), origins(axes))
        return mask * before / self._integral(here, bounds, axes)

    def _gaussian(
        self, values: Sequence[torch.Tensor], bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        """The Gaussian with these values, cropped to `bounds`."""
        mean, sigma, *_ = values
        mask = lines[0].new_ones(())
        for d, (x, keep) in enumerate(zip(lines, self._crop_factors(bounds, lines, axes), strict=True)):
            profile = torch.exp(-0.5 * ((x - mean[d]) / sigma[d]).square())
            mask = mask.unsqueeze(-1) * (profile * keep)
        return mask

    def around(self, sigma: torch.Tensor, offsets: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The mask moved to a position: its values at offsets [n_d] from there, for widths [n, D] → [n, *n_d].

        It is cropped as always, and at least the next tap is kept.
        """
        mask = sigma.new_ones(1)
        for d, (offset, axis) in enumerate(zip(offsets, axes, strict=True)):
            profile = torch.exp(-0.5 * (offset / sigma[:, d, None]).square())
            if self.threshold is not None:
                profile = profile * ((profile > self.threshold) | (offset.abs() < 1.5 * axis.spacing))
            mask = mask.unsqueeze(-1) * profile.view(len(sigma), *[1] * d, -1)
        return mask

    # --- which taps are kept ------------------------------------------------------------------------------------------

    def bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """Taps strictly between bounds[d, 0] and bounds[d, 1] are kept along axis d → [D, 2].

        A function of tensors, so that the same formula is used in the forward pass and on a host copy. It has no
        useful gradient.
        """
        return self._bounds_at(self.natural(parameters), axes)

    def _bounds_at(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The same from mean, σ and any further values."""
        bounds = self._bounds(values, origins(axes))
        if not was_resampled(axes):
            return bounds
        return torch.stack([ramp_ends(bounds[..., d, :], axis) for d, axis in enumerate(axes)], -2)

    def _bounds(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The bounds on the grid that the mask was trained on → [D, 2]."""
        mean, sigma = values
        if self.threshold is None:
            return everything(mean, axes)
        if self.form == "authors":
            return authors_bounds(mean, self._reach(sigma.abs()), axes)
        mean, sigma = guarded_values(mean, sigma, axes)
        return keep_enough(mean, self._reach(sigma), axes)

    def _reach(self, sigma: torch.Tensor) -> torch.Tensor:
        """Distance from the center at which a factor of the mask falls to the threshold."""
        return sigma * math.sqrt(-2.0 * math.log(self.threshold or 1.0))

    def _crop_factors(
        self, bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> list[torch.Tensor]:
        """The factor of every tap, per axis → [n_d]: 1 if kept, 0 if cropped, between them on a ramp."""
        # NaN bounds keep everything, so that the mask becomes NaN and not silently 0
        ends = self._ends(bounds)
        kept = [~((x <= low) | (x >= high)) for x, (low, high) in zip(lines, ends, strict=True)]
        if not was_resampled(axes):
            return [keep.to(x.dtype) for keep, x in zip(kept, lines, strict=True)]
        widths = [axis.spacing for axis in coarser(axes)]
        return [
            (torch.minimum(x - low, high - x) / width + RAMP_SLACK).clamp(0, 1) * keep
            for x, (low, high), width, keep in zip(lines, ends, widths, kept, strict=True)
        ]

    def _ends(self, bounds: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Lower and upper bound per axis, in a shape that can be compared with coordinates [n]."""
        return [(bounds[d, 0], bounds[d, 1]) for d in range(self.dims)]

    # --- limits of σ, and other grids than the one trained on ---------------------------------------------------------

    def sigma_floor(self, axes: Sequence[Axis]) -> list[float]:
        """The smallest |σ| per axis that the mask uses; 0 in the authors' form, which does not clamp it."""
        return [0.0 if self.form == "authors" else SIGMA_FLOOR * axis.spacing for axis in self._limiting_axes(axes)]

    def _limiting_axes(self, axes: Sequence[Axis]) -> list[Axis]:
        """The axes whose spacing limits σ."""
        return coarser(axes)

    def _resolved(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> Sequence[torch.Tensor]:
        """The values with |σ| clamped to what this grid can resolve, if it is coarser than the one before."""
        floor, before = self.sigma_floor(axes), self.sigma_floor(origins(axes))
        if floor == before:
            return values
        mean, sigma, *others = values
        return mean, effective_sigma(sigma, filled(floor, like=sigma)), *others

    def _integral(self, values: Sequence[torch.Tensor], bounds: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
        """The sum of the mask over a whole grid, times the spacing → scalar."""
        whole, like = [axis.whole for axis in axes], bounds
        lines = [axis.coordinates(axis.whole, device=like.device, dtype=like.dtype) for axis in axes]
        total = self._sum(self._gaussian(values, bounds, lines, axes) * tap_weights(axes, whole, like=like))
        spacings = [axis.spacing for axis in axes]  # a list, because dynamo cannot trace a generator here
        return total * math.prod(spacings)

    def _sum(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.sum()


class RotatedGaussianMask(GaussianMask):
    """2D Gaussian mask whose axes are rotated by a learnable angle φ (the paper's steerable mask).

    σ_0 and σ_1 belong to the rotated axes u = R(φ)(x − μ), R(φ) = [[cos φ, sin φ], [−sin φ, cos φ]]. The kernel is
    cropped to the bounding box of the ellipse on which the mask equals the threshold. `angle` is the initial φ in
    radians; the other arguments are those of `GaussianMask`. There is no form "authors".
    """

    forms = FORMS[:2]

    def __init__(
        self,
        dims: int = 2,
        *,
        mean: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] | None = None,
        angle: float = 0.0,
        threshold: float | None = 0.1,
        form: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dims != 2:
            raise ArgumentError(f"RotatedGaussianMask rotates in a plane: dims must be 2; got {dims}")
        super().__init__(dims, mean=mean, sigma=sigma, threshold=threshold, form=form, device=device, dtype=dtype)
        (self.initial_angle,) = per_axis_floats("angle", angle, 1)
        self.angle = nn.Parameter(torch.full((1,), self.initial_angle, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.angle, self.initial_angle)

    @property
    def size_names(self) -> tuple[str, ...]:
        return *super().size_names, "angle"

    def size_parameters(self) -> tuple[torch.Tensor, ...]:
        return *super().size_parameters(), self.angle

    def _bounds(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        mean, sigma, angle = values
        if self.threshold is None:
            return everything(mean, axes)
        mean, sigma = guarded_values(mean, sigma, coarsest(axes))
        return keep_enough(mean, self._reach(_box(sigma, angle)), axes)

    def _gaussian(
        self, values: Sequence[torch.Tensor], bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        mean, sigma, angle = values
        rows, columns = self._crop_factors(bounds, lines, axes)
        mask = _rotated_gaussian(lines[0] - mean[0], lines[1] - mean[1], sigma, angle)
        return mask * (rows.unsqueeze(1) * columns.unsqueeze(0))

    def around(self, sigma: torch.Tensor, offsets: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        (sigma,), angle = sigma, self.angle.detach().to(sigma)
        kept = super().around(_box(sigma, angle)[None], offsets, axes) > 0
        return _rotated_gaussian(offsets[0], offsets[1], sigma, angle) * kept

    def _limiting_axes(self, axes: Sequence[Axis]) -> list[Axis]:
        return coarsest(super()._limiting_axes(axes))

    def extra_repr(self) -> str:
        angle = self.angle.tolist() if readable(self.angle) else [self.initial_angle]
        return f"{super().extra_repr()}, angle={format_values(angle)}"


def _rotated_gaussian(x: torch.Tensor, y: torch.Tensor, sigma: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The Gaussian with widths [2] along axes that are rotated by an angle [1], at offsets x [n], y [m] → [n, m]."""
    cos, sin = angle.cos(), angle.sin()
    x, y = x.unsqueeze(1), y.unsqueeze(0)
    u, v = (cos * x + sin * y) / sigma[0], (cos * y - sin * x) / sigma[1]
    return torch.exp(-0.5 * (u.square() + v.square()))


def _box(sigma: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """The width per axis [2] of the bounding box of a rotated ellipse."""
    return torch.hypot(angle.cos() * sigma, angle.sin() * sigma.flip(0))  # the square of a huge σ would overflow
