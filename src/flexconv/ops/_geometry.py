"""Where a convolution reads and writes: padding, output sizes, and the taps that can matter.

One axis at a time. An input of length L and a kernel of K taps with dilation d give

    y[n] = Σ_j w[j] · x[n·stride + j·d − left],        x = 0 outside [0, L)

so a convolution is fixed by (left, right) padding. Either may be negative: that many samples at
that end are never read. A kernel whose outer taps were cropped away is the same convolution with
less padding, which is how a small FlexConv window costs only what it holds.
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

Pads = tuple[tuple[int, int], ...]
Padding = str | int | Sequence[str | int | Sequence[int]]

PADDING_NAMES = ("same", "valid", "causal")


class Geometry(NamedTuple):
    """Everything about a convolution that is not a tensor; one entry per spatial axis."""

    stride: tuple[int, ...]
    pads: Pads
    dilation: tuple[int, ...]
    groups: int


def span(taps: int, dilation: int) -> int:
    """Samples from the first to the last tap of a dilated kernel."""
    return dilation * (taps - 1) + 1


def resolve_padding(padding: Padding, kernel_size: Sequence[int], dilation: Sequence[int]) -> Pads:
    """`padding` in any accepted form as (left, right) per axis.

    A name ("same", "valid", "causal"), an int, or a sequence with one entry per axis: a name, an int
    or a (left, right) pair. "same" puts half the span on either side, so it wants an odd span.
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


def plain_padding(padding: Padding) -> Padding:
    """`padding` as it was written, with plain ints for whole numbers of other kinds."""
    if isinstance(padding, str):
        return padding
    if (number := as_int(padding)) is not None:
        return number
    return tuple(map(plain_padding, padding)) if isinstance(padding, Sequence) else padding  # type: ignore[return-value]


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
                    f"padding='same' centres the kernel and needs an odd kernel size; got {taps}. "
                    f"Use {taps - 1 or 1} or {taps + 1}, or padding='causal', or (left, right) integers"
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


def output_size(length: int, taps: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    """Number of outputs along one axis."""
    return (length + pads[0] + pads[1] - span(taps, dilation)) // stride + 1


def drop_unreachable_taps(x: torch.Tensor, weight: Kernel, geometry: Geometry) -> tuple[Kernel, Geometry]:
    """Cut off taps that only ever meet padding, whatever the output position.

    Tap j meets x[n·stride + j·d − left] for n = 0 … N−1; it can matter only where that range crosses
    [0, L). A kernel of 33 taps centred on 8 pixels is one of 15.
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
    """Negative padding as a view: the samples it names are narrowed away, what is left to pad is ≥ 0."""
    rest: list[tuple[int, int]] = []
    for axis, (left, right) in enumerate(pads):
        length = x.shape[2 + axis]
        if (left < 0 or right < 0) and max(0, -left) + max(0, -right) <= length:  # the plain case, also for symbols
            x = x.narrow(2 + axis, max(0, -left), length - max(0, -left) - max(0, -right))
            left, right = max(0, left), max(0, right)
        elif left < 0 or right < 0:
            start = min(max(0, -left), length)
            stop = max(start, length - max(0, -right))
            x = x.narrow(2 + axis, start, stop - start)
            # where more is skipped than there is, padding on the other side gives way
            missing = max(0, -left) + max(0, -right) - (length - (stop - start))
            left, right = max(0, left), max(0, right)
            taken = min(missing, left)
            left, right = left - taken, right - (missing - taken)
        rest.append((left, right))
    return x, tuple(rest)


def zero_pad(x: torch.Tensor, pads: Pads) -> torch.Tensor:
    """Zeros around the spatial axes of `x` [batch, channels, *size]."""
    if any(left or right for left, right in pads):
        x = F.pad(x, [amount for pair in reversed(pads) for amount in pair])
    return x
