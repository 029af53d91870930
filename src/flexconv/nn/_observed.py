"""Convolution of a signal of which samples are missing.

A missing sample is replaced by a weighted mean of the observed ones around it, and the result is convolved:

    y = ψ ⋆ x̃ + b,      x̃(p) = x(p) if p was observed, otherwise Σ_q w(q) seen(p + q) x(p + q) / Σ_q w(q) seen(p + q)

This is normalized convolution (Knutsson and Westin, 1993): seen is 1 for an observed sample and 0 for a missing one,
and the weights are the mask of the layer around the current position, divided by 1 + the squared distance in taps. So a
layer looks as far for neighbors as its kernel does, and nearer ones count more. On a causal axis only earlier samples
are used. A sample without an observed neighbor becomes 0.

If everything is observed, this is exactly the plain convolution. A constant signal is continued exactly, whatever is
missing. Dividing ψ ⋆ (seen · x) by the observed share of the mask, which is simpler, has neither property unless the
kernel is nearly constant: kernels of trained networks oscillate, and what is missing does not cancel.
docs/missing-samples.md compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import nn

from .._context import no_autocast
from ..errors import ArgumentError, ArgumentTypeError, UsageError
from ..ops import Pads, conv_nd
from ._grid import filled
from ._lengths import can_read_values
from ._padding import check_padding_fits, pad_by_mode
from ._sized import SizedKernel

if TYPE_CHECKING:
    from ._conv import FlexConvNd

# Less than these shares of all weights were not observed: it may be the rounding error of a Fourier transform.
LEAST_WEIGHT = 1e-5  # of the neighbors of a sample
LEAST_SHARE = 1e-3  # of the mask of a kernel


def with_channels(observed: torch.Tensor, dims: int) -> torch.Tensor:
    """Return `observed` [batch, *size] or [batch, channels, *size] as the latter, with one channel if it has none."""
    if not isinstance(observed, torch.Tensor):
        raise ArgumentTypeError(f"observed must be a tensor of True and False; got {type(observed).__name__}")
    if observed.is_complex():
        raise ArgumentTypeError(f"observed must be True or False, or 1 or 0; got {observed.dtype}")
    if observed.ndim not in (dims + 1, dims + 2):
        raise ArgumentError(
            f"observed must have the shape [batch, *size] or [batch, 1 or channels, *size], with {dims} sizes; got "
            f"{tuple(observed.shape)}"
        )
    return observed.unsqueeze(1) if observed.ndim == dims + 1 else observed


def check_observed(
    observed: torch.Tensor, x: torch.Tensor, dims: int, inside: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `observed` as a bool tensor [batch, 1 or channels, *size] on the device of x; raise if it does not fit x.

    Samples where `inside` [batch, 1, *size] is False do not exist, such as those past the end of a sequence. Checking
    values on a GPU requires a copy to the host.
    """
    found = with_channels(observed, dims)
    if x.ndim != dims + 2:
        raise ArgumentError(f"observed needs a batch [batch, channels, …]; got an input of shape {tuple(x.shape)}")
    batch, channels, size = x.shape[0], x.shape[1], x.shape[2:]
    if found.shape[0] != batch or found.shape[2:] != size or found.shape[1] not in (1, channels):
        raise ArgumentError(
            f"observed must have the shape [batch, *size] = {(batch, *size)} or [batch, 1 or channels, *size] of the "
            f"input {tuple(x.shape)}; got {tuple(observed.shape)}"
        )
    if can_read_values(found):
        if found.dtype != torch.bool:
            other = found[(found != 0) & (found != 1)]
            if other.numel():
                raise ArgumentError(f"observed must be True or False, or 1 or 0; it contains {other[0].item()}")
        missing = (found == 0).flatten(1).all(1)
        if inside is not None and can_read_values(inside):
            inside = inside.to(found.device)
            missing = (found.eq(0) | ~inside).flatten(1).all(1) & inside.flatten(1).any(1)  # a sequence may be empty
        if empty := missing.nonzero().flatten().tolist():
            raise ArgumentError(f"no sample is observed in row {empty[0]} of the batch: leave such rows out")
    return found.to(device=x.device, dtype=torch.bool)


class Neighbors(NamedTuple):
    """The weights [1 or in_channels, 1, *n] of the neighbors of a missing sample, and the padding and step of taps."""

    weight: torch.Tensor
    pads: Pads
    dilation: Sequence[int]
    algorithm: str


class Reach(NamedTuple):
    """The mask [1, 1, *k] of the kernels of a layer, the widest of all channels, and the geometry of the layer."""

    mask: torch.Tensor
    stride: Sequence[int]
    pads: Pads
    dilation: Sequence[int]
    padding_mode: str
    algorithm: str


