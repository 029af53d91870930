"""Windows of layers from the copies of `sizes.py`, without what does not change from step to step.

`Extent.update` defines the result. It is called in every training step, and its formulas are few compared to the calls
around them. Here they are one loop over axes with precomputed limits.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch

from ..nn import GaussianMask, TapRange
from ..nn._crop import smallest_intervals
from ..nn._extent import WINDOW_SLACK, Extent, Values, Versions, size_settings
from ..nn._grid import Axis, was_resampled
from ..nn._scaled_mask import RATE
from . import sizes


class Windows:
    """Sets the windows of a layer with this mask and grid."""

    def __init__(self, mask: GaussianMask, axes: Sequence[Axis]) -> None:
        limits = zip(mask.sigma_floor(axes), *smallest_intervals(axes, torch.float32), strict=True)
        self._axes = [(a.first, a.spacing, a.size, *each) for a, each in zip(axes, limits, strict=True)]
        self._grid = tuple(axes)
        self._scaled = mask.form == "scaled"
        self._reach = math.sqrt(-2.0 * math.log(mask.threshold or 1.0))
        self._settings = size_settings(mask)
        self._found: dict[tuple[TapRange, ...], tuple[TapRange, ...]] = {}  # there are few windows per axis

    @staticmethod
    def support(mask: GaussianMask, axes: Sequence[Axis]) -> bool:
        """Whether the taps that this mask keeps along an axis depend only on its mean and σ along this axis."""
        plain = type(mask) is GaussianMask and mask.form in ("guarded", "scaled")
        return plain and mask.threshold is not None and not was_resampled(axes)

    def refresh(self, extent: Extent, mask: GaussianMask, parameters: Sequence[torch.Tensor]) -> bool:
        """Set the windows of an extent from a copy, if they may have changed. Returns False if there is no copy."""
        seen = extent._seen
        same = extent._source() is mask and extent._settings == self._settings
        if same and type(seen) is Versions and seen.unchanged(parameters):
            return True
        held = "refresh_if_changed" in extent.__dict__  # by a capture, see `capture_windows.py`
        found = None if held else sizes.copies.copied(parameters)
        if found is None:
            return False
        numbers, versions = found
        for number in numbers:
            if not math.isfinite(number):
                return False  # the plain version raises an error that names the layer
        values, needed = self._needed(numbers)
        windows = self._found.get(needed)
        if windows is None:
            windows = tuple(axis.window_for(taps) for axis, taps in zip(self._grid, needed, strict=True))
            self._found[needed] = windows
        extent.windows = windows
        extent._taps, extent._values = None, values
        extent._seen, extent._source, extent._settings = versions, weakref.ref(mask), self._settings
        return True

    def _needed(self, numbers: list[float]) -> tuple[list[Values], tuple[TapRange, ...]]:
        """The values of the parameters, and the taps that are needed, as `size_bounds` and `Axis.taps_between`."""
        dims, scaled, reach = len(self._axes), self._scaled, self._reach
        mean, sigma = numbers[:dims], numbers[dims : 2 * dims]
        values: list[Values] = [mean, sigma]
        shift = growth = mean
        if scaled:
            shift, growth = numbers[2 * dims : 3 * dims], numbers[3 * dims :]
            values = [[mean, sigma], shift, growth]
        needed: list[TapRange] = []
        for index, (first, spacing, size, floor, half, inner) in enumerate(self._axes):
            m, s = mean[index], sigma[index]
            if scaled:
                m, s = m + RATE * s * shift[index], s * sizes._exp(RATE * growth[index])
            m = -1.0 if m < -1.0 else 1.0 if m > 1.0 else m
            s = abs(s)
            reached = (s if s > floor else floor) * reach
            center = -inner if m < -inner else inner if m > inner else m
            low, high = min(m - reached, center - half), max(m + reached, center + half)
            below = (low - first) / spacing - WINDOW_SLACK
            above = (high - first) / spacing + WINDOW_SLACK
            start = max(0, math.floor(min(max(below, -1.0), size)) + 1)
            needed.append((start, max(start, min(size, math.ceil(min(max(above, -1.0), size))))))
        return values, tuple(needed)
