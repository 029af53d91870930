"""The IDX format of MNIST: two zero bytes, a type, the number of axes, their sizes (big-endian), and the values."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import torch

from ._files import DamagedDataError, read_contents

UNSIGNED_BYTE = 8
DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # type byte → values, big-endian


def is_idx(path: Path) -> bool:
    """Whether the name of a file is one of an IDX file, such as train-images-idx3-ubyte.gz or images.idx."""
    name = path.name.lower().removesuffix(".gz")
    return re.search(r"[-._]idx\d-(ubyte|[a-z0-9]+)$", name) is not None or name.endswith(".idx")


def read_idx_array(path: Path) -> np.ndarray:
    """Read an IDX file of any type, also compressed with gzip → array in the native byte order."""
    raw = read_contents(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in DTYPES:
        raise DamagedDataError(f"{path}: not an IDX file; it starts with {raw[:4].hex(' ')}, expected 00 00 08")
    dtype, header = np.dtype(DTYPES[raw[2]]), 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:header], ">u4").tolist()) if len(raw) >= header else ()
    if len(shape) != raw[3] or len(raw) - header != math.prod(shape) * dtype.itemsize:
        raise DamagedDataError(_wrong_count(path, shape, len(raw) - header))
    return np.frombuffer(raw, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def _wrong_count(path: Path, shape: tuple[int, ...], follows: int) -> str:
    announced = " × ".join(map(str, shape)) or "more axes than it has"
    return f"{path}: the header announces {announced}, but {max(follows, 0):,} bytes of values follow"


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
        raise DamagedDataError(_wrong_count(path, shape, len(raw) - header))
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy())
