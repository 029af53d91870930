"""The IDX format of MNIST: two zero bytes, a type, the number of axes, their sizes (big-endian), and the values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from ._files import DamagedDataError

UNSIGNED_BYTE = 8


def read_idx(path: Path, *, dims: int) -> torch.Tensor:
    """Read an IDX file of unsigned bytes with `dims` axes → uint8 tensor."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raise DamagedDataError(
            f"{path}: the file is compressed with gzip; decompress it, or delete it and fetch it again"
        )
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTE or raw[3] != dims:
        raise DamagedDataError(
            f"{path}: not an IDX file of unsigned bytes with {dims} axes; it starts with {raw[:4].hex(' ')}, "
            f"expected 00 00 08 {dims:02x}"
        )
    header = 4 + 4 * dims
    shape = tuple(np.frombuffer(raw[4:header], ">u4").tolist()) if len(raw) >= header else ()
    if len(shape) != dims or len(raw) - header != math.prod(shape):
        raise DamagedDataError(
            f"{path}: the header announces {' × '.join(map(str, shape)) or 'more axes than it has'}, "
            f"but {max(len(raw) - header, 0):,} bytes of values follow"
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy())
