"""Read recordings, as waves or as mel-frequency cepstral coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ..audio import channelwise_mfcc, hop_length
from ..errors import ArgumentError
from ._files import DamagedDataError
from ._splits import Samples
from ._wav import read_wav

FEATURES = ("waves", "mfcc")
FULL_SCALE = 2**15  # of 16-bit samples
CHUNK = 256  # recordings that are transformed at a time


def read_recordings(
    files: Mapping[str, tuple[list[Path], torch.Tensor]], features: str
) -> tuple[dict[str, Samples], int]:
    """Paths and labels of all splits → samples of all splits, with lengths if they differ, and the sampling rate."""
    parts, rate = _waves(files)
    if features == "waves":
        return parts, rate
    try:
        return {part: coefficients(samples, rate) for part, samples in parts.items()}, rate
    except ValueError as error:
        raise ArgumentError(
            f"the MFCCs of {files['train'][0][0]} cannot be computed, use features='waves': {error}"
        ) from error


def _waves(files: Mapping[str, tuple[list[Path], torch.Tensor]]) -> tuple[dict[str, Samples], int]:
    """Recordings [N, C, longest] int16 of all splits, padded with zeros, and their sampling rate."""
    waves = {part: [read_wav(path) for path in paths] for part, (paths, _) in files.items()}
    kinds = {}
    for part, (paths, _) in files.items():
        for path, (wave, rate) in zip(paths, waves[part], strict=True):
            if wave.size == 0:
                raise DamagedDataError(f"{path}: the recording has no samples")
            kinds.setdefault((len(wave), rate), path)
    if len(kinds) > 1:
        listed = "; ".join(
            f"{path}: {channels} channel{'' if channels == 1 else 's'} at {rate} Hz"
            for (channels, rate), path in kinds.items()
        )
        raise DamagedDataError(f"all recordings must have the same number of channels and sampling rate: {listed}")
    ((channels, rate),) = kinds
    lengths = {part: torch.tensor([wave.shape[1] for wave, _ in found]) for part, found in waves.items()}
    longest = max(int(found.max()) for found in lengths.values())
    unequal = any(int(found.min()) < longest for found in lengths.values())
    parts = {}
    for part, found in waves.items():
        padded = np.zeros((len(found), channels, longest), np.int16)
        for row, (wave, _) in zip(padded, found, strict=True):
            row[:, : wave.shape[1]] = wave
        parts[part] = Samples(torch.from_numpy(padded), files[part][1], lengths[part] if unequal else None)
    return parts, rate


def coefficients(samples: Samples, rate: int) -> Samples:
    """Waves [N, C, length] → coefficients [N, 20 C, frames]."""
    assert isinstance(samples.inputs, torch.Tensor)
    chunks = [channelwise_mfcc(waves.float() / FULL_SCALE, rate=rate) for waves in samples.inputs.split(CHUNK)]
    frames = None if samples.lengths is None else 1 + samples.lengths // hop_length(rate)
    return Samples(torch.cat(chunks), samples.labels, frames)
