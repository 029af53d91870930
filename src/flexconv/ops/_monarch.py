"""Depthwise convolution of sequences and images by Fourier transforms that are two matrix products each.

Sequences are cut into chunks of L = 64 · C samples. The transform of a chunk x is

    X[f] = Σ_n x[n] z^n,        z = exp(−2πi (f + ¼) / L),        f = 0 … L − 1.

Because of the ¼, z^L = −i for all f. The product of two such spectra belongs to the convolution of their chunks, of
which the samples L … 2L − 1 are multiplied by −i and added to the first L samples. Real inputs have real
convolutions, so the real part of the inverse transform is the first half of the convolution. No zeros need to be
appended, as they must for a usual FFT. In the same way, kernel values at lags −L … −1 are multiplied by z^−L = i. For
an output chunk d and an input chunk c, lags from (d − c − 1) L to (d − c + 1) L are needed:

    Y_d = Σ_c K_{d − c} X_c,        K_e = P_e + i P_{e − 1},

where P_e is the transform of the kernel values at the lags e L … (e + 1) L − 1. With n = C n₁ + n₂ and
f = k₁ + 64 k₂, the transform is a Monarch decomposition (Dao et al., 2022; Fu et al., 2023):

    X[k₁, k₂] = Σ_n₂ G[n₂, k₂] W[k₁, n₂] Σ_n₁ F[k₁, n₁] x[n₁, n₂],
    F = exp(−2πi n₁ (k₁ + ¼) / 64),        W = exp(−2πi n₂ (k₁ + ¼) / L),        G = exp(−2πi n₂ k₂ / C),

which is a product with F from the left, a product of elements with W, and a product with G from the right.

An image is a sequence, too: its rows one after the other, with as many zeros in between as the kernel is wide to one
side. Rows start `pitch` positions apart. The tap in row a and column b is at position a · pitch + b of the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._registry import has_fast_version
from ._fft import fft_conv
from ._geometry import Geometry

ROWS = 64  # of a chunk as a matrix
COLUMNS = (16, 32, 64)
ALIGNMENT = 8  # rows of images start at multiples of this number if they fit, to load several numbers at once


class Chunks(NamedTuple):
    """How a convolution is cut into chunks."""

    pitch: int  # distance between two rows of an image; for sequences, zero
    largest_lag: int  # that of the first tap
    columns: int  # of a chunk as a matrix
    inputs: int  # number of chunks of the input
    outputs: int  # number of chunks of the output
    first_lag: int  # smallest distance between an output chunk and an input chunk that contributes to it
    lags: int  # number of distances
    first_kernel: int  # chunk of the kernel with the smallest lag
    kernels: int  # number of chunks of the kernel

    @property
    def length(self) -> int:
        """The number of samples in a chunk."""
        return ROWS * self.columns

    def number_of(self, size: tuple[int, ...]) -> int:
        """The number of chunks of a tensor of this size."""
        return -(-_length(size, self.pitch) // self.length)

    @property
    def pairs(self) -> int:
        """The number of pairs of an output chunk and an input chunk that contributes to it."""
        total = 0
        for lag in range(self.first_lag, self.first_lag + self.lags):
            total += max(0, min(self.outputs, self.inputs + lag) - max(0, lag))
        return total


def cut_into_chunks(
    size: tuple[int, ...], taps: tuple[int, ...], left: tuple[int, ...], outputs: tuple[int, ...]
) -> Chunks:
    """The shortest chunks that hold the whole sequence or image, or else the longest ones. `left` is the padding."""
    pitch = 0
    if len(size) == 2:
        # neither the first nor the last tap of a row may carry a sample into the next row of outputs
        pitch = max(size[1] + left[1], outputs[1] + taps[1] - 1 - left[1], outputs[1], taps[1])
        rounded = -(-pitch // ALIGNMENT) * ALIGNMENT
        fits = ROWS * COLUMNS[-1] >= _length(outputs, rounded)
        pitch = rounded if fits else pitch + pitch % 2
    length_x, length_y, length_k = _length(size, pitch), _length(outputs, pitch), _length(taps, pitch)
    lag = left[-1] + (left[0] * pitch if pitch else 0)  # of the first tap; the others have smaller ones
    columns = COLUMNS[0]
    for more in COLUMNS[1:]:
        columns = more if ROWS * columns < max(length_x, length_y) else columns
    length = ROWS * columns
    inputs, number = -(-length_x // length), -(-length_y // length)
    first_kernel, last_kernel = (lag - length_k + 1) // length, lag // length
    first_lag, last_lag = max(first_kernel, 1 - inputs), min(last_kernel + 1, number - 1)
    lags = max(1, last_lag - first_lag + 1)
    return Chunks(pitch, lag, columns, inputs, number, first_lag, lags, first_kernel, last_kernel - first_kernel + 1)


def _length(size: tuple[int, ...], pitch: int) -> int:
    """The number of positions from the first to the last sample."""
    return size[0] if len(size) == 1 else (size[0] - 1) * pitch + size[1]


def has_odd_rows(size: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether rows of inputs or outputs have an odd length. In half precision, they are copied to even ones."""
    return bool(size[-1] % 2 or outputs[-1] % 2)


cached_chunks = functools.lru_cache(maxsize=4096)(cut_into_chunks)


@has_fast_version("ops.monarch_conv")
def monarch_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, geometry: Geometry) -> torch.Tensor:
    """x [batch, in, *size], weight [out, 1, *taps] → [batch, out, *size'].

    On a GPU with tensor cores, `_fast` computes depthwise convolutions of sequences and images with stride 1 and
    dilation 1 as described above. All other convolutions are computed by `fft_conv`.
    """
    return fft_conv(x, weight, bias, geometry)
