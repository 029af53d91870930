"""The matrices of `_dft.py`: real Fourier bases at the positions a convolution reads and writes, and their cache.

Along an axis laid on a circle of N, x sits at positions left + m, taps at j·dilation, outputs at n·stride. A matrix
holds cos and −sin of 2π·f·position / N for just those positions, so that padding, dilation and stride cost nothing.
For x and y they are scaled by the power of two next below 1/√N: spectra are no larger than signals, so that float16
does not overflow, and cosines of 1 and ½ stay exact. What is missing to 1/N, and the 2 of a frequency that stands for
its mirror image as well, is in the matrices of the kernel, whose spectrum is the gain of each frequency.

Real signals need half the frequencies. Rows come as [part, frequency], part 0 real and 1 imaginary. Where frequencies
are listed one by one, those that are their own mirror image (0 and N/2) have no imaginary part and share a row pair.
The kernel's rows come in four parts, the real 2×2 block of the complex product y = x · conj w at each frequency:

    y.re = w.re · x.re + w.im · x.im            parts 0 and 1
    y.im = −w.im · x.re + w.re · x.im           parts 2 and 3
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes


class Points(NamedTuple):
    """Positions start, start + step, … along one axis."""

    number: int
    start: int
    step: int


class Recipe(NamedTuple):
    """What one list of matrices is made from."""

    style: (
        str  # "whole": one matrix; "axes": one per axis, last axis first; "half": one, frequencies as "axes" has them
    )
    circles: tuple[int, ...]  # for "long": (outer, inner), whose product is the circle
    points: tuple[Points, ...]
    kernel: bool


def build(recipe: Recipe) -> list[np.ndarray]:
    """The matrices of a recipe in float64, in the order in which analysis applies them."""
    return {"whole": _whole, "half": _half_grid, "axes": _by_axis, "long": _long}[recipe.style](recipe)


@functools.lru_cache(maxsize=256)
def shapes(recipe: Recipe) -> list[tuple[int, ...]]:
    """The shapes of the matrices of a recipe."""
    return [each.shape for each in build(recipe)]


def scale(circle: int) -> float:
    """The power of two at or below 1/√N."""
    return 2.0 ** -math.ceil(math.log2(circle) / 2)


def _norm(circles: tuple[int, ...]) -> float:
    """What the kernel has to make up for: 1 / (N · scale²)."""
    return math.prod(1 / (circle * scale(circle) ** 2) for circle in circles)


def _angles(circle: int, frequencies: np.ndarray, points: Points) -> np.ndarray:
    """2π·f·position / N [frequencies, points], from exact integers."""
    positions = points.start + points.step * np.arange(points.number)
    return 2 * np.pi / circle * (np.outer(frequencies, positions) % circle)


def _grid_angles(recipe: Recipe, frequencies: np.ndarray) -> np.ndarray:
    """The same on a grid: frequencies [axes, F] → [F, all points]."""
    total = np.zeros((frequencies.shape[1], 1))
    for circle, each, points in zip(recipe.circles, frequencies, recipe.points, strict=True):
        angles = _angles(circle, each, points)
        total = (total[:, :, None] + angles[:, None, :]).reshape(len(total), total.shape[1] * points.number)
    return total


def _whole(recipe: Recipe) -> list[np.ndarray]:
    """One matrix, one row pair for each pair of mirror frequencies: exactly as many rows as the circle has points."""
    frequencies = np.indices(recipe.circles).reshape(len(recipe.circles), -1)
    mirrored = np.ravel_multi_index(tuple(-frequencies % np.array(recipe.circles)[:, None]), recipe.circles)
    index = np.arange(frequencies.shape[1])
    own = np.cos(_grid_angles(recipe, frequencies[:, index == mirrored]))
    if len(own) % 2:
        own = np.concatenate([own, np.zeros_like(own[:1])])
    angles = _grid_angles(recipe, frequencies[:, index < mirrored])
    first, second, real, imaginary = own[0::2], own[1::2], np.cos(angles), -np.sin(angles)
    if recipe.kernel:
        none = np.zeros_like(first)
        real, imaginary = 2 * real, 2 * imaginary
        return [_norm(recipe.circles) * np.concatenate([first, real, none, imaginary, none, -imaginary, second, real])]
    return [math.prod(map(scale, recipe.circles)) * np.concatenate([first, real, second, imaginary])]


def _weights(circle: int) -> np.ndarray:
    """How often each of the frequencies 0 … N/2 counts among 0 … N − 1."""
    frequencies = np.arange(circle // 2 + 1)
    return np.where((frequencies == 0) | (2 * frequencies == circle), 1.0, 2.0)


def _half_grid(recipe: Recipe) -> list[np.ndarray]:
    """One matrix with the frequencies of `_by_axis`: all of them, but 0 … N/2 along the last axis."""
    *outer, last = recipe.circles
    frequencies = np.indices((*outer, last // 2 + 1)).reshape(len(recipe.circles), -1)
    angles = _grid_angles(recipe, frequencies)
    real, imaginary = np.cos(angles), -np.sin(angles)
    if recipe.kernel:
        weights = _norm(recipe.circles) * np.tile(_weights(last), math.prod(outer))[:, None]
        real, imaginary = weights * real, weights * imaginary
        return [np.concatenate([real, imaginary, -imaginary, real])]
    return [math.prod(map(scale, recipe.circles)) * np.concatenate([real, imaginary])]


def _by_axis(recipe: Recipe) -> list[np.ndarray]:
    """[(part, frequency), point] of the last axis, then [(part, frequency), (point, part)] of each axis before it."""
    circle, points = recipe.circles[-1], recipe.points[-1]
    angles = _angles(circle, np.arange(circle // 2 + 1), points)
    factor = _norm(recipe.circles) * _weights(circle)[:, None] if recipe.kernel else scale(circle)
    matrices = [np.concatenate([factor * np.cos(angles), -factor * np.sin(angles)])]
    for circle, points in zip(recipe.circles[-2::-1], recipe.points[-2::-1], strict=True):
        angles = _angles(circle, np.arange(circle), points)
        factor = 1.0 if recipe.kernel else scale(circle)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        real, imaginary = np.stack([cos, sin], -1), np.stack([-sin, cos], -1)
        matrices.append(np.concatenate([real, imaginary]).reshape(2 * circle, -1))
    if recipe.kernel:
        real, imaginary = np.split(matrices[-1], 2)
        matrices[-1] = np.concatenate([real, imaginary, -imaginary, real])
    return matrices


def _long(recipe: Recipe) -> list[np.ndarray]:
    """A sequence as `outer` rows of `inner` samples, position = row·inner + column: identity, rows, columns.

    With f = k + outer·l the row part of the angle depends on k alone. Row frequencies 0 and outer/2 are real and share
    a pair; the column matrix of that pair takes their spectra apart and holds the mirrored half of neither.
    Shapes: [inner, inner], [(k, part), rows], [k, (l, part), (part, column)].
    """
    outer, inner = recipe.circles
    (points,) = recipe.points
    circle, pairs = outer * inner, outer // 2
    rows = _angles(outer, np.arange(pairs + 1), Points(points.number // inner, 0, points.step))
    columns = Points(inner, points.start, points.step)
    down = np.stack([np.cos(rows[:pairs]), -np.sin(rows[:pairs])], 1)
    down[0, 1] = np.cos(rows[pairs])
    angles = _angles(circle, np.add.outer(np.arange(pairs), outer * np.arange(inner)).ravel(), columns)
    cos, sin = (f(angles).reshape(pairs, inner, inner) for f in (np.cos, np.sin))
    real, imaginary = np.stack([cos, sin], 2), np.stack([-sin, cos], 2)  # [k, l, part, column]
    half = inner // 2
    zero = _angles(circle, outer * np.arange(half + 1), columns)
    middle = _angles(circle, pairs + outer * np.arange(half), columns)
    real[0], imaginary[0] = 0.0, 0.0
    real[0, :half, 0], imaginary[0, 1:half, 0] = np.cos(zero[:half]), -np.sin(zero[1:half])
    real[0, half:, 1], imaginary[0, half:, 1] = np.cos(middle), -np.sin(middle)
    if recipe.kernel:
        across = 2 * np.stack([real, imaginary, -imaginary, real], 2)
        across[0, 0] /= 2
        across[0, 0, 3] = 0.0
        across[0, 0, 3, 0] = np.cos(zero[half])  # 0 and N/2 share a pair again
        across *= _norm(recipe.circles)
    else:
        across = scale(inner) * np.stack([real, imaginary], 2)
        across[0, 0, 1, 0] = scale(inner) * np.cos(zero[half])
        down *= scale(outer)
    return [np.eye(inner), down.reshape(2 * pairs, -1), across.reshape(pairs, -1, 2 * inner)]


class MatrixCache:
    """Matrices by recipe, dtype and device: the most recently used ones up to `limit` bytes.

    What a CUDA graph was captured with is kept for good, since the graph remembers its address.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._recent: OrderedDict[tuple[Recipe, torch.dtype, torch.device], list[torch.Tensor]] = OrderedDict()
        self._kept: dict[tuple[Recipe, torch.dtype, torch.device], list[torch.Tensor]] = {}

    def __call__(self, recipe: Recipe, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
        key = recipe, dtype, device
        if key in self._kept:
            return self._kept[key]
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if key in self._recent:
            self._recent.move_to_end(key)
        elif capturing:
            raise RuntimeError(
                "a CUDA graph is being captured and the transform matrices of this convolution do not exist yet: "
                "run the same shapes once before the capture"
            )
        else:
            with _disable_current_modes(), torch.inference_mode(False):
                self._recent[key] = [_tensor(each, dtype, device) for each in build(recipe)]
            self.used += _bytes(self._recent[key])
        matrices = self._recent[key]
        if capturing:
            self._kept[key] = self._recent.pop(key)
            self.used -= _bytes(matrices)
        while self.used > self.limit and len(self._recent) > 1:
            self.used -= _bytes(self._recent.popitem(last=False)[1])
        return matrices

    def __len__(self) -> int:
        return len(self._recent) + len(self._kept)


def _tensor(matrix: np.ndarray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows start at multiples of 16 bytes, or tensor cores have no fast way to load them."""
    width = matrix.shape[-1]
    room = np.zeros((*matrix.shape[:-1], -(-width // 8) * 8))
    room[..., :width] = matrix
    return torch.from_numpy(room).to(dtype).to(device)[..., :width]


def _bytes(matrices: list[torch.Tensor]) -> int:
    return sum(each.untyped_storage().nbytes() for each in matrices)


_cache = MatrixCache(limit=2**30)


@torch.compiler.assume_constant_result
def cached_matrices(
    style: str,
    circles: tuple[int, ...],
    points: tuple[tuple[int, int, int], ...],
    kernel: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """The matrices of a recipe (its fields, as plain tuples); constants of a compiled graph."""
    return _cache(Recipe(style, circles, tuple(Points(*each) for each in points), kernel), dtype, device)
