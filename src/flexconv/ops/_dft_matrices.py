"""The matrices of `_dft.py`: real Fourier bases at the positions a convolution reads and writes, and their cache.

Along an axis laid on a circle of N, x sits at positions m, taps at j·dilation − left, outputs at n·stride. A matrix
holds cos and −sin of 2π·f·position / N for just those positions, so that padding, dilation and stride cost nothing.

Frequencies of the last axis are odd multiples of ½: f + ½ for f = 0 … N − 1. A turn around the circle changes the sign
then, which is nobody's concern where no output meets a sample from another turn; but none of them is its own mirror
image, as 0 and N/2 would be. Real signals need the first half of them, all complex, all counting twice.

Rows come as [part, frequency], part 0 real and 1 imaginary. For x and y they are scaled by the power of two next below
1/√N: spectra are no larger than signals, so that float16 does not overflow, and cosines of ½ stay exact. What is
missing to 2/N is in the matrices of the kernel, whose spectrum, conjugated, is the gain of each frequency.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import UsageError


class Points(NamedTuple):
    """Positions start, start + step, … along one axis."""

    number: int
    start: int
    step: int


class Recipe(NamedTuple):
    """What one list of matrices is made from."""

    style: str  # "whole": one matrix; "axes": one per axis, last axis first; "long": a sequence as rows and columns
    circles: tuple[int, ...]  # all even on the last axis; for "long": (outer, inner), whose product is the circle
    points: tuple[Points, ...]
    kernel: bool


def build(recipe: Recipe) -> list[np.ndarray]:
    """The matrices of a recipe in float64, in the order in which analysis applies them."""
    return {"whole": _whole, "axes": _by_axis, "long": _long}[recipe.style](recipe)


@functools.lru_cache(maxsize=256)
def shapes(recipe: Recipe) -> list[tuple[int, ...]]:
    """The shapes of the matrices of a recipe."""
    return [each.shape for each in build(recipe)]


def scale(circle: int) -> float:
    """The power of two at or below 1/√N."""
    return 2.0 ** -math.ceil(math.log2(circle) / 2)


def _factor(recipe: Recipe) -> float:
    """Of all matrices of a recipe together: `scale`, or what the kernel has to make up for, 2 / (N · scale²)."""
    scales = math.prod(map(scale, recipe.circles))
    return 2 / (math.prod(recipe.circles) * scales**2) if recipe.kernel else scales


def _angles(circle: int, doubled: np.ndarray, points: Points) -> np.ndarray:
    """2π·f·position / N [frequencies, points] for frequencies given as 2f, from exact integers."""
    positions = points.start + points.step * np.arange(points.number)
    return np.pi / circle * (np.outer(doubled, positions) % (2 * circle))


def _odd(circle: int) -> np.ndarray:
    """Twice the frequencies of a last axis: the first half, whose mirror images are the other."""
    return 2 * np.arange(circle // 2) + 1


def _complex(recipe: Recipe, angles: np.ndarray) -> np.ndarray:
    """Angles [frequencies, …] → [(part, frequency), …] of e^−iφ, conjugated for a kernel."""
    return _factor(recipe) * np.concatenate([np.cos(angles), np.sin(angles) if recipe.kernel else -np.sin(angles)])


def _whole(recipe: Recipe) -> list[np.ndarray]:
    """One matrix [(part, frequency), point], frequencies and points of all axes listed one by one."""
    total = np.zeros((1, 1))
    for number, (circle, points) in enumerate(zip(recipe.circles, recipe.points, strict=True)):
        last = number == len(recipe.circles) - 1
        angles = _angles(circle, _odd(circle) if last else 2 * np.arange(circle), points)
        total = total[:, None, :, None] + angles[None, :, None, :]
        total = total.reshape(total.shape[0] * total.shape[1], -1)
    return [_complex(recipe, total)]


def _by_axis(recipe: Recipe) -> list[np.ndarray]:
    """[(part, frequency), point] of the last axis, then [(part, frequency), (point, part)] of each axis before it."""
    angles = _angles(recipe.circles[-1], _odd(recipe.circles[-1]), recipe.points[-1])
    matrices = [_complex(recipe, angles)]
    for circle, points in zip(recipe.circles[-2::-1], recipe.points[-2::-1], strict=True):
        angles = _angles(circle, 2 * np.arange(circle), points)
        cos, sin = np.cos(angles), np.sin(angles) if recipe.kernel else -np.sin(angles)
        real, imaginary = np.stack([cos, -sin], -1), np.stack([sin, cos], -1)
        matrices.append(np.concatenate([real, imaginary]).reshape(2 * circle, -1))
    return matrices


def _long(recipe: Recipe) -> list[np.ndarray]:
    """A sequence as `outer` rows of `inner` samples, position = row·inner + column: rows, columns.

    With f = k + ½ + outer·l the row part of the angle depends on k alone.
    Shapes: [(k, part), rows], [k, (l, part), (part, column)].
    """
    outer, inner = recipe.circles
    (points,) = recipe.points
    sign = 1.0 if recipe.kernel else -1.0
    rows = _angles(outer, _odd(outer), Points(points.number // inner, 0, points.step))
    down = _factor(recipe) * np.stack([np.cos(rows), sign * np.sin(rows)], 1).reshape(outer, -1)
    doubled = np.add.outer(_odd(outer), 2 * outer * np.arange(inner)).ravel()
    angles = _angles(outer * inner, doubled, Points(inner, points.start, points.step))
    cos, sin = np.cos(angles), sign * np.sin(angles)
    across = np.stack([np.stack([cos, -sin], 1), np.stack([sin, cos], 1)], 1)
    return [down, across.reshape(outer // 2, 2 * inner, 2 * inner)]


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
            raise UsageError(
                "a CUDA graph is being captured and the transform matrices of this convolution do not exist yet: "
                "run the same shapes once before the capture"
            )
        else:
            with _disable_current_modes(), torch.inference_mode(False):
                matrices = build(recipe)
                if recipe.kernel and recipe.style != "axes" and dtype.itemsize == 2:
                    matrices = [_with_remainder(each, dtype) for each in matrices]
                self._recent[key] = [_tensor(each, dtype, device) for each in matrices]
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


def _with_remainder(matrix: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """A matrix, and beside it what rounding takes away from it; both as wide as GPUs like."""
    missing = matrix - torch.from_numpy(matrix).to(dtype).double().numpy()
    room = [(0, 0)] * (matrix.ndim - 1) + [(0, -matrix.shape[-1] % 8)]
    return np.concatenate([np.pad(matrix, room), np.pad(missing, room)], -1)


def _bytes(matrices: list[torch.Tensor]) -> int:
    return sum(each.untyped_storage().nbytes() for each in matrices)


cached_matrices = MatrixCache(limit=2**30)


def constant_matrices(
    style: str,
    circles: tuple[int, ...],
    points: tuple[tuple[int, int, int], ...],
    kernel: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """The same as constants of a graph that is being compiled, where named tuples are lost: a recipe by its fields."""
    matrices = cached_matrices(Recipe(style, circles, tuple(Points(*each) for each in points), kernel), dtype, device)
    for each in matrices:
        for tensor in (each, each._base):  # or their sizes are unknowns that nothing defines, with dynamic=True
            # what torch._dynamo.mark_static does, but not while something is compiled
            tensor._dynamo_static_indices = set(range(tensor.ndim))  # type: ignore[attr-defined]
    return matrices


# What torch.compiler.assume_constant_result does, without importing the compiler with this package.
constant_matrices._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
