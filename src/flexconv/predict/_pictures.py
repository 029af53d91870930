"""Pictures in files."""

from __future__ import annotations

from pathlib import Path

from ..data import read_image, resize_images
from ..errors import ArgumentError
from ..models import Inputs
from ._target import Sample, Target

MODES = {1: "L", 3: "RGB"}


def read_picture(file: Path, target: Target) -> list[Sample]:
    """Read a picture in color or gray, as the network needs it, and resize it as training images are resized."""
    if target.picture_size is None:
        raise ArgumentError(f"{file}: a picture, but the network takes {target.describe()}")
    if target.picture_channels not in MODES:
        raise ArgumentError(
            f"{file}: a picture has 1 or 3 channels, but the network takes {target.picture_channels}: save the samples "
            "in an .npz file"
        )
    factor = pixel_factor(target.inputs, file)
    image = read_image(file, mode=MODES[target.picture_channels])
    if target.inputs.images is None:
        size, scale = target.place(image.shape[1:], file)
    else:
        size, scale = target.inputs.images.size, (1.0,)
    image = resize_images(image[None], (size[0], size[1]))[0]
    return [Sample(image if factor == 1 else image * factor, scale)]


def pixel_factor(inputs: Inputs, file: Path) -> float:
    """What pixels from 0 to 255 are multiplied by to have the range of the training data.

    Scaled training data with a known range are on [0, 1]. Of arrays of floats only the statistics are known. A mean and
    a standard deviation are possible for values on [0, m] only if std² ≤ mean · (m − mean).
    """
    if inputs.scale != 1:
        return 1 / 255 / inputs.scale if abs(inputs.scale * 255 - 1) > 1e-6 else 1.0
    for top in (1.0, 255.0):
        lowest = 0.0 if top == 1 else 2.0  # standardized data may have a mean just above 0
        if all(lowest <= m <= top and s**2 <= m * (top - m) for m, s in zip(inputs.mean, inputs.std, strict=True)):
            return top / 255
    raise ArgumentError(
        f"{file}: the range of pixels is not known to the network, which was trained on arrays of floats with mean "
        f"{inputs.mean[0]:.3g} and standard deviation {inputs.std[0]:.3g}: save the picture in an .npz file "
        "in the same way"
    )
