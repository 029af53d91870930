"""Read image files with Pillow."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import MissingPackageError
from ._files import DamagedDataError

#: Formats that are read, as Pillow names them. Others may start programs, such as Ghostscript for EPS.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TGA", "TIFF", "WEBP")
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")  # formats with at most 16 bits, for which Pillow may use 32


@functools.cache
def image_suffixes() -> frozenset[str]:
    """File name extensions of the image formats that are read, such as ".png"."""
    known = import_pillow().registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind in FORMATS)


def read_image(path: Path, *, mode: str = "RGB") -> torch.Tensor:
    """Read an image → [C, H, W] uint8; `mode` is "RGB" or "L" (gray).

    The content of the file must have one of the `FORMATS`, whatever its name. Of an animation, the first frame is read.
    16-bit images are reduced to 8 bits.
    """
    image_module = import_pillow()
    if path.exists() and not path.is_file():
        raise DamagedDataError(f"{path} is not a regular file, expected an image")
    try:
        with image_module.open(path, formats=_available_formats()) as image:
            image.load()
            if image.mode.startswith(("I", "F")):
                image = image_module.fromarray(_eight_bits(image, path))
            pixels = np.array(image.convert(mode))
    except (DamagedDataError, FileNotFoundError, MemoryError):
        raise
    except image_module.DecompressionBombError as error:
        raise DamagedDataError(f"{path}: the image is too large: {error}; reduce its size") from error
    except image_module.UnidentifiedImageError as error:
        formats = ", ".join(_available_formats())
        raise DamagedDataError(f"{path}: the image cannot be read: it is damaged, or not one of {formats}") from error
    except Exception as error:  # its decoders raise errors of any kind for damaged files
        raise DamagedDataError(f"{path}: the image cannot be read: {error}; replace or remove the file") from error
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1).contiguous()


@functools.cache
def _available_formats() -> tuple[str, ...]:
    """The formats that this installation of Pillow can read."""
    image_module = import_pillow()
    image_module.init()
    return tuple(name for name in FORMATS if name in image_module.OPEN)


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
