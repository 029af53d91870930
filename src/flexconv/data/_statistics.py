"""Mean and standard deviation of a training set.

per channel:     mean_c = Σ_{n,s} x_ncs / N_c           over samples and positions, without padding
per time index:  mean_t = Σ_{n,c} x_nct / (N · C)       the authors' choice for sequences
"""

from __future__ import annotations

import numpy as np
import torch

from ..errors import ArgumentError
from ._splits import MappedRows, Samples

CHUNK = 4096  # samples at a time, to limit the memory of float64 copies
EMPTY = "the training set is empty: there are no statistics"


def channel_statistics(samples: Samples, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and std per channel of inputs · scale, computed in float64 → two float32 tensors [C, 1, …].

    Padding is not counted. A constant channel gets std 1, so that it is standardized to 0.
    """
    channels, dims = samples.inputs.shape[1], len(samples.inputs.shape) - 2
    if samples.inputs.dtype == torch.uint8 and samples.lengths is None:
        return _from_histogram(samples, scale=scale, shape=(channels, *[1] * dims))
    count = torch.zeros((), dtype=torch.float64)
    first, second = torch.zeros(2, channels, dtype=torch.float64)
    shift = None  # a value near the mean, which avoids cancellation in Σx² − (Σx)²/n
    for index in torch.arange(len(samples)).split(CHUNK):
        x = _take(samples, index).to(torch.float64) * scale
        x = x.flatten(2).transpose(0, 1)  # [C, n, S]
        if samples.lengths is not None:
            kept = torch.arange(x.shape[-1]) < samples.lengths[index, None]
            x = x[:, kept]
        x = x.flatten(1)
        shift = x.mean(1, keepdim=True) if shift is None else shift
        count += x.shape[1]
        first += (x - shift).sum(1)
        second += (x - shift).square().sum(1)
    if shift is None or count == 0:
        raise ArgumentError(EMPTY)
    return _finish(count, first, second, shift[:, 0], shape=(channels, *[1] * dims))


def time_statistics(samples: Samples, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and std per time index over samples and channels → two float32 tensors [1, L].

    This is the authors' choice for CharacterTrajectories and Speech Commands, whose loop runs over the last axis. The
    standard deviation is the unbiased one (N − 1), as in their code.
    """
    x = _take(samples, torch.arange(len(samples))).to(torch.float64) * scale
    std, mean = torch.std_mean(x.transpose(1, 2).transpose(0, 1).flatten(1), dim=1)
    return mean.float()[None], torch.where(std > 0, std, 1.0).float()[None]


def statistics_from_moments(moments: np.ndarray, pixels: int, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and std per channel from the integers Σx and Σx² of every image: [N, C, 2] → two float32 tensors [C, 1, 1].

    Large data sets store these sums, so that the statistics of any subset are exact without reading its images.
    """
    total = torch.from_numpy(moments.sum(0, dtype=np.int64)).to(torch.float64)
    count = torch.tensor(float(len(moments) * pixels), dtype=torch.float64)
    zero = torch.zeros(len(total), dtype=torch.float64)
    return _finish(count, total[:, 0] * scale, total[:, 1] * scale**2, zero, shape=(len(total), 1, 1))


def _finish(
    count: torch.Tensor, first: torch.Tensor, second: torch.Tensor, shift: torch.Tensor, *, shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    mean = first / count
    variance = (second / count - mean.square()).clamp(min=0)
    std = torch.where(variance > 0, variance.sqrt(), 1.0)
    return (mean + shift).float().reshape(shape), std.float().reshape(shape)


def _from_histogram(samples: Samples, *, scale: float, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Statistics of uint8 values from their histogram: exact, and several times faster than sums in float64."""
    counts = np.zeros((shape[0], 256), np.int64)
    for index in torch.arange(len(samples)).split(CHUNK):
        chunk = _take(samples, index).numpy()
        for channel in range(shape[0]):
            counts[channel] += np.bincount(chunk[:, channel].reshape(-1), minlength=256)
    if not counts.any():
        raise ArgumentError(EMPTY)
    histogram, levels = torch.from_numpy(counts).to(torch.float64), torch.arange(256, dtype=torch.float64) * scale
    zero = torch.zeros(shape[0], dtype=torch.float64)
    return _finish(histogram[0].sum(), histogram @ levels, histogram @ levels.square(), zero, shape=shape)


def _take(samples: Samples, index: torch.Tensor) -> torch.Tensor:
    return samples.inputs.take(index) if isinstance(samples.inputs, MappedRows) else samples.inputs[index]
