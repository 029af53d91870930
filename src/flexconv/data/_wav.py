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
    except (wave.Error, EOFError, RuntimeError) as error:  # the last for a chunk that is longer than the file
        raise DamagedDataError(
            f"{path}: the .wav file cannot be read: {error or 'truncated'}; expected PCM with 16 bits per sample"
        ) from error
    if width != 2:
        raise DamagedDataError(f"{path}: {8 * width} bits per sample, expected 16; save the file as 16-bit PCM")
    if rate < 1:
        raise DamagedDataError(f"{path}: the header states a sampling rate of {rate} Hz")
    if len(raw) != 2 * channels * frames:
        raise DamagedDataError(f"{path}: truncated, {len(raw) // (2 * channels):,} of {frames:,} samples")
    _check_chunks(path, channels, frames)
    return np.frombuffer(raw, "<i2").reshape(-1, channels).T, rate


def _check_chunks(path: Path, channels: int, frames: int) -> None:
    """Raise an error if the header announces a part of a sample, or too few samples: something else follows them."""
    content = path.read_bytes()
    position, names = 12, []  # after the header of the file
    while position + 8 <= len(content):
        name, length = content[position : position + 4], int.from_bytes(content[position + 4 : position + 8], "little")
        if b"data" in names and (not all(32 <= byte < 127 for byte in name) or position + 8 + length > len(content)):
            rest = len(content) - position
            raise DamagedDataError(
                f"{path}: the header announces {frames:,} samples, but {rest:,} more bytes follow; save the file again"
            )
        if name == b"data" and length % (2 * channels):
            raise DamagedDataError(
                f"{path}: the header announces {length:,} bytes, which is no whole number of samples of "
                f"{2 * channels} bytes; save the file again"
            )
        names.append(name)
        position += 8 + length + length % 2  # chunks are padded to an even length
