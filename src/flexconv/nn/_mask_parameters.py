"""The parameters of a mask: its center μ and its width σ, and what of them an optimizer changes.

    form        learned parameters      center and width
    guarded     mean, sigma             the parameters, clamped to what the grid can resolve
    scaled      shift, growth           computed from the parameters (`_scaled_mask.py`), then clamped likewise
    authors     mean, sigma             the parameters as they are, as in the published code

A mask whose form is not stated takes that of its layer. Then its parameters may be replaced by those of another form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from .._arguments import per_axis_floats, positive_int, unknown_name
from ..errors import ArgumentError, UsageError
from ._damping import damp
from ._extent import readable
from ._grid import Axis
from ._reads import Reads
from ._scaled_mask import RATE, convert_state, scaled_values

FORMS = ("guarded", "scaled", "authors")
INITIAL_TAPS = 1.5  # initial σ in tap spacings: 7 taps are kept, and the spectrum of the mask ends below Nyquist
INITIAL_SIGMA = 0.075  # the least initial σ; the paper's


class MaskParameters(nn.Module):
    """Center and width per axis, in one of the forms above. `GaussianMask` describes the arguments."""

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
        MaskParameters.reset_parameters(self)
        if form == "scaled":
            self._scale()

    # --- center and width ---------------------------------------------------------------------------------------------

    @property
    def mean(self) -> torch.Tensor:
        """The center μ → [D]."""
        return self._compute("mean", 0) if self.form == "scaled" else self._direct("mean")

    @property
    def sigma(self) -> torch.Tensor:
        """The width σ → [D]."""
        return self._compute("sigma", 1) if self.form == "scaled" else self._direct("sigma")

    def set_(
        self,
        *,
        mean: torch.Tensor | float | Sequence[float] | None = None,
        sigma: torch.Tensor | float | Sequence[float] | None = None,
    ) -> None:
        """Change the center, the width, or both: numbers, or one per axis."""
        self._reads.forget()
        for row, value in enumerate((mean, sigma)):
            if value is None:
                continue
            if not isinstance(value, torch.Tensor):
                value = torch.as_tensor(value, dtype=torch.float64, device="cpu")  # not torch's default device
            with torch.no_grad():
                if self.form == "scaled":  # a new start, from which nothing has been learned yet
                    self.start.select(-2, row).copy_(value)
                    (self.shift, self.growth)[row].zero_()
                else:
                    (self.mean, self.sigma)[row].copy_(value)

    def _compute(self, name: str, row: int) -> torch.Tensor:
        """Mean or σ of a scaled mask. The next use of the mask raises an error if somebody writes into the result."""
        return self._reads.hand_out(name, self.natural(self.size_parameters())[row])

    def _direct(self, name: str) -> nn.Parameter:
        """A parameter of the forms that learn mean and σ themselves."""
        if (parameter := self._parameters.get(name)) is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {name!r}")
        return parameter

    # --- initial values -----------------------------------------------------------------------------------------------

    def reset_parameters(self) -> None:
        """Restore the initial mean and σ. Outside of a layer, the defaults are 0 and 0.075."""
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

    # --- learned parameters -------------------------------------------------------------------------------------------

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

    def bound_rate(self, bounds: Sequence[Sequence[float]]) -> float:
        """How many times farther than a parameter a bound can move in a step, if the bounds are these.

        A bound is a mean plus or minus 2.15 σ, and both may move.
        """
        if self.form != "scaled":
            return 4.0
        return RATE * 2 * max((high - low) / 2 for low, high in bounds)

    # --- changes of the form, checks and states -----------------------------------------------------------------------

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

    def _load_from_state_dict(self, state_dict: dict[str, torch.Tensor], prefix: str, *args: object) -> None:  # type: ignore[override]
        """Load a state of any form."""
        convert_state(state_dict, prefix, self.form)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        mean, sigma = self.initial_mean, self.initial_sigma or [INITIAL_SIGMA]
        if all(map(readable, self.size_parameters())):  # neither on the meta device nor sharded
            mean, sigma = mean and self.mean.tolist(), self.sigma.tolist()
        form = "" if self.form == "guarded" else f", form={self.form!r}"
        shown = "None" if mean is None else format_values(mean)
        return f"{self.dims}, mean={shown}, sigma={format_values(sigma)}, threshold={self.threshold}{form}"


def _is_untouched(tensor: torch.Tensor, value: float) -> bool:
    """Whether a tensor still has the value it was made with. One that cannot be read has."""
    return not readable(tensor.detach()) or bool((tensor == value).all())


def format_values(values: Sequence[float]) -> str:
    """Numbers to three digits: one if they are all equal."""
    texts = [f"{value:.3g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else "(" + ", ".join(texts) + ")"
