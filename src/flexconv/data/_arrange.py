"""The order of the axes of a user's arrays: letters such as "CL", and the rule for arrays without them.

C is the channel axis, L the time axis of a series, H and W are the rows and columns of an image. The axis of the
samples comes first and has no letter.

    letters     an array [N, …] contains
    L           series of one channel
    CL, LC      series with the channels first or last
    HW          gray images
    CHW, HWC    images with the channels first or last
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from .._arguments import as_int, check_name
from ..errors import ArgumentError, ArgumentTypeError
from ._files import DamagedDataError

LAYOUTS = ("L", "CL", "LC", "HW", "CHW", "HWC")
MEANINGS = {
    "L": "series of {0} steps",
    "CL": "series of {1} steps with {0} channels",
    "LC": "series of {0} steps with {1} channels",
    "HW": "gray images of {0} × {1} pixels",
    "CHW": "images of {1} × {2} pixels with {0} channels",
    "HWC": "images of {0} × {1} pixels with {2} channels",
}
MOST_IMAGE_CHANNELS = 4
LEAST_IMAGE_SIDE = 8  # an axis that is shorter is not taken for the side of an image
MOST_ASPECT = 2  # of the sides of an image without a channel axis


def arrange(array: np.ndarray, layout: str | None, where: str) -> np.ndarray:
    """Bring samples [N, …] into the order [N, C, L] or [N, C, H, W].

    Without a layout, the channels come first, and [N, H, W] are gray images if they are bytes. A shape that suggests
    anything else is an error which names the layouts that are possible. `where` names the array in messages.
    """
    if layout is None:
        layout = _guess(array, where)
    check_layout(layout)
    if array.ndim != len(layout) + 1:
        axes = ", ".join(("N", *layout))
        raise DamagedDataError(f"{where}: shape {array.shape}, but data.layout={layout} means [{axes}]")
    if "C" not in layout:
        return array[:, None]
    return np.ascontiguousarray(np.moveaxis(array, 1 + layout.index("C"), 1))


def check_layout(layout: object) -> None:
    """Raise an error unless `layout` is None or one of `LAYOUTS`."""
    if layout is not None:
        check_name("layout", layout, LAYOUTS)


def reshape_rows(rows: np.ndarray, shape: Sequence[int] | int | None, layout: str | None, where: str) -> np.ndarray:
    """Reshape flattened samples [N, n] to `shape`, then arrange them; without a shape they are series of one channel.

    Two numbers are the height and the width of gray images, and three describe color images, unless a layout says
    otherwise.
    """
    check_layout(layout)
    sizes = (rows.shape[1],) if shape is None else check_shape(shape)
    if math.prod(sizes) != rows.shape[1]:
        product = " · ".join(map(str, sizes))
        raise DamagedDataError(
            f"{where}: a sample has {rows.shape[1]:,} values, but data.shape={list(sizes)} needs {product} = "
            f"{math.prod(sizes):,}"
        )
    if layout is None:
        layout = _layout_of_shape(sizes)
    if len(layout) != len(sizes):
        needed = f"data.layout={layout} has {len(layout)} axes"
        if shape is None:
            raise ArgumentError(f"{needed}, but {where} has one row of values per sample; set data.shape, too")
        raise ArgumentError(f"{needed}, but data.shape={list(sizes)} has {len(sizes)}")
    return arrange(rows.reshape(len(rows), *sizes), layout, where)


def check_shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    """Return the shape of a sample as one to three positive integers."""
    entries = [shape] if isinstance(shape, int) else shape
    if isinstance(entries, str) or not isinstance(entries, Sequence) or any(as_int(entry) is None for entry in entries):
        raise ArgumentTypeError(f"data.shape must be a list of integers, such as [28, 28]; got {shape!r}")
    sizes = tuple(int(entry) for entry in entries)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ArgumentError(f"data.shape must have one to three positive integers, such as [28, 28]; got {shape!r}")
    return sizes


def arrange_for_network(
    array: np.ndarray, layout: str | None, *, channels: int, size: Sequence[int], where: str
) -> np.ndarray:
    """Arrange samples for a network that was trained on samples [`channels`, *`size`].

    The network decides what is ambiguous otherwise. Flattened samples are reshaped, and a single sample gets an axis.
    """
    dims = len(size)
    possible = [letters for letters in LAYOUTS if len(letters.replace("C", "")) == dims]
    if layout is not None:
        check_layout(layout)
        if layout not in possible:
            raise ArgumentError(f"data.layout={layout} does not fit the network, which needs one of {possible}")
        return arrange(array if array.ndim > len(layout) else array[None], layout, where)
    if array.ndim == 2 and dims == 2 and array.shape[1] == channels * math.prod(size):
        return array.reshape(len(array), channels, *size)
    for batch in (array, array[None]):
        for letters in possible:
            found = _channels(batch.shape[1:], letters)
            if found == channels:
                return arrange(batch, letters, where)
    axes = {1: "length", 2: "height, width"}[dims]
    raise DamagedDataError(f"{where}: shape {array.shape}, but the network needs [N, {channels}, {axes}]")


def _channels(shape: Sequence[int], layout: str) -> int | None:
    """The number of channels of samples with this shape in this layout; None if the number of axes differs."""
    if len(shape) != len(layout):
        return None
    return shape[layout.index("C")] if "C" in layout else 1


def _layout_of_shape(shape: Sequence[int]) -> str:
    if len(shape) < 3:
        return ("L", "HW")[len(shape) - 1]
    last = shape[2] <= MOST_IMAGE_CHANNELS < shape[0]
    return "HWC" if last else "CHW"


def _guess(array: np.ndarray, where: str) -> str:
    """The layout of an array [N, …] by its shape, or an error that names the possible ones."""
    if array.ndim == 4:
        if array.shape[3] <= MOST_IMAGE_CHANNELS < array.shape[1]:
            raise _ambiguous(array, "has the channels last", ("HWC", "CHW"), where)
        return "CHW"
    if array.ndim == 2:
        raise DamagedDataError(
            f"{where}: shape {array.shape}, expected [N, C, H, W] or [N, C, L]; set data.layout=L if each row is a "
            "series, or data.shape=[H, W] if it is a flattened image"
        )
    if array.ndim != 3:
        raise DamagedDataError(
            f"{where}: shape {array.shape}, expected [N, C, H, W] or [N, C, L] (C = 1 for a single channel)"
        )
    short, long = sorted(array.shape[1:])
    like_image = short >= LEAST_IMAGE_SIDE and long <= MOST_ASPECT * short
    if like_image and array.dtype == np.uint8:
        return "HW"
    if like_image or array.shape[1] == array.shape[2]:
        raise _ambiguous(array, "may be images or series", ("HW", "LC", "CL"), where)
    if array.shape[1] > array.shape[2]:
        raise _ambiguous(array, "seems to have the channels last", ("LC", "CL"), where)
    return "CL"


def _ambiguous(array: np.ndarray, problem: str, layouts: Sequence[str], where: str) -> DamagedDataError:
    meanings = {letters: MEANINGS[letters].format(*array.shape[1:]) for letters in layouts}
    meanings = {letters: re.sub(r"\b1 (step|channel)s", r"1 \1", text) for letters, text in meanings.items()}
    ways = " or ".join(f"data.layout={letters} ({text})" for letters, text in meanings.items())
    return DamagedDataError(f"{where}: shape {array.shape} {problem}; set {ways}")
