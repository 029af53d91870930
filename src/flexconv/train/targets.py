"""Targets that generators are fitted to: kernels with a known spectrum, and images.

gabor       sin(f x) sin(f y) exp(−(x² + y²) / 2w²), one target per frequency f in rad per unit
random      uniform noise: the array of the paper's authors if it is in the data folder, else our own
alexnet     a filter of AlexNet's first layer, resampled to a larger grid
kodak       the Kodak photographs
flower      a synthetic flower in the middle of a black canvas, with a margin
PATH        an image file
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .. import data as datasets
from .._arguments import check_name, per_axis, per_axis_floats, positive, positive_int, unknown_name
from .._files import expand_home
from ..data import DamagedDataError, MissingDataError, data_root, read_image, resize_images
from ..errors import ArgumentError, ArgumentTypeError

RANDOM_FILE = "alexnet/flexconv_random_kernel.npy"
ALEXNET_FILE = "alexnet/alexnet_conv1_weight_64x3x11x11_f32.npy"
MODES = {"color": "RGB", "gray": "L", "colour": "RGB", "grey": "L"}


@dataclass(frozen=True, eq=False)
class Targets:
    """Functions on a grid over [−1, 1]²: values [n, channels, height, width] and n names.

    `pictures`: whether the targets are images, with values on [0, 1], for which the PSNR is computed. `note` is stated
    with the results.
    """

    names: tuple[str, ...]
    values: torch.Tensor
    pictures: bool
    note: str = ""


def load_targets(target: str, *, root: str | os.PathLike[str] | None = None, **options: Any) -> Targets:
    """Load targets by name, or one image file. `options` are arguments of the function of that name in this module."""
    make = TARGETS.get(target)
    if make is None and not expand_home(target).is_file():
        known = ", ".join(map(repr, TARGETS))
        raise ArgumentError(f"unknown target {target!r}: choose one of {known}, or an image file")
    known = [name for name in inspect.signature(make or picture).parameters if name not in ("root", "path")]
    for option in options:
        if option not in known:
            unknown_name("option", option, known, of=f"of target {target!r}")
    return picture(expand_home(target), **options) if make is None else make(data_root(root), **options)


def gabor(
    root: Path,  # noqa: ARG001
    *,
    frequencies: Sequence[float] = (1.0, 4.0, 16.0, 64.0),
    size: int = 33,
    width: float = 0.33,
) -> Targets:
    """Return Gabor functions, one per frequency.

    A grid of 33 points represents frequencies up to 16π ≈ 50 rad per unit, so the last default is aliased, as in the
    paper. The peak of the Gaussian is 1, so no target exceeds 1.
    """
    x = torch.linspace(-1.0, 1.0, positive_int("size", size), dtype=torch.float64)
    envelope = torch.exp(-(x**2) / (2 * positive("width", width) ** 2))
    numbers = _listed("frequencies", frequencies)
    numbers = per_axis_floats("frequencies", numbers, len(numbers))
    lines = [torch.sin(f * x) * envelope for f in numbers]
    values = torch.stack([line[:, None] * line for line in lines])[:, None]
    return Targets(tuple(f"gabor-{f:g}" for f in numbers), values.float(), pictures=False)


def random(root: Path, *, size: int = 33, seed: int | None = None) -> Targets:
    """Return uniform noise on [0, 1]: the authors' array, or our own if a seed is given or their file is missing."""
    path = root / RANDOM_FILE
    if seed is None and size == 33 and path.is_file():
        values = torch.from_numpy(_array(path, (1, 33, 33))).float()[None]
        return Targets(("random",), values, pictures=False, note="the authors' random kernel")
    generator = np.random.default_rng(seed or 0)
    values = torch.from_numpy(generator.random((1, 1, positive_int("size", size), size)))
    return Targets(("random",), values.float(), pictures=False, note=f"our own random kernel, seed {seed or 0}")


