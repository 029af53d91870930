"""Reading image files with Pillow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import MissingPackageError
from ._files import DamagedDataError

NOT_READ = ("BUFR", "GRIB", "HDF5", "MPEG", "PALM", "PDF")  # formats that Pillow knows, but reads no pixels of
SIXTEEN = ("PNG", "PPM")  # formats of at most 16 bits, which Pillow may hold in 32


@functools.cache
def picture_suffixes() -> frozenset[str]:
    """Endings of the image files that Pillow reads here, as in ".png"."""
    known = import_pillow().registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind not in NOT_READ)


def read_picture(path: Path, *, mode: str = "RGB") -> torch.Tensor:
    """Pixels [C, H, W] uint8; mode "RGB" or "L" (grey). The first frame of an animation; 8 of 16 bits."""
    image_module = import_pillow()
    try:
        with image_module.open(path) as image:
            image.load()
            if image.mode.startswith(("I", "F")):
                image = image_module.fromarray(_eight_bits(image, path))
            pixels = np.array(image.convert(mode))
    except DamagedDataError:
        raise
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's ways to say that a file is broken
        raise DamagedDataError(f"{path}: not a readable image: {error}") from error
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1).contiguous()


def _eight_bits(image: Any, path: Path) -> np.ndarray:
    """A grey image of 16 bits → [H, W] uint8, 65535 as 255. Pillow would cut it off at 255."""
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN)
    if not sixteen:
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise DamagedDataError(
            f"{path}: its pixels are {kind}, whose range is not known; "
            "save it with 8 or 16 bits per channel, or put the numbers into an .npz"
        )
    return ((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8)


def import_pillow() -> Any:
    """Import PIL.Image, or raise an error that names the extra which installs it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError('reading image files needs Pillow: pip install "flexconv[train]"') from error
    return Image
