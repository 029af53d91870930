"""Recordings: 16-bit .wav files, in chunks if they are longer than the training samples."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from ..audio import hop_length, resample
from ..data import DamagedDataError, read_wav
from ..errors import ArgumentError
from ._target import NATIVE, TRAINED, Sample, Target, plural


def read_recording(file: Path, target: Target) -> list[Sample]:
    """Read a recording and divide it into chunks of the length of the training samples.

    At the resolution "trained" it is resampled to the rate of the training. At "native" the network is resampled
    instead.
    """
    if not target.takes_recordings:
        raise ArgumentError(f"{file}: a recording, but the network takes {target.describe()}")
    samples, rate = read_wav(file)
    if len(samples) != target.channels:
        raise DamagedDataError(f"{file}: {plural(len(samples), 'channel')}, but the network takes {target.describe()}")
    if samples.shape[1] == 0:
        raise DamagedDataError(f"{file}: the recording has no samples")
    wave = torch.from_numpy(samples.copy())
    trained_rate = target.inputs.mfcc_rate or target.inputs.rate or rate
    scale = rate / trained_rate if target.resolution == NATIVE else 1.0
    if target.resolution == TRAINED and rate != trained_rate:
        wave, rate = resample(wave.float(), rate, trained_rate), trained_rate
    length = max(1, round(target.raw_length * scale))
    step = length if target.hop is None else max(1, round(target.hop * rate))
    if wave.shape[1] < length and not target.inputs.varying:
        seconds = wave.shape[1] / rate
        return [Sample(F.pad(wave, (0, length - wave.shape[1])), (scale,), start=0.0, stop=seconds)]
    if target.inputs.mfcc_rate is not None and wave.shape[1] <= hop_length(rate):
        raise DamagedDataError(
            f"{file}: {plural(wave.shape[1], 'sample')} at {rate} Hz, but MFCCs need more than {hop_length(rate)}"
        )
    return [
        Sample(wave[:, start : start + length], (scale,), start=start / rate, stop=_stop(start, length, wave) / rate)
        for start in _starts(wave.shape[1], length, step)
    ]


def _starts(total: int, length: int, step: int) -> list[int]:
    """Where chunks begin. The last one ends where the recording ends, so that all have the same length."""
    last = max(0, total - length)
    return [*range(0, last, step), last]


def _stop(start: int, length: int, wave: torch.Tensor) -> int:
    return min(start + length, wave.shape[1])
