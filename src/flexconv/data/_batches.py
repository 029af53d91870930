"""Batches for training: on the device, augmented and standardised there, the same however they are cut up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from .._arguments import positive_int, unknown_name
from .._registry import has_fast_version
from ..errors import ArgumentError, ArgumentTypeError
from ._augment import AUGMENTATIONS, augmentation_bits, crop_flip
from ._random import shuffled
from ._resize import resize_images
from ._splits import MappedRows, Split, nbytes

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class DeviceBatches:
    """The batches (inputs, labels, lengths or None) of a split.

    Order and augmentation follow from (seed, epoch, sample) alone. So an epoch that starts at batch k gives the same
    tensors, bit for bit, as one that came there; and `world_size` processes together see the samples of one process,
    augmented alike, each its contiguous share of every global batch.

    Arguments:
        split: a part of a data set. Up to `resident_bytes` it lives on the device whole; a larger one, and one that
            is mapped from disk, is read ahead by a thread.
        batch_size: samples of a global batch, over all processes.
        shuffle: a new order every epoch; False keeps the split's own.
        augment: "crop" (shifts by up to an eighth of the image), "crop_flip" (also mirrored by chance), or None.
        device, dtype: of the inputs. Standardisation itself runs in float32.
        epoch: what `iterate` and iteration take where no other is given; may be set.
        compiled: whether full batches are made by one compiled region, to rounding the same; may be set.
        drop_last: leave out a last batch that is not full.
        world_size, rank: number of processes and which one this is. Where a batch cannot be shared out evenly the
            first processes get one sample more; `global_size(k)` is what a mean over the batch divides by.

    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: str | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        epoch: int = 0,
        compiled: bool = False,
        drop_last: bool = False,
        world_size: int = 1,
        rank: int = 0,
        resident_bytes: int = 4 * 2**30,
    ) -> None:
        self.split = split
        self.batch_size = positive_int("batch_size", batch_size)
        self.world_size = positive_int("world_size", world_size)
        if not 0 <= rank < world_size:
            raise ArgumentError(f"rank must lie between 0 and world_size − 1 = {world_size - 1}; got {rank}")
        if batch_size < world_size:
            raise ArgumentError(
                f"batch_size must be at least world_size = {world_size}, a sample each; got {batch_size}"
            )
        if augment is not None and augment not in AUGMENTATIONS:
            unknown_name("augmentation", augment, AUGMENTATIONS)
        if augment is not None and len(split.inputs.shape) != 4 and split.layout is None:
            raise ArgumentError(
                f"augment={augment!r} is for images [N, C, H, W], and series with a layout of them; "
                f"got {list(split.inputs.shape)} without one"
            )
        if not dtype.is_floating_point:
            raise ArgumentTypeError(f"dtype must be a floating-point one; got {dtype}")
        if len(split) == 0 or (drop_last and len(split) < batch_size):
            raise ArgumentError(f"no batch: {len(split)} samples, batch_size={batch_size}, drop_last={drop_last}")
        self.shuffle, self.augment, self.drop_last = shuffle, augment, drop_last
        self.device, self.dtype = torch.device(device), dtype
        self.seed, self.epoch, self.rank, self.compiled = seed, epoch, rank, compiled
        self.resident = not isinstance(split.inputs, MappedRows) and nbytes(split.inputs) <= resident_bytes
        self._inputs = split.inputs.to(self.device) if self.resident else split.inputs  # type: ignore[union-attr]
        self._labels = split.labels.to(self.device)
        self._lengths = None if split.lengths is None else split.lengths.to(self.device)
        std = split.std.to(self.device, torch.float32)
        self._gain, self._offset = split.scale / std, -split.mean.to(std) / std
        self._tail = None if split.tail is None else split.tail.to(std)

    def __len__(self) -> int:
        """Batches of an epoch."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, *, epoch: int | None = None, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on."""
        if not 0 <= start <= len(self):
            raise ArgumentError(f"start must lie between 0 and the number of batches {len(self)}; got {start}")
        epoch = self.epoch if epoch is None else epoch
        return self._run(epoch, start)

    def global_size(self, batch: int) -> int:
        """Samples of batch number `batch` over all processes."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch must lie between 0 and {len(self) - 1}; got {batch}")
        return min(self.batch_size, len(self.split) - batch * self.batch_size)

    @property
    def own_size(self) -> int:
        """Samples of a whole batch that this process has."""
        return self.batch_size // self.world_size + (self.rank < self.batch_size % self.world_size)

    def _run(self, epoch: int, start: int) -> Iterator[Batch]:
        count = len(self.split)
        order = shuffled(count, seed=self.seed, epoch=epoch) if self.shuffle else torch.arange(count)
        placed = order.to(self.device)  # one copy an epoch, and all its random numbers at once
        bits = None if self.augment is None else augmentation_bits(self.seed, epoch, placed)
        batches = range(start, len(self))
        if self.resident:
            gathered = (None for _ in batches)
        else:
            gathered = _ahead(self._gather, (self._share(order, k) for k in batches))
        return (self._make(k, rows, placed, bits) for k, rows in zip(batches, gathered, strict=True))

    def _share(self, values: torch.Tensor, batch: int) -> torch.Tensor:
        """Of an epoch's values, one per sample, those of this process in a batch."""
        first = batch * self.batch_size
        return values[first : first + self.global_size(batch)].tensor_split(self.world_size)[self.rank]

    def _gather(self, index: torch.Tensor) -> torch.Tensor:
        inputs = self.split.inputs
        raw = inputs.take(index) if isinstance(inputs, MappedRows) else inputs[index]
        return raw.pin_memory() if self.device.type == "cuda" else raw

    def _make(self, batch: int, rows: torch.Tensor | None, order: torch.Tensor, bits: torch.Tensor | None) -> Batch:
        """A batch from its rows, or from those on the device; of an epoch's order and random bits."""
        index = self._share(order, batch)
        bits = None if bits is None else self._share(bits, batch)
        if rows is not None:
            rows = rows.to(self.device, non_blocking=True)
        return _prepare(self, rows, index, bits)


@has_fast_version("data.prepare")
def _prepare(of: DeviceBatches, rows: torch.Tensor | None, index: torch.Tensor, bits: torch.Tensor | None) -> Batch:
    """Gather, augment, resize, standardise: all on the device."""
    x = of._inputs[index] if rows is None else rows  # type: ignore[index]
    if bits is not None:
        layout = of.split.layout
        x = crop_flip(x if layout is None else layout.pictures(x), bits, flip=of.augment == "crop_flip")
        x = x if layout is None else layout.series(x)
    if of.split.resize_to is not None:
        x = resize_images(x, of.split.resize_to)
    x = torch.addcmul(of._offset, x.float(), of._gain)
    lengths = None if of._lengths is None else of._lengths[index]
    if lengths is not None:
        past = torch.arange(x.shape[-1], device=of.device) >= lengths[:, None]
        x = x.masked_fill(past[:, None], 0.0)
    if of._tail is not None:
        x = torch.cat([x, of._tail.expand(len(x), -1, -1)], dim=-1)
    return x.to(of.dtype), of._labels[index], lengths


def _ahead(function: Callable[[_Item], _Result], items: Iterable[_Item], *, depth: int = 3) -> Iterator[_Result]:
    """function(item) for each item, computed up to `depth` items ahead by a thread."""
    items = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="flexconv-data") as pool:
        waiting: deque[Future[_Result]] = deque(pool.submit(function, item) for item in islice(items, depth))
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in islice(items, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()