class FrozenNeighbors(nn.Module):
    """Neighbors and reach of a layer at some time, for a copy of it that has no mask any more.

    `settings` are those of `FrozenNeighbors.of(layer)`: plain numbers and text.
    """

    weight: torch.Tensor
    mask: torch.Tensor

    def __init__(self, weight: torch.Tensor, mask: torch.Tensor, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("mask", mask)
        self.settings = {name: settings[name] for name in ("neighbor_pads", "stride", "pads", "dilation")}
        self.settings["padding_mode"] = str(settings["padding_mode"])

    @classmethod
    def of(cls, layer: FlexConvNd) -> FrozenNeighbors:
        like = layer.reference_tensor().detach().to(torch.promote_types(layer.dtype, torch.float32))
        neighbors, reach = find_neighbors(layer, like=like), find_reach(layer)
        return cls(neighbors.weight, reach.mask, {"neighbor_pads": neighbors.pads, **reach._asdict()})

    def neighbors(self, like: torch.Tensor) -> Neighbors:
        return Neighbors(self.weight.to(like), self.settings["neighbor_pads"], self.settings["dilation"], "direct")

    def reach(self) -> Reach:
        mask = self.mask.to(torch.promote_types(self.mask.dtype, torch.float32))  # sums may exceed float16
        return Reach(mask, algorithm="direct", **{n: v for n, v in self.settings.items() if n != "neighbor_pads"})


Source: TypeAlias = "FlexConvNd | FrozenNeighbors"


class FillsMissing(nn.Module):
    """A module that fills in missing samples for its first convolution, `filling_layer`.

    `materialize` replaces this convolution by a plain one. The copy then has `neighbors`, which take its place.
    """

    neighbors: FrozenNeighbors | None

    @property
    def filling_layer(self) -> nn.Module:
        raise NotImplementedError

    def fill_missing(self, x: torch.Tensor, seen: torch.Tensor, inside: torch.Tensor | None = None) -> torch.Tensor:
        """x, with samples that were not seen replaced by averages of those around them; see `_observed.py`."""
        return fill_missing(self._neighbor_source(), x, seen, inside)

    def propagate_observed(self, observed: torch.Tensor) -> torch.Tensor:
        """Which outputs are based on observed samples → [batch, 1, *size'], to be passed to the next layer."""
        return propagate(self._neighbor_source(), with_channels(observed, self.dims).bool())  # type: ignore[arg-type]

    def _neighbor_source(self) -> Source:
        if self.neighbors is not None:
            return self.neighbors
        layer = self.filling_layer
        if not isinstance(layer, SizedKernel):
            raise UsageError(
                f"observed needs a FlexConv, whose mask says which neighbors of a missing sample to use; the first "
                f"convolution of this {type(self).__name__} is a {type(layer).__name__}"
            )
        return layer  # type: ignore[return-value]


def fill_missing(
    source: Source, x: torch.Tensor, seen: torch.Tensor, inside: torch.Tensor | None = None
) -> torch.Tensor:
    """x [batch, channels, *size], with missing samples replaced by averages of the observed ones around them.

    `source` is the layer that convolves the result. `seen` [batch, 1 or channels, *size] comes from `check_observed`.
    Samples where `inside` [batch, 1, *size] is False do not exist, such as those past the end of a sequence, and become
    0.
    """
    seen = seen if inside is None else seen & inside
    known = x.masked_fill(~seen, 0.0)
    wide = known.to(torch.promote_types(x.dtype, torch.float32))
    with no_autocast(x.device.type):
        frozen = isinstance(source, FrozenNeighbors)
        neighbors = source.neighbors(wide) if frozen else find_neighbors(source, like=wide)
        total = _smooth(neighbors, wide)
        with torch.no_grad():
            weight = _smooth(neighbors, seen.to(wide.dtype))
        least = LEAST_WEIGHT * neighbors.weight.flatten(1).sum(1).view(-1, *[1] * (x.ndim - 2))
        means = torch.where(weight > least, total / torch.where(weight > least, weight, 1.0), 0.0)
    result = torch.where(seen, known, means.to(x.dtype))
    return result if inside is None else result.masked_fill(~inside, 0.0)


def convolve_observed(
    layer: FlexConvNd, x: torch.Tensor, seen: torch.Tensor, inside: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The convolution of `fill_missing`, and `propagate` for the next layer."""
    y = layer._convolve(fill_missing(layer, x, seen, inside), layer.bias)
    return y, propagate(layer, seen if inside is None else seen & inside)


@torch.no_grad()
def propagate(source: Source, seen: torch.Tensor) -> torch.Tensor:
    """Whether an output is based on observed samples: some lie under the mask of its kernel → [batch, 1, *size'].

    A sample that was observed in some channels counts.
    """
    frozen = isinstance(source, FrozenNeighbors)
    mask, stride, pads, dilation, mode, algorithm = source.reach() if frozen else find_reach(source)
    x = seen.any(1, keepdim=True).to(mask.dtype)
    if mode != "zeros":
        if not frozen:
            check_padding_fits(source, x.shape[2:], source.pads)
        x, pads = pad_by_mode(x, pads, mode)
    with no_autocast(x.device.type):
        found = conv_nd(x.ndim - 2, x, mask, None, stride, pads, dilation, 1, algorithm)
    # of masks with thousands of taps, a single sample can be less than LEAST_SHARE: one in the middle is enough
    return found > torch.minimum(LEAST_SHARE * mask.sum(), 0.5 * mask.max())


@torch.no_grad()
def find_reach(layer: FlexConvNd) -> Reach:
    window = layer.window
    lines = layer.coordinates(window)
    mask = lines[0].new_ones([len(line) for line in lines]) if layer.mask is None else layer.mask(lines, layer.axes)
    widest = (mask if mask.ndim == layer.dims else mask.amax(0))[None, None]
    pads = layer.pads_for(window)
    return Reach(widest, layer.stride, pads, layer.dilation, layer.padding_mode, layer.algorithm)


def find_neighbors(layer: FlexConvNd, *, like: torch.Tensor) -> Neighbors:
    weight = _weights(layer, like)
    pads = tuple(
        ((n - 1) * step, 0) if _looks_back(layer, d) else ((n // 2) * step, (n // 2) * step)
        for d, (n, step) in enumerate(zip(weight.shape[2:], layer.dilation, strict=True))
    )
    return Neighbors(weight, pads, layer.dilation, layer.algorithm)


def _smooth(neighbors: Neighbors, x: torch.Tensor) -> torch.Tensor:
    """Σ_q w(q) x(p + q) for every channel of x, which has all channels or one → the same size, all channels or one."""
    weight, pads, dilation, algorithm = neighbors
    dims = x.ndim - 2
    if len(weight) == 1:
        flat = x.flatten(0, 1).unsqueeze(1)
        return conv_nd(dims, flat, weight, None, [1] * dims, pads, dilation, 1, algorithm).view_as(x)
    x = x.expand(-1, len(weight), *x.shape[2:])
    return conv_nd(dims, x, weight, None, [1] * dims, pads, dilation, len(weight), algorithm)


@torch.no_grad()
def _weights(layer: FlexConvNd, like: torch.Tensor) -> torch.Tensor:
    """The weights of the neighbors of a missing sample → [1 or in_channels, 1, *n], with the sample itself included."""
    offsets = [_offsets(layer, d, like=like) for d in range(layer.dims)]
    distance = like.new_zeros(())
    for offset, axis in zip(offsets, layer.axes, strict=True):
        distance = distance.unsqueeze(-1) + (offset / (axis.origin or axis).spacing).square()
    weight = (1 / (1 + distance))[None]
    if layer.mask is not None:
        sigma = layer.mask.sigma.detach().to(like).reshape(-1, layer.dims).abs()
        sigma = torch.maximum(sigma, filled(layer.mask.sigma_floor(layer.axes), like=sigma))
        sigma = sigma if len(sigma) == 1 else sigma.unflatten(0, (layer.in_channels, -1)).amax(1)
        weight = weight * layer.mask.around(sigma, offsets, layer.axes)
    return weight.unsqueeze(1)


def _offsets(layer: FlexConvNd, d: int, *, like: torch.Tensor) -> torch.Tensor:
    """Coordinates relative to the current position, as far as the window of the layer reaches from it → [n].

    The mask around this position lies within them, also if that of the layer is elsewhere.
    """
    axis, (start, stop) = layer.axes[d], layer.window[d]
    if _looks_back(layer, d):
        index = torch.arange(start - axis.size + 1, 1, device=like.device, dtype=like.dtype)
    else:
        center = (axis.size - 1) // 2
        reach = max(center - start, stop - 1 - center)
        index = torch.arange(-reach, reach + 1, device=like.device, dtype=like.dtype)
    return index * axis.spacing


def _looks_back(layer: FlexConvNd, d: int) -> bool:
    """Whether outputs depend on earlier samples along an axis only."""
    left, right = layer.pads[d]
    return layer.axes[d].causal or (left > 0 and right == 0)
