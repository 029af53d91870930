"""Learnable Gaussian masks, which determine the size of a FlexConv's kernel.

    w(x) = Π_d exp( −½ ((x_d − μ_d) / σ_d)² ),        cropped to    |x_d − μ_d| < σ_d √(−2 ln t)

The peak is 1, and the kernel is cropped where a factor falls below the threshold t. There is one mask per layer, shared
by all channels, or one per channel of a depthwise layer (`_channel_mask.py`). Cropping is a comparison and has no
gradient.

In a scaled mask, an optimizer does not change μ and σ but how far they are from where they started, in units of the
initial width:

    μ = μ_0 + r σ_0 · shift,        σ = σ_0 exp(r · growth),        r = 4

So a learning rate means the same on every grid, σ stays positive, and weight decay leads back to the initial mask
instead of to an empty one. Gradients are damped (`_damping.py`). The paper and the published code
learn μ and σ themselves (`form`).

On another grid than the one it was trained on (`Axis.origin`) a mask covers the same interval as before. The hard edge
between the last tap kept and the first one cropped becomes a linear ramp between these two, and the values are scaled
so that their sum times the spacing does not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from .._arguments import per_axis_floats, positive_int, unknown_name
from ..errors import ArgumentError, UsageError
from ._crop import RAMP_SLACK, authors_bounds, everything, keep_enough, ramp_ends
from ._damping import damp
from ._extent import readable
from ._grid import Axis, coarser, coarsest, filled, origins, tap_weights, was_resampled
from ._guard import SIGMA_FLOOR, effective_sigma, guard, guarded_values
from ._reads import Reads

FORMS = ("guarded", "scaled", "authors")
RATE = 4.0  # a step of 0.001, usual for Adam, changes σ by 0.4 %
INITIAL_TAPS = 1.5  # initial σ in tap spacings: 7 taps are kept, and the spectrum of the mask ends below Nyquist
INITIAL_SIGMA = 0.075  # the least initial σ; the paper's


class GaussianMask(nn.Module):
    """Axis-aligned Gaussian mask with learnable center and width per axis.

    Read the center and the width with `mean` and `sigma`, and change them with `set_`. In a scaled mask, which a layer
    has by default, they are computed anew each time they are read. Assigning to them is an error. Writing into them, as
    in `mask.sigma.fill_(0.3)`, is an error that the next use of the mask raises.

    Arguments:
        dims: number of spatial axes.
        mean: initial center on [−1, 1], a number or one per axis. The default is the current sample of each axis: 0 on
            a centered axis, +1 on a causal one. On a causal axis, −1 is the most distant past.
        sigma: initial standard deviation, a number or one per axis. The default is 0.075 and, in a scaled mask, at
            least 1.5 tap spacings of the layer's grid, which keeps 7 taps.
        threshold: crop where a factor of the mask falls below this value. None: no cropping.
        form: what is learned. "guarded": mean and σ themselves. "scaled": the parameters `shift` and `growth` of the
            formula above. "authors": mean and σ as in the published code. The first two keep the mask trainable for all
            parameter values: the mean is clamped to [−1, 1] and |σ| to at least a third of a tap spacing, with
            gradients that lead back into this range, and at least 3 taps (2 on a causal axis) are kept. "authors" has
            none of this: a centered kernel is cropped symmetrically about 0, and a causal one always includes the
            newest tap. The default, None, is "guarded" until the mask is given to a layer. A layer with
            parametrization="scaled", the default, then replaces the parameters of the mask by scaled ones with the same
            mean and σ. Make the optimizer after the layer. A mask of several layers has the form of the first.

    """

    forms: ClassVar[tuple[str, ...]] = FORMS
    per_channel: bool = False  # whether every channel has a mask of its own
    follows_layer: bool = False  # whether the form is still to be decided by a layer
    start: torch.Tensor
    shift: nn.Parameter
    growth: nn.Parameter

    def __init__(
        self,
        dims: int,
        *,
        mean: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] | None = None,
        threshold: float | None = 0.1,
        form: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if form is not None and form not in self.forms:
            unknown_name(f"form of a {type(self).__name__}", form, self.forms)
        self.dims = positive_int("dims", dims)
        self.form = "authors" if form == "authors" else "guarded"
        self.follows_layer = form is None
        self.damping = 1.0  # of gradients; set by the layer
        self._reads = Reads()
        self.threshold = threshold
        self.initial_mean = None if mean is None else per_axis_floats("mean", mean, dims)
        self.initial_sigma = None if sigma is None else per_axis_floats("sigma", sigma, dims)
        if self.initial_sigma is not None and 0 in self.initial_sigma:
            raise ArgumentError(f"sigma must not be 0; got {sigma}")
        for name in ("mean", "sigma"):  # not by assignment, because they are also properties
            self._parameters[name] = nn.Parameter(torch.empty(dims, device=device, dtype=dtype))
        GaussianMask.reset_parameters(self)
        if form == "scaled":
            self._scale()

    def follow(self, form: str) -> None:
        """Take the form of a layer, "guarded" or "scaled", if none was stated or taken before."""
        plain = {"mean", "sigma"} <= self._parameters.keys()  # not `torch.nn.utils.parametrize`, which chose mean and σ
        if self.follows_layer and form == "scaled" and plain:
            self._scale()
        self.follows_layer = False

    def _scale(self) -> None:
        """Replace the parameters of a guarded mask by those of a scaled one that starts with its mean and σ."""
        mean, sigma = self._direct("mean"), self._direct("sigma")
        others = {name: p for name, p in self._parameters.items() if name not in ("mean", "sigma")}
        self._parameters.clear()
        for name, old in (("shift", mean), ("growth", sigma)):
            self.register_parameter(name, nn.Parameter(torch.zeros_like(old), requires_grad=old.requires_grad))
        self._parameters.update(others)
        self.register_buffer("start", torch.stack([mean, sigma], -2).detach())  # μ_0, σ_0
        super().__setattr__("form", "scaled")  # type: ignore[arg-type]

    # --- center and width ---------------------------------------------------------------------------------------------

    @property
    def mean(self) -> torch.Tensor:
        """The center μ → [D]."""
        return self._compute("mean", 0) if self.form == "scaled" else self._direct("mean")

    @property
    def sigma(self) -> torch.Tensor:
        """The width σ → [D]."""
        return self._compute("sigma", 1) if self.form == "scaled" else self._direct("sigma")

    def _compute(self, name: str, row: int) -> torch.Tensor:
        """Mean or σ of a scaled mask. The next use of the mask raises an error if somebody writes into the result."""
        return self._reads.hand_out(name, self.natural(self.size_parameters())[row])

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("mean", "sigma") and self.form == "scaled":
            raise UsageError(f"{name} of a scaled mask is computed and cannot be assigned: use mask.set_({name}=…)")
        if name == "threshold" and value is not None and not (isinstance(value, int | float) and 0 < value < 1):
            raise ArgumentError(f"threshold must lie between 0 and 1, or be None for no cropping; got {value!r}")
        if name == "form" and "form" in self.__dict__:
            self._check_form(value)
        super().__setattr__(name, value)  # type: ignore[arg-type]

    def _check_form(self, form: object) -> None:
        """Raise unless this mask can have another form with the parameters that it has."""
        if form not in self.forms:
            unknown_name(f"form of a {type(self).__name__}", form, self.forms)
        if form != self.form and "scaled" in (form, self.form):
            raise UsageError(
                f"a mask of the form {self.form!r} has other parameters than one of the form {form!r}: make another "
                f"mask and assign it to layer.mask"
            )

    def _direct(self, name: str) -> nn.Parameter:
        """A parameter of the forms that learn mean and σ themselves."""
        if (parameter := self._parameters.get(name)) is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {name!r}")
        return parameter

    def set_(
        self,
        *,
        mean: torch.Tensor | float | Sequence[float] | None = None,
        sigma: torch.Tensor | float | Sequence[float] | None = None,
    ) -> None:
        """Change the center, the width, or both: numbers, or one per axis."""
        self._reads.forget()
        for row, value in enumerate((mean, sigma)):
            if value is not None:
                with torch.no_grad():
                    if self.form == "scaled":  # a new start, from which nothing has been learned yet
                        self.start.select(-2, row).copy_(torch.as_tensor(value, dtype=self.start.dtype))
                        (self.shift, self.growth)[row].zero_()
                    else:
                        (self.mean, self.sigma)[row].copy_(torch.as_tensor(value, dtype=torch.float64))

    def reset_parameters(self) -> None:
        """Restore the initial mean and σ. In no layer they are 0 and 0.075, unless the user gave them."""
        self.set_(mean=self.initial_mean or [0.0] * self.dims, sigma=self.initial_sigma or [INITIAL_SIGMA] * self.dims)

    def attach(self, axes: Sequence[Axis]) -> None:
        """Set the grid of the layer, which decides where the mask starts unless the user or a loaded state did."""
        if self.initial_mean is None:
            self.initial_mean = [axis.current for axis in axes]
            if _is_untouched(self.mean, 0.0):
                self.set_(mean=self.initial_mean)
        if self.initial_sigma is None:
            fewest = INITIAL_TAPS if self.form == "scaled" else 0.0
            self.initial_sigma = [max(INITIAL_SIGMA, fewest * axis.spacing) for axis in axes]
            if _is_untouched(self.sigma, INITIAL_SIGMA):
                self.set_(sigma=self.initial_sigma)

    def initial_widths(self) -> list[list[float]]:
        """The initial σ per axis, as of the last `attach`: one list, or one per channel if they differ."""
        assert self.initial_sigma is not None
        return [self.initial_sigma]

    def narrowest(self) -> torch.Tensor:
        """The least |σ| of all channels → [D]. It decides how far the spectrum of the mask reaches."""
        return self.sigma

    @property
    def size_names(self) -> tuple[str, ...]:
        """The names of `size_parameters`."""
        return ("start", "shift", "growth") if self.form == "scaled" else ("mean", "sigma")

    def size_parameters(self) -> tuple[torch.Tensor, ...]:
        """The tensors that `bounds` needs. A layer refreshes its size when they change."""
        if self.form == "scaled":
            self._reads.check()
            return self.start, self.shift, self.growth
        return self.mean, self.sigma

    def natural(
        self, parameters: Sequence[torch.Tensor], damping: torch.Tensor | float | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Mean and σ, then any further parameters, from `size_parameters` or tensors in their place."""
        if self.form != "scaled":
            return tuple(parameters)
        damping = self.damping if damping is None else damping
        start, shift, growth, *others = parameters
        return *scaled_values(start, damp(shift, damping), damp(growth, damping)), *others

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *args: object) -> None:  # type: ignore[override]
        """Load a state of any form."""
        _convert_state(state_dict, prefix, self.form)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[arg-type]

    # --- the mask -----------------------------------------------------------------------------------------------------

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

    def bound_rate(self, bounds: Sequence[Sequence[float]]) -> float:
        """How many times farther than a parameter a bound can move in a step, if the bounds are these.

        A bound is a mean plus or minus 2.15 σ, and both may move.
        """
        if self.form != "scaled":
            return 4.0
        return RATE * 2 * max((high - low) / 2 for low, high in bounds)

    def _bounds(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The bounds on the grid that the mask was trained on → [D, 2]."""
        mean, sigma = values
        if self.threshold is None:
            return everything(mean, axes)
        if self.form == "authors":
            return authors_bounds(mean, self._reach(sigma.abs()), axes)
        mean, sigma = guarded_values(mean, sigma, axes)
        return keep_enough(mean, self._reach(sigma), axes)

    def _kept(self, bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]) -> list[torch.Tensor]:
        """The share of every tap that is kept, per axis → [n_d]: 0 or 1, or between on a resampled grid."""
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
        window = self._window(here, bounds, lines, axes)
        if not was_resampled(axes):
            return window
        before = self._total(values, self._bounds_at(detached, origins(axes)), origins(axes))
        return window * before / self._total(here, bounds, axes)

    def _resolved(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> Sequence[torch.Tensor]:
        """The values with |σ| clamped to what this grid can resolve, if it is coarser than the one before."""
        floor, before = self.sigma_floor(axes), self.sigma_floor(origins(axes))
        if floor == before:
            return values
        mean, sigma, *others = values
        return mean, effective_sigma(sigma, filled(floor, like=sigma)), *others

    def _total(self, values: Sequence[torch.Tensor], bounds: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
        """The sum of the mask over a whole grid, times the spacing → scalar."""
        whole, like = [axis.whole for axis in axes], bounds
        lines = [axis.coordinates(axis.whole, device=like.device, dtype=like.dtype) for axis in axes]
        total = self._sum(self._window(values, bounds, lines, axes) * tap_weights(axes, whole, like=like))
        return total * math.prod(
            [axis.spacing for axis in axes]
        )  # a list, because dynamo cannot trace a generator here

    def _sum(self, window: torch.Tensor) -> torch.Tensor:
        return window.sum()

    def _window(
        self, values: Sequence[torch.Tensor], bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        """The Gaussian with these values, cropped to `bounds`."""
        mean, sigma, *_ = values
        window = lines[0].new_ones(())
        for d, (x, keep) in enumerate(zip(lines, self._kept(bounds, lines, axes), strict=True)):
            profile = torch.exp(-0.5 * ((x - mean[d]) / sigma[d]).square())
            window = window.unsqueeze(-1) * (profile * keep)
        return window

    def sigma_floor(self, axes: Sequence[Axis]) -> list[float]:
        """The smallest |σ| per axis that the mask uses; 0 in the authors' form, which does not clamp it."""
        return [0.0 if self.form == "authors" else SIGMA_FLOOR * axis.spacing for axis in self._limiting_axes(axes)]

    def _limiting_axes(self, axes: Sequence[Axis]) -> list[Axis]:
        """The axes whose spacing limits σ."""
        return coarser(axes)

    def _reach(self, sigma: torch.Tensor) -> torch.Tensor:
        """Distance from the center at which a factor of the mask falls to the threshold."""
        return sigma * math.sqrt(-2.0 * math.log(self.threshold or 1.0))

    def extra_repr(self) -> str:
        mean = "None" if self.initial_mean is None else _format(self.mean, self.initial_mean)
        form = "" if self.form == "guarded" else f", form={self.form!r}"
        sigma = _format(self.sigma, self.initial_sigma or [INITIAL_SIGMA])
        return f"{self.dims}, mean={mean}, sigma={sigma}, threshold={self.threshold}{form}"


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
        width = torch.hypot(angle.cos() * sigma, angle.sin() * sigma.flip(0))  # the square of a huge σ would overflow
        return keep_enough(mean, self._reach(width), axes)

    def _window(
        self, values: Sequence[torch.Tensor], bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        mean, sigma, angle = values
        rows, columns = self._kept(bounds, lines, axes)
        cos, sin = angle.cos(), angle.sin()
        x, y = (lines[0] - mean[0]).unsqueeze(1), (lines[1] - mean[1]).unsqueeze(0)
        u, v = (cos * x + sin * y) / sigma[0], (cos * y - sin * x) / sigma[1]
        window = torch.exp(-0.5 * (u.square() + v.square()))
        return window * (rows.unsqueeze(1) * columns.unsqueeze(0))

    def _limiting_axes(self, axes: Sequence[Axis]) -> list[Axis]:
        return coarsest(super()._limiting_axes(axes))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, angle={_format(self.angle, [self.initial_angle])}"


def scaled_values(start: torch.Tensor, shift: torch.Tensor, growth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and σ […, D] of a scaled mask that started at `start` […, 2, D]."""
    mean, sigma = start.unbind(-2)
    return mean + sigma * (RATE * shift), sigma * torch.exp(RATE * growth)  # 4 σ may overflow


def _convert_state(state: dict[str, torch.Tensor], prefix: str, form: str) -> None:
    """Replace the entries of a mask in a state by those of another form, if it has those of another form."""
    keys = {name: prefix + name for name in ("start", "shift", "growth", "mean", "sigma")}
    if form == "scaled" and keys["sigma"] in state and keys["growth"] not in state:
        mean, sigma = state.pop(keys["mean"]), state.pop(keys["sigma"])
        state[keys["start"]] = torch.stack([mean, sigma.abs()], -2)
        state[keys["shift"]], state[keys["growth"]] = torch.zeros_like(mean), torch.zeros_like(sigma)
    elif form != "scaled" and keys["growth"] in state and keys["sigma"] not in state:
        start, shift, growth = (state.pop(keys[name]) for name in ("start", "shift", "growth"))
        state[keys["mean"]], state[keys["sigma"]] = scaled_values(start, shift, growth)


def _is_untouched(tensor: torch.Tensor, value: float) -> bool:
    """Whether a tensor still has the value it was made with. One that cannot be read has."""
    return not readable(tensor.detach()) or bool((tensor == value).all())


def _format(tensor: torch.Tensor, initial: Sequence[float]) -> str:
    """The value of a tensor to three digits, or its initial value if it cannot be read, as on the meta device."""
    texts = [f"{value:.3g}" for value in (tensor.tolist() if readable(tensor.detach()) else initial)]
    return texts[0] if len(set(texts)) == 1 else "(" + ", ".join(texts) + ")"
