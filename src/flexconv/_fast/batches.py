"""Batches of training data, prepared by one compiled region."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from .._registry import plain_version, provide
from .regions import Region, compiled_regions

if TYPE_CHECKING:
    from ..data import Batch, DeviceBatches


@functools.cache
def _region() -> Region[..., Batch]:
    return Region(plain_version("data.prepare"), dynamic=False)


def prepare(batches: DeviceBatches, rows: torch.Tensor | None, index: torch.Tensor, bits: torch.Tensor | None) -> Batch:
    """Prepare a full batch by compiled code, if `batches.compiled` is set.

    Images that are resized are left to the plain version: they are resized by exact integer sums, which compilation
    does not make faster.
    """
    if not batches.compiled or len(index) != batches.local_batch_size or batches.split.resize_to is not None:
        return NotImplemented
    with compiled_regions():
        return _region()(batches, rows, index, bits)


provide("data.prepare", prepare)
