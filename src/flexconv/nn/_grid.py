"""The coordinate grid on which a kernel is sampled, and the windows of it that are computed.

Along each axis, k taps are spaced evenly on [−1, 1], with the first and last tap at the ends. On a causal axis +1 is
the current sample and −1 the oldest one; on a centered axis 0 is the current position.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..ops import Padding

TapRange = tuple[int, int]  # taps [start, stop) of an axis

SMALLEST_FRACTION = 8  # window sizes are halved at least down to 1/8 of the grid …
FEWEST_TAPS_OF_LONG_GRIDS = 64  # … and further while a window still has this many taps


class Axis(NamedTuple):
    """One axis of a kernel grid: its number of taps, and whether it is causal.

    The other fields describe an axis that was resampled. `step` is the spacing of the taps, if they do not end exactly
    at ±1. `ends` are the weights of the first and last tap, which may represent a longer or shorter interval than the
    others. `origin` is the axis that was trained on, if the mask still crops by that one.
    """

    size: int
    causal: bool
    step: float | None = None
    ends: tuple[float, float] = (1.0, 1.0)
    origin: Axis | None = None

    @property
    def spacing(self) -> float:
        """Distance between neighboring taps, in units of the grid."""
        return self.step or 2.0 / max(self.size - 1, 1)

    @property
    def first(self) -> float:
        """Coordinate of tap 0."""
        return 1.0 - (self.size - 1) * self.spacing if self.causal else -(self.size - 1) / 2 * self.spacing

    @property
    def last(self) -> float:
        """Coordinate of the last tap."""
        return self.first + (self.size - 1) * self.spacing

    @property
    def current(self) -> float:
        """The coordinate of the current sample, where a mask starts by default and where a single tap lies."""
        return 1.0 if self.causal else 0.0

    @property
    def fewest_taps(self) -> int:
        """The least number of taps: with fewer, a mask has no gradient that could make it grow again."""
        return min(self.size, 2 if self.causal else 3)

    @property
    def whole(self) -> TapRange:
        """The range of all taps."""
        return (0, self.size)

    def coordinates(self, window: TapRange, *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Coordinates of the taps in `window` → [stop − start]. A tap has the same coordinate in every window."""
        index = torch.arange(*window, device=device, dtype=dtype)
        if self.causal:
            return 1.0 - (self.size - 1 - index) * self.spacing
        return (index - (self.size - 1) / 2) * self.spacing

    def taps_between(self, low: float, high: float, *, slack: float = 0.0) -> TapRange:
        """The taps with low < coordinate < high. `slack` widens the range at both ends by that many spacings."""
        start = math.floor(_clip((low - self.first) / self.spacing - slack, -1.0, self.size)) + 1
        stop = math.ceil(_clip((high - self.first) / self.spacing + slack, -1.0, self.size))
        start = max(0, start)
        return start, max(start, min(self.size, stop))

    def window_for(self, needed: TapRange, steps_below_whole: int | None = None) -> TapRange:
        """The smallest window that contains `needed`, at most `steps_below_whole` sizes below the whole grid.

        Windows have few sizes and positions, so that a compiled model encounters few shapes. A window in the default
        position (at the center, or up to the newest tap of a causal axis) is preferred to one of the same size
        elsewhere, so that windows differ in size only as long as the mask does not move.
        """
        sizes = window_sizes(self.size, self.causal)
        for size in sizes if steps_below_whole is None else sizes[max(0, len(sizes) - 1 - steps_below_whole) :]:
            at_home = self.size - size if self.causal else (self.size - size) // 2
            step = max(1, size // 2, self.size // 8)
            nearby = needed[0] // step * step
            for start in (at_home, min(nearby, self.size - size)):
                if start <= needed[0] and needed[1] <= start + size:
                    return start, start + size
        return self.whole

    def steps_below_whole(self, window: TapRange) -> int:
        """The number of window sizes that are larger."""
        sizes = window_sizes(self.size, self.causal)
        return len(sizes) - 1 - sizes.index(window[1] - window[0])


class KernelGrid(NamedTuple):
    """The taps of a kernel and where they lie. Immutable: another resolution is another grid.

    `padding` is as the user wrote it and may count samples, which is why it belongs to the resolution. `scale`
    multiplies the kernel; it makes up for a grid of another density than the one the kernel was trained on.
    `resampling` records the calls of `at_resolution` that led to this grid: the scales per axis, and the crop.
    """

    axes: tuple[Axis, ...]
    padding: Padding
    scale: float = 1.0
    resampling: tuple[tuple[tuple[float, ...], str], ...] = ()

    @classmethod
    def make(cls, kernel_size: Sequence[int], padding: Padding) -> KernelGrid:
        """The grid of a new layer; an axis with "causal" padding looks back only."""
        each = [padding] * len(kernel_size) if isinstance(padding, str | int) else padding
        return cls(tuple(Axis(k, pad == "causal") for k, pad in zip(kernel_size, each, strict=True)), padding)

    @property
    def resampled(self) -> bool:
        """Whether this is another grid than the one of the layer's arguments."""
        return bool(self.resampling)

    @property
    def size(self) -> tuple[int, ...]:
        """Number of taps per axis."""
        return tuple(axis.size for axis in self.axes)

    def coordinates(
        self, window: Sequence[TapRange], *, device: torch.device, dtype: torch.dtype
    ) -> list[torch.Tensor]:
        """The coordinates of the taps of a window → [n_d] per axis."""
        return [a.coordinates(taps, device=device, dtype=dtype) for a, taps in zip(self.axes, window, strict=True)]


@functools.lru_cache(maxsize=1024)
def window_sizes(size: int, causal: bool) -> tuple[int, ...]:
    """The sizes that a window can have, in ascending order: 33 → 5, 9, 17, 25, 33.

    These are the grid, three quarters of it, and repeated halves. Centered sizes have the parity of the grid, so that
    a window can be symmetric about the center.
    """
    parity = 1 if causal else 2
    fewest = min(size, 2 if causal else 4 - size % 2)
    intervals = size - (0 if causal else 1)

    def fraction(share: float) -> int:
        taps = math.ceil(intervals * share / parity) * parity + (0 if causal else 1)
        if not causal and (size - taps) % 2:
            taps += 1
        return min(size, max(fewest, taps))

    sizes = {size, fraction(0.75)}
    share = 0.5
    while 1 / share <= SMALLEST_FRACTION or intervals * share >= FEWEST_TAPS_OF_LONG_GRIDS:
        sizes.add(fraction(share))
        share /= 2
    return tuple(sorted(sizes))


def coordinate_grid(
    axes: Sequence[Axis], windows: Sequence[TapRange], *, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Coordinates of every tap → [D, *sizes], entry d varying along axis d."""
    lines = [axis.coordinates(window, device=device, dtype=dtype) for axis, window in zip(axes, windows, strict=True)]
    return mesh(lines)


def mesh(lines: Sequence[torch.Tensor]) -> torch.Tensor:
    """The product grid of coordinates [n_d] per axis → [D, *n]."""
    return torch.stack(torch.meshgrid(*lines, indexing="ij"))


def tap_weights(axes: Sequence[Axis], windows: Sequence[TapRange], *, like: torch.Tensor) -> torch.Tensor:
    """The weight of every tap of a window: 1, except at the ends of a resampled axis → [*sizes]."""
    weights = like.new_ones(())
    for axis, window in zip(axes, windows, strict=True):
        first, last = (like.new_full((1,), end) for end in axis.ends)
        line = torch.cat([first, like.new_ones(axis.size - 2), last]) if axis.size > 1 else first * last
        weights = weights.unsqueeze(-1) * line[slice(*window)]
    return weights


def was_resampled(axes: Sequence[Axis]) -> bool:
    """Whether the mask was trained on another grid than this one."""
    return any(axis.origin is not None for axis in axes)


def origins(axes: Sequence[Axis]) -> list[Axis]:
    """The axes that the mask was trained on."""
    return [axis.origin or axis for axis in axes]


def coarser(axes: Sequence[Axis]) -> list[Axis]:
    """Per axis, this one or the one trained on, whichever is coarser. Its spacing limits σ from below."""
    return [a if a.origin is None or a.spacing >= a.origin.spacing else a.origin for a in axes]


def coarsest(axes: Sequence[Axis]) -> list[Axis]:
    """The coarsest axis for all axes, because a rotation mixes them. Axes with a single tap do not count."""
    several = [axis for axis in axes if axis.size > 1] or axes
    return [min(several, key=lambda axis: axis.size)] * len(axes)


def filled(values: Sequence[float], *, like: torch.Tensor) -> torch.Tensor:
    """Numbers as a tensor [n], filled on the device because a copy from the host would synchronize with the GPU."""
    runs: list[tuple[float, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    parts = [like.new_full((count,), value) for value, count in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
