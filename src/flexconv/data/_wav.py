"""Read 16-bit PCM .wav files with the standard library."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from ._files import DamagedDataError


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """Read a 16-bit PCM file → samples [channels, length] int16, and the sampling rate in Hz."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate, frames = (
                file.getsampwidth(),
                file.getnchannels(),
                file.getframerate(),
                file.getnframes(),
            )
            raw = file.readframes(frames)
    except (wave.Error, EOFError) as error:
        raise DamagedDataError(
            f"{path}: the .wav file cannot be read: {error or 'truncated'}; expected PCM with 16 bits per sample"
        ) from error
    if width != 2:
        raise DamagedDataError(f"{path}: {8 * width} bits per sample, expected 16; save the file as 16-bit PCM")
    if len(raw) != 2 * channels * frames:
        raise DamagedDataError(f"{path}: truncated, {len(raw) // (2 * channels):,} of {frames:,} samples")
    return np.frombuffer(raw, "<i2").reshape(-1, channels).T, rate
