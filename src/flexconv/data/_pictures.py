"""Reading image files with Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ._files import DamagedDataError


def read_picture(path: Path, *, mode: str = "RGB") -> torch.Tensor:
    """Pixels [C, H, W] uint8; mode "RGB" or "L" (grey)."""
    image_module = _pillow()
    try:
        with image_module.open(path) as image:
            pixels = np.array(image.convert(mode))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow's ways to say that a file is broken
        raise DamagedDataError(f"{path}: not a readable image: {error}") from error
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1).contiguous()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('reading image files needs Pillow: pip install "flexconv[train]"') from error
    return Image
