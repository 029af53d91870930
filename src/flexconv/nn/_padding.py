"""Padding of a signal at its ends: how many samples a part of a kernel needs there, and what their values are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ..errors import ArgumentError
from ..ops import Pads
from ._grid import TapRange

if TYPE_CHECKING:
    from ._conv import FlexConvNd

#: names for the argument `padding_mode` of a layer, and what `torch.nn.functional.pad` calls them
PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


def crop_pads(pads: Pads, window: Sequence[TapRange], size: Sequence[int], dilation: Sequence[int]) -> Pads:
    """The padding for a window of a grid, from the padding for all `size` taps of the grid.

    The taps of the window meet the same samples as in the whole grid. Negative padding skips samples.
    """
    return tuple(
        (left - start * step, right - (taps - stop) * step)
        for (left, right), (start, stop), taps, step in zip(pads, window, size, dilation, strict=True)
    )


def check_padding_fits(layer: FlexConvNd, sizes: Sequence[int], pads: Pads) -> None:
    """Modes other than "zeros" cannot pad by more samples than there are."""
    for size, whole in zip(sizes, pads, strict=True):
        widest = {"reflect": size - 1, "circular": size}.get(layer.padding_mode, max(whole))
        if max(whole) > widest:
            raise ArgumentError(
                f"padding_mode={layer.padding_mode!r} can pad an axis of {size} samples by at most {widest}; "
                f"kernel_size {layer.kernel_size} with padding={layer.padding!r} may need {max(whole)}: "
                f"choose a smaller kernel_size or padding_mode='zeros'"
            )


def pad_by_mode(x: torch.Tensor, pads: Pads, mode: str) -> tuple[torch.Tensor, Pads]:
    """Pad x [batch, channels, *size] by reflection, replication or periodically.

    Returns it with the padding that is left, which is negative or 0.
    """
    amounts = [max(0, amount) for pair in reversed(pads) for amount in pair]
    x = F.pad(x, amounts, mode=PADDING_MODES[mode])
    return x, tuple((min(0, left), min(0, right)) for left, right in pads)
