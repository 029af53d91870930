"""Recordings: 16-bit .wav files, in chunks if they are longer than the training samples."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from ..audio import hop_length, resample
from ..data import FULL_SCALE, DamagedDataError, read_wav
from ..errors import ArgumentError
from ._target import NATIVE, TRAINED, Sample, Target, plural


def read_recording(file: Path, target: Target) -> list[Sample]:
    """Read a recording and divide it into chunks of the length of the training samples.

    At the resolution "trained" it is resampled to the rate of the training. At "native" the network is resampled
    instead. A short recording is padded with silence, unless the training recordings had different lengths.
    """
    wave, rate = _read(file, target)
    trained_rate = target.inputs.mfcc_rate or target.inputs.rate or rate
    scale = 1.0
    if target.resolution == NATIVE:
        scale = rate / trained_rate
        target.check_ratio((scale,), f"{file}: the rate {rate} Hz", f"{trained_rate} Hz, the rate of the training")
    elif target.resolution == TRAINED and rate != trained_rate:
        resampled = resample(wave.float(), rate, trained_rate).round().clamp(-FULL_SCALE, FULL_SCALE - 1)
        wave, rate = resampled.to(wave.dtype), trained_rate
    length, total = max(1, round(target.raw_length * scale)), wave.shape[1]
    if total < length and not target.inputs.varying:
        return [Sample(F.pad(wave, (0, length - total)), (scale,), start=0.0, stop=total / rate)]
    if target.inputs.mfcc_rate is not None and total <= hop_length(rate):
        needed = f"MFCCs need more than {hop_length(rate)}"
        raise DamagedDataError(f"{file}: {plural(total, 'sample')} at {rate} Hz, but {needed}")
    if target.inputs.mfcc_rate is not None and length <= total < length + hop_length(rate):
        length = total  # as many frames as the training samples, so it is not divided
    step = length if target.hop is None else max(1, round(target.hop * rate))
    return [
        Sample(wave[:, start : start + length], (scale,), start=start / rate, stop=min(start + length, total) / rate)
        for start in _starts(total, length, step)
    ]


def _read(file: Path, target: Target) -> tuple[torch.Tensor, int]:
    """The samples [C, length] int16 of a recording, and its rate."""
    if not target.takes_recordings:
        raise ArgumentError(f"{file}: a recording, but the network takes {target.describe()}")
    samples, rate = read_wav(file)
    if len(samples) != target.channels:
        raise DamagedDataError(f"{file}: {plural(len(samples), 'channel')}, but the network takes {target.describe()}")
    if samples.shape[1] == 0:
        raise DamagedDataError(f"{file}: the recording has no samples")
    return torch.from_numpy(samples.copy()), rate


def _starts(total: int, length: int, step: int) -> list[int]:
    """Where chunks begin. The last one ends where the recording ends, so that all have the same length."""
    last = max(0, total - length)
    return [*range(0, last, step), last]
