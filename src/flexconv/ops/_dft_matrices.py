"""The matrices of `_dft.py`: real Fourier bases at the positions that a convolution reads and writes.

Along an axis of circular length N, the input is at positions m, the taps are at j·dilation − left, and the outputs are
at n·stride. A matrix holds cos and −sin of 2π·f·position / N for exactly these positions, so padding, dilation and
stride cost nothing.

The frequencies of the last axis are f + ½ for f = 0 … N − 1. With them, a signal that wraps around the end changes its
sign, which has no effect because N is chosen so that nothing wraps into an output. In return, no frequency is its own
mirror image, as 0 and N/2 would be: the spectrum of a real signal is given by its first N/2 values, which are all
complex and all count twice.

The rows of a matrix are ordered [part, frequency], with part 0 real and part 1 imaginary. The matrices for input and
output are scaled by the largest power of two up to 1/√N: spectra are then no larger than signals, so that float16 does
not overflow, and scaling does not round. The rest of the factor 2/N is in the matrices for the kernel.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np


class Positions(NamedTuple):
    """The positions start, start + step, … along one axis."""

    number: int
    start: int
    step: int


class TransformSpec(NamedTuple):
    """Everything that determines the matrices of one transform.

    Attributes:
        kind: "single" (one matrix for all axes), "separable" (one matrix per axis, last axis first) or "two-level" (one
            axis, split into rows and columns).
        lengths: Circular length of each axis, even for the last axis. For "two-level": the number of rows and their
            length, whose product is the circular length.
        positions: Positions along each axis.
        kernel: Whether the transform is that of a kernel, which is conjugated and has another scale.

    """

    kind: str
    lengths: tuple[int, ...]
    positions: tuple[Positions, ...]
    kernel: bool


def build_matrices(spec: TransformSpec) -> list[np.ndarray]:
    """Return the matrices of a transform in float64, in the order in which analysis applies them."""
    build = {"single": _single_matrix, "separable": _separable_matrices, "two-level": _two_level_matrices}
    return build[spec.kind](spec)


@functools.lru_cache(maxsize=256)
def matrix_shapes(spec: TransformSpec) -> list[tuple[int, ...]]:
    """Return the shapes of the matrices of a transform."""
    return [matrix.shape for matrix in build_matrices(spec)]


def _single_matrix(spec: TransformSpec) -> list[np.ndarray]:
    """One matrix [(part, frequency), position], with the frequencies and positions of all axes flattened."""
    if len(spec.lengths) == 1:
        (length,), (positions,) = spec.lengths, spec.positions
        return [_real_and_imaginary_1d(spec, length, _half_integer_frequencies(length), positions)]
    total = np.zeros((1, 1))
    for axis, (length, positions) in enumerate(zip(spec.lengths, spec.positions, strict=True)):
        last = axis == len(spec.lengths) - 1
        angles = _angles(length, _half_integer_frequencies(length) if last else 2 * np.arange(length), positions)
        total = total[:, None, :, None] + angles[None, :, None, :]
        total = total.reshape(total.shape[0] * total.shape[1], -1)
    return [_real_and_imaginary(spec, total)]


def _separable_matrices(spec: TransformSpec) -> list[np.ndarray]:
    """[(part, frequency), position] for the last axis, then [(part, frequency), (position, part)] for those before."""
    angles = _angles(spec.lengths[-1], _half_integer_frequencies(spec.lengths[-1]), spec.positions[-1])
    matrices = [_real_and_imaginary(spec, angles)]
    for length, positions in zip(spec.lengths[-2::-1], spec.positions[-2::-1], strict=True):
        angles = _angles(length, 2 * np.arange(length), positions)
        cos, sin = np.cos(angles), np.sin(angles) if spec.kernel else -np.sin(angles)
        real, imaginary = np.stack([cos, -sin], -1), np.stack([sin, cos], -1)
        matrices.append(np.concatenate([real, imaginary]).reshape(2 * length, -1))
    return matrices


def _two_level_matrices(spec: TransformSpec) -> list[np.ndarray]:
    """The two levels of Cooley and Tukey for a sequence of `outer` rows with `inner` samples each.

    For position = row·inner + column and frequency k + ½ + outer·l, the contribution of the row to the angle depends on
    k only. The first matrix [(k, part), row] transforms the columns. The second one [k, (l, part), (part, column)]
    contains the twiddle factors and transforms the rows.
    """
    outer, inner = spec.lengths
    (positions,) = spec.positions
    sign = 1.0 if spec.kernel else -1.0
    rows = Positions(positions.number // inner, 0, positions.step)
    row_angles = _angles(outer, _half_integer_frequencies(outer), rows)
    column_matrix = _scale(spec) * np.stack([np.cos(row_angles), sign * np.sin(row_angles)], 1).reshape(outer, -1)
    doubled = np.add.outer(_half_integer_frequencies(outer), 2 * outer * np.arange(inner)).ravel()
    angles = _angles(outer * inner, doubled, Positions(inner, positions.start, positions.step))
    cos, sin = np.cos(angles), sign * np.sin(angles)
    row_matrices = np.stack([np.stack([cos, -sin], 1), np.stack([sin, cos], 1)], 1)
    return [column_matrix, row_matrices.reshape(outer // 2, 2 * inner, 2 * inner)]


def _half_integer_frequencies(length: int) -> np.ndarray:
    """2f for the frequencies f = ½, 3/2, … below length/2. The others are their mirror images."""
    return 2 * np.arange(length // 2) + 1


def _angles(length: int, doubled: np.ndarray, positions: Positions) -> np.ndarray:
    """Angles 2π·f·position / length [frequencies, positions] for frequencies given as 2f, reduced in exact integers."""
    return np.pi / length * _steps(length, doubled, positions)


def _steps(length: int, doubled: np.ndarray, positions: Positions) -> np.ndarray:
    """The angles in steps of π / length."""
    points = positions.start + positions.step * np.arange(positions.number)
    return np.outer(doubled, points) % (2 * length)


def _real_and_imaginary(spec: TransformSpec, angles: np.ndarray) -> np.ndarray:
    """Scaled e^−iφ for angles [frequencies, …] → [(part, frequency), …], conjugated for a kernel."""
    return _scale(spec) * np.concatenate([np.cos(angles), np.sin(angles) if spec.kernel else -np.sin(angles)])


def _real_and_imaginary_1d(spec: TransformSpec, length: int, doubled: np.ndarray, positions: Positions) -> np.ndarray:
    """The same for one axis. All angles are multiples of π / length, so sine and cosine are looked up in a table."""
    angles = np.pi / length * np.arange(2 * length)
    cos, sin = _scale(spec) * np.cos(angles), _scale(spec) * (np.sin(angles) if spec.kernel else -np.sin(angles))
    steps = _steps(length, doubled, positions)
    matrix = np.empty((2, *steps.shape))
    np.take(cos, steps, out=matrix[0])
    np.take(sin, steps, out=matrix[1])
    return matrix.reshape(-1, steps.shape[1])


def _scale(spec: TransformSpec) -> float:
    """The scale of a whole transform: a power of two for data, and 2 / (N · scale²) for a kernel."""
    scale = math.prod(map(power_of_two_scale, spec.lengths))
    return 2 / (math.prod(spec.lengths) * scale**2) if spec.kernel else scale


def power_of_two_scale(length: int) -> float:
    """Return the largest power of two up to 1/√length."""
    return 2.0 ** -math.ceil(math.log2(length) / 2)
