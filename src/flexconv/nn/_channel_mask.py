"""A Gaussian mask for every channel of a depthwise layer, so that every channel learns its own size.

    w_c(x) = Π_d exp( −½ ((x_d − μ_cd) / σ_cd)² ),        cropped to    |x_d − μ_cd| < σ_cd √(−2 ln t)

The kernel of the layer is cropped to the largest of its channels. Taps of narrower channels are zero there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .._arguments import per_axis_floats, positive_int, unknown_name
from ..errors import ArgumentError
from ._crop import everything
from ._extent import readable
from ._grid import Axis
from ._mask import GaussianMask
from ._mask_parameters import FORMS, INITIAL_SIGMA


class ChannelGaussianMask(GaussianMask):
    """One `GaussianMask` per channel, for a depthwise layer: `mean` and `sigma` have the shape [channels, D].

        FlexConv1d(64, 64, 257, groups=64, mask=ChannelGaussianMask(1, 64, sigma=0.02, largest_sigma=0.5))

    The layer needs groups = in_channels, and one mask per output channel. Its `extent` is that of the widest channels.
    `channel_extents` counts the taps of each channel.

    Arguments:
        dims: number of spatial axes.
        channels: number of masks: out_channels of the layer.
        mean: initial center, a number or one per axis, as in `GaussianMask`.
        sigma: initial standard deviation, a number or one per axis, as in `GaussianMask`.
        largest_sigma: with this, channels start with different sizes. The first channel starts with `sigma`, the last
            one with `largest_sigma`, and those in between are spaced evenly on a logarithmic scale. A number or one per
            axis, at least `sigma`.
        threshold, form: as in `GaussianMask`, but there is no form "authors".

    """

    forms = FORMS[:2]
    per_channel = True

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        mean: float | Sequence[float] | None = None,
        sigma: float | Sequence[float] | None = None,
        largest_sigma: float | Sequence[float] | None = None,
        threshold: float | None = 0.1,
        form: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if form is not None and form not in self.forms:
            unknown_name("form of a ChannelGaussianMask", form, self.forms)
        direct = None if form == "scaled" else form  # scaled below, when the parameters have their shape
        super().__init__(dims, mean=mean, sigma=sigma, threshold=threshold, form=direct, device=device, dtype=dtype)
        self.channels = positive_int("channels", channels)
        self.largest_sigma = None if largest_sigma is None else per_axis_floats("largest_sigma", largest_sigma, dims)
        self._check_largest()
        for name in ("mean", "sigma"):
            parameter = torch.empty(self.channels, dims, device=device, dtype=dtype)
            self._parameters[name] = nn.Parameter(parameter)
        self.reset_parameters()
        if form == "scaled":
            self._scale()
        self.follows_layer = form is None

    def _check_largest(self) -> None:
        if self.largest_sigma is None:
            return
        if any(
            largest <= 0 or (self.initial_sigma is not None and largest < abs(self.initial_sigma[d]))
            for d, largest in enumerate(self.largest_sigma)
        ):
            at_least = "positive" if self.initial_sigma is None else f"at least sigma (={self.initial_sigma})"
            raise ArgumentError(f"largest_sigma must be {at_least}; got {self.largest_sigma}")

    # --- initial values -----------------------------------------------------------------------------------------------

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.set_(sigma=self._widths(self.initial_sigma or [INITIAL_SIGMA] * self.dims))

    def attach(self, axes: Sequence[Axis]) -> None:
        untouched = self.initial_sigma is None and self._has_widths([INITIAL_SIGMA] * self.dims)
        super().attach(axes)
        if untouched and self.initial_sigma is not None:
            self.set_(sigma=self._widths(self.initial_sigma))

    def initial_widths(self) -> list[list[float]]:
        assert self.initial_sigma is not None
        return [self.initial_sigma] if self.largest_sigma is None else self._widths(self.initial_sigma).tolist()

    def _widths(self, sigma: Sequence[float]) -> torch.Tensor:
        """The initial σ of every channel, if the first one has this one → [channels, D]."""
        on_host = {"dtype": torch.float64, "device": "cpu"}  # whatever torch's default device is
        first = torch.tensor(sigma, **on_host)
        if self.largest_sigma is None:
            return first.expand(self.channels, -1)
        ratio = torch.tensor(self.largest_sigma, **on_host).abs() / first.abs()
        steps = torch.linspace(0, 1, self.channels, **on_host).unsqueeze(1)
        return first * ratio.clamp(min=1.0) ** steps

    def _has_widths(self, sigma: Sequence[float]) -> bool:
        """Whether all channels still have their initial σ. Parameters that cannot be read have."""
        current = self.sigma.detach()
        return not readable(current) or torch.equal(current, self._widths(sigma).to(current))

    # --- sizes --------------------------------------------------------------------------------------------------------

    def narrowest(self) -> torch.Tensor:
        return self.sigma.abs().amin(0)

    def bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The bounds within which some channel keeps taps → [D, 2]."""
        each = self.channel_bounds(parameters, axes)
        return torch.stack([each[..., 0].amin(0), each[..., 1].amax(0)], -1)

    def channel_bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        """The bounds of every channel → [channels, D, 2]."""
        return super().bounds(parameters, axes)

    @torch.no_grad()
    def channel_extents(self, axes: Sequence[Axis]) -> torch.Tensor:
        """The number of taps that every channel keeps on these axes → [channels, D]."""
        bounds = self.channel_bounds(self.size_parameters(), axes)
        lines = [axis.coordinates(axis.whole, device=bounds.device, dtype=bounds.dtype) for axis in axes]
        return torch.stack([factors.ne(0).sum(-1) for factors in self._crop_factors(bounds, lines, axes)], -1)

    def _bounds(self, values: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor:
        if self.threshold is None:
            return everything(values[0], axes).expand(self.channels, -1, -1)
        return super()._bounds(values, axes)

    def _ends(self, bounds: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(bounds[:, d, :1], bounds[:, d, 1:]) for d in range(self.dims)]

    # --- values -------------------------------------------------------------------------------------------------------

    def _gaussian(
        self, values: Sequence[torch.Tensor], bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        mean, sigma = values
        mask = lines[0].new_ones(1)
        for d, (x, keep) in enumerate(zip(lines, self._crop_factors(bounds, lines, axes), strict=True)):
            profile = torch.exp(-0.5 * ((x - mean[:, d, None]) / sigma[:, d, None]).square()) * keep  # [channels, n]
            mask = mask.unsqueeze(-1) * profile.view(self.channels, *[1] * d, -1)
        return mask

    def _sum(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.sum(tuple(range(1, mask.ndim)), keepdim=True)

    def extra_repr(self) -> str:
        form = "" if self.form == "guarded" else f", form={self.form!r}"
        sizes = ""
        if all(map(readable, self.size_parameters())):  # neither on the meta device nor sharded
            sigma = self.sigma.detach().abs()
            sizes = f", sigma={sigma.min():.3g} … {sigma.max():.3g}"
        return f"{self.dims}, channels={self.channels}{sizes}, threshold={self.threshold}{form}"
