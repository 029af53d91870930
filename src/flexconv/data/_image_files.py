"""Read image files with Pillow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import MissingPackageError
from ._files import DamagedDataError

UNREADABLE_FORMATS = ("BUFR", "GRIB", "HDF5", "MPEG", "PALM", "PDF")  # formats that Pillow identifies but cannot decode
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")  # formats with at most 16 bits, for which Pillow may use 32


@functools.cache
def image_suffixes() -> frozenset[str]:
    """File name extensions that this installation of Pillow can read, such as ".png"."""
    known = import_pillow().registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind not in UNREADABLE_FORMATS)


def read_image(path: Path, *, mode: str = "RGB") -> torch.Tensor:
    """Read an image → [C, H, W] uint8; `mode` is "RGB" or "L" (gray).

    Of an animation, the first frame is read. 16-bit images are reduced to 8 bits.
    """
    image_module = import_pillow()
    try:
        with image_module.open(path) as image:
            image.load()
            if image.mode.startswith(("I", "F")):
                image = image_module.fromarray(_eight_bits(image, path))
            pixels = np.array(image.convert(mode))
    except DamagedDataError:
        raise
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        raise DamagedDataError(f"{path}: the image cannot be read: {error}") from error
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1).contiguous()


def _eight_bits(image: Any, path: Path) -> np.ndarray:
    """A 16-bit gray image → [H, W] uint8; 65535 becomes 255. (Pillow itself would clip values at 255.)"""
    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN_BIT_FORMATS)
    if not sixteen:
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise DamagedDataError(
            f"{path}: the range of pixels that are {kind} is unknown; "
            "save the image with 8 or 16 bits per channel, or save its values in an .npz file"
        )
    return ((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8)


def import_pillow() -> Any:
    """Import PIL.Image, or raise an error that names the extra which installs it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("reading image files needs Pillow", extra="train") from error
    return Image