def alexnet(root: Path, *, index: int = 0, channel: int | None = 0, size: int = 33) -> Targets:
    """Return one channel (None: all three) of one of the 64 filters, resampled bilinearly from 11 to `size` points."""
    path = root / ALEXNET_FILE
    if not path.is_file():
        raise MissingDataError(
            f"{path} does not exist. It is the first weight of torchvision's trained AlexNet; create it with "
            'numpy.save(PATH, torchvision.models.alexnet(weights="DEFAULT").features[0].weight.detach().numpy())'
        )
    weight = torch.from_numpy(_array(path, (64, 3, 11, 11)))
    if not 0 <= index < 64 or (channel is not None and not 0 <= channel < 3):
        raise ArgumentError(f"AlexNet has filters 0 to 63 with channels 0 to 2; got filter {index}, channel {channel}")
    values = weight[index : index + 1] if channel is None else weight[index, channel][None, None]
    if positive_int("size", size) != 11:
        values = F.interpolate(values, size=(size, size), mode="bilinear", align_corners=False)
    return Targets((f"alexnet-{index}",), values, pictures=False)


def kodak(root: Path, *, images: Sequence[str] | None = None, size: int | tuple[int, int] | None = None) -> Targets:
    """Return the 24 photographs or the named ones (kodim01, …), all in landscape format.

    They have 512 × 768 pixels, or are resized to `size` (height, width).
    """
    found = datasets.load("kodak", root=root)
    names = found.class_names if images is None else tuple(_listed("images", images))
    for name in names:
        if name not in found.class_names:
            unknown_name("Kodak image", name, found.class_names)
    assert isinstance(found.train.inputs, torch.Tensor)
    pixels = found.train.inputs[[found.class_names.index(name) for name in names]]
    return Targets(
        names, _pixels(pixels, size), pictures=True, note="" if size is None else f"at {_size(pixels, size)}"
    )


def flower(root: Path, *, size: int = 48, margin: float = 0.0) -> Targets:  # noqa: ARG001
    """Return a flower of `size` × `size` pixels with five petals, on a canvas of (1 + `margin`) times that size."""
    if not 0 <= margin < float("inf"):
        raise ArgumentError(f"margin must be a finite fraction of the size of the flower, at least 0; got {margin}")
    pixels = positive_int("size", size) + 2 * round(size * margin / 2)
    line = (torch.arange(pixels, dtype=torch.float64) - (pixels - 1) / 2) * 2 / size  # the flower spans −1 to 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    radius, angle = torch.hypot(x, y), torch.atan2(y, x)
    veins = 0.5 + 0.5 * torch.cos(45 * angle) * radius
    petals = torch.stack([1 - 0.3 * radius, 0.15 + 0.5 * veins, 0.4 + 0.5 * radius * veins])
    heart = torch.tensor([0.95, 0.8, 0.1])[:, None, None] * (0.75 + 0.25 * torch.cos(60 * radius))
    drawn = torch.where(radius < 0.25, heart, petals) * (radius < 0.6 + 0.4 * torch.cos(5 * angle))
    return Targets(("flower",), drawn.clamp(0, 1).float()[None], pictures=True)


def picture(path: Path, *, mode: str = "color", size: int | tuple[int, int] | None = None) -> Targets:
    """Return an image file in "color" or "gray", resized to `size` (height, width) if given."""
    check_name("mode", mode, MODES)
    return Targets((path.stem,), _pixels(read_image(path, mode=MODES[mode])[None], size), pictures=True)


TARGETS: Mapping[str, Callable[..., Targets]] = {
    "gabor": gabor,
    "random": random,
    "alexnet": alexnet,
    "kodak": kodak,
    "flower": flower,
}


def _pixels(images: torch.Tensor, size: int | tuple[int, int] | None) -> torch.Tensor:
    """Convert bytes [n, C, H, W] to floats on [0, 1]."""
    return (images if size is None else resize_images(images, size)).float() / 255


def _size(images: torch.Tensor, size: int | tuple[int, int] | None) -> str:
    height, width = images.shape[2:] if size is None else per_axis("size", size, 2, minimum=1)
    return f"{width} × {height} pixels"


def _listed(name: str, values: object) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ArgumentTypeError(f"{name} must be a list; got {values!r}")
    return list(values)


def _array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    array = np.load(path, allow_pickle=False)
    if array.shape != shape or array.dtype.kind != "f":
        raise DamagedDataError(f"{path}: {array.dtype} of shape {array.shape}, expected floats of shape {shape}")
    return array
