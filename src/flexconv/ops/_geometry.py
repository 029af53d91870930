"""Geometry of a convolution: padding, output sizes, and which taps and samples can contribute.

Along one axis, an input of length L and a kernel of K taps with dilation d give

    y[n] = Σ_j w[j] · x[n·stride + j·d − left],        x = 0 outside [0, L)

The padding is a pair (left, right) per axis. Negative padding means that samples at that end are never read. Removing
outer taps of a kernel gives a smaller kernel with less padding, so a FlexConv with a small mask costs as much as an
ordinary convolution with a small kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F

from .._arguments import as_int, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ._factored import FactoredKernel

Kernel = TypeVar("Kernel", bound=torch.Tensor | FactoredKernel)

Padding = str | int | Sequence[str | int | Sequence[int]]
"""Padding as a user writes it: "same", "valid", "causal", an int, or a sequence with one entry per axis.

An entry of a sequence is a name, an int or a (left, right) pair.
"""

Pads = tuple[tuple[int, int], ...]
"""Resolved padding: one (left, right) pair per axis. Negative amounts skip samples."""

PADDING_NAMES = ("same", "valid", "causal")


class Geometry(NamedTuple):
    """Everything that defines a convolution besides its tensors. Tuples have one entry per spatial axis."""

    stride: tuple[int, ...]
    pads: Pads
    dilation: tuple[int, ...]
    groups: int


def span(taps: int, dilation: int) -> int:
    """Return the number of samples from the first to the last tap of a dilated kernel."""
    return dilation * (taps - 1) + 1


def output_size(length: int, taps: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    """Return the number of outputs along one axis, for an input of `length` samples and a kernel of `taps` taps."""
    return (length + pads[0] + pads[1] - span(taps, dilation)) // stride + 1


def output_sizes(size: Sequence[int], taps: Sequence[int], geometry: Geometry) -> tuple[int, ...]:
    """Return the number of outputs along each axis."""
    axes = zip(size, taps, geometry.stride, geometry.pads, geometry.dilation, strict=True)
    return tuple(output_size(*axis) for axis in axes)


def resolve_padding(padding: Padding, kernel_size: Sequence[int], dilation: Sequence[int]) -> Pads:
    """Return padding in any accepted form as a (left, right) pair per axis.

    Arguments:
        padding: A name, an int, or a sequence with one entry per axis: a name, an int or a (left, right) pair. "same"
            pads both sides equally, so that with stride 1 the output is as large as the input. It requires an odd
            kernel size or an even dilation. "causal" pads the left side only. "valid" does not pad.
        kernel_size: Number of taps per axis.
        dilation: Dilation per axis.

    """
    dims = len(kernel_size)
    if isinstance(padding, str) or as_int(padding) is not None:
        entries: Sequence[str | int | Sequence[int]] = (padding,) * dims  # type: ignore[assignment]
    elif isinstance(padding, Sequence):
        entries = padding
    else:
        raise ArgumentTypeError(f"padding must be a name, an int or one entry per axis; got {padding!r}")
    if len(entries) != dims:
        raise ArgumentError(f"padding must have {dims} entries, one per axis; got {len(entries)}: {padding!r}")
    return tuple(_resolve_axis(*each) for each in zip(entries, kernel_size, dilation, strict=True))


def _resolve_axis(entry: str | int | Sequence[int], taps: int, dilation: int) -> tuple[int, int]:
    reach = span(taps, dilation) - 1
    if isinstance(entry, str):
        if entry == "valid":
            return 0, 0
        if entry == "causal":
            return reach, 0
        if entry == "same":
            if reach % 2:
                raise ArgumentError(
                    f"padding='same' centers the kernel and requires an odd kernel size; got {taps}. "
                    f"Use {taps - 1 or 1} or {taps + 1}, padding='causal', or a (left, right) pair"
                )
            return reach // 2, reach // 2
        unknown_name("padding", entry, PADDING_NAMES)
    if (both := as_int(entry)) is not None:
        return both, both
    if isinstance(entry, Sequence) and len(entry) == 2:
        left, right = map(as_int, entry)
        if left is not None and right is not None:
            return left, right
    raise ArgumentTypeError(f"padding of one axis must be a name, an int or a (left, right) pair; got {entry!r}")


def plain_padding(padding: Padding) -> Padding:
    """Return `padding` in the same form, with Python ints in place of other integer types such as those of NumPy."""
    if isinstance(padding, str):
        return padding
    if (number := as_int(padding)) is not None:
        return number
    return tuple(map(plain_padding, padding)) if isinstance(padding, Sequence) else padding  # type: ignore[return-value]


def drop_unreachable_taps(x: torch.Tensor, weight: Kernel, geometry: Geometry) -> tuple[Kernel, Geometry]:
    """Remove outer taps that are only ever multiplied by padding.

    Tap j is multiplied by x[n·stride + j·d − left] for n = 0 … N − 1. It contributes only if these positions overlap
    [0, L). For example, a centered kernel of 33 taps on 8 pixels is reduced to 15 taps.
    """
    pads = list(geometry.pads)
    for axis, (stride, (left, right), dilation) in enumerate(
        zip(geometry.stride, geometry.pads, geometry.dilation, strict=True)
    ):
        length, taps = x.shape[2 + axis], weight.shape[2 + axis]
        last = (output_size(length, taps, stride, (left, right), dilation) - 1) * stride
        first_tap = max(0, -((last - left) // dilation))  # smallest j with last − left + j·d ≥ 0
        stop_tap = min(taps, (length - 1 + left) // dilation + 1)  # largest j with j·d − left ≤ L − 1, plus one
        if 0 < first_tap < stop_tap or first_tap < stop_tap < taps:
            weight = weight.narrow(2 + axis, first_tap, stop_tap - first_tap)  # type: ignore[assignment]
            pads[axis] = left - first_tap * dilation, right - (taps - stop_tap) * dilation
    return weight, geometry._replace(pads=tuple(pads))


def skip_unread_samples(x: torch.Tensor, pads: Pads) -> tuple[torch.Tensor, Pads]:
    """Replace negative padding by a view of the samples that are read. Returns the view and the rest of the padding."""
    rest: list[tuple[int, int]] = []
    for axis, (left, right) in enumerate(pads):
        length = x.shape[2 + axis]
        if (left < 0 or right < 0) and max(0, -left) + max(0, -right) <= length:  # usual, also with symbolic sizes
            x = x.narrow(2 + axis, max(0, -left), length - max(0, -left) - max(0, -right))
            left, right = max(0, left), max(0, right)
        elif left < 0 or right < 0:
            start = min(max(0, -left), length)
            stop = max(start, length - max(0, -right))
            x = x.narrow(2 + axis, start, stop - start)
            # more samples are skipped than there are: the rest is skipped from the padding of the other side
            missing = max(0, -left) + max(0, -right) - (length - (stop - start))
            left, right = max(0, left), max(0, right)
            taken = min(missing, left)
            left, right = left - taken, right - (missing - taken)
        rest.append((left, right))
    return x, tuple(rest)


def zero_pad(x: torch.Tensor, pads: Pads) -> torch.Tensor:
    """Pad the spatial axes of x [batch, channels, *size] with zeros."""
    if any(left or right for left, right in pads):
        x = F.pad(x, [amount for pair in reversed(pads) for amount in pair])
    return x
