"""Batches for training that are augmented and standardized on the device, and independent of how work is divided."""

from __future__ import annotations

import warnings
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
    """Iterates over the batches of a split as tuples (inputs, labels, lengths or None).

    Order and augmentation depend only on (seed, epoch, sample). An epoch that starts at batch k therefore yields
    exactly the same tensors as one that started at batch 0. With `world_size` processes, each gets a contiguous share
    of every global batch, with the same samples and augmentation as a single process.

    Arguments:
        split: the split of a data set. If it is smaller than `resident_bytes`, it is kept on the device. A larger
            split, or one that is memory-mapped, is read by a background thread.
        batch_size: number of samples in a global batch, over all processes.
        shuffle: use a new order in every epoch. If False, samples keep their order in the split.
        augment: "crop" (shift by up to an eighth of the image), "crop_flip" (also flip at random), or None.
        device: device of the batches.
        dtype: dtype of the inputs. They are standardized in float32.
        seed: seed of order and augmentation.
        epoch: the epoch that iteration uses by default. This attribute can be changed.
        compiled: prepare full batches with a compiled function. Results are equal up to rounding. This attribute can be
            changed.
        drop_last: omit the last batch if it is not full.
        world_size: number of processes.
        rank: index of this process. If a batch cannot be divided evenly, the first processes get one more sample.
            Divide by `global_size(k)` to average over a batch.
        resident_bytes: the largest split that is kept on the device, in bytes.

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
            raise ArgumentError(f"rank must be between 0 and world_size − 1 = {world_size - 1}; got {rank}")
        if batch_size < world_size:
            raise ArgumentError(f"batch_size must be at least world_size = {world_size}; got {batch_size}")
        if augment is not None and augment not in AUGMENTATIONS:
            unknown_name("augmentation", augment, AUGMENTATIONS)
        if augment is not None and len(split.inputs.shape) != 4 and split.layout is None:
            raise ArgumentError(
                f"augment={augment!r} needs images [N, C, H, W], or sequences with an image layout; "
                f"got {list(split.inputs.shape)} without a layout"
            )
        if not dtype.is_floating_point:
            raise ArgumentTypeError(f"dtype must be a floating-point dtype; got {dtype}")
        if len(split) == 0 or (drop_last and len(split) < batch_size):
            raise ArgumentError(
                f"there is no batch: the split has {len(split)} samples, batch_size={batch_size}, drop_last={drop_last}"
            )
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
        """Number of batches in an epoch."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, *, epoch: int | None = None, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch, beginning with batch `start`."""
        if not 0 <= start <= len(self):
            raise ArgumentError(f"start must be between 0 and the number of batches, {len(self)}; got {start}")
        epoch = self.epoch if epoch is None else epoch
        return self._run(epoch, start)

    def global_size(self, batch: int) -> int:
        """Number of samples in a batch, over all processes."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch must be between 0 and {len(self) - 1}; got {batch}")
        return min(self.batch_size, len(self.split) - batch * self.batch_size)

    @property
    def local_batch_size(self) -> int:
        """Number of samples that this process gets of a full batch."""
        return self.batch_size // self.world_size + (self.rank < self.batch_size % self.world_size)

    @property
    def own_size(self) -> int:
        """Deprecated: use `local_batch_size`."""
        warnings.warn("DeviceBatches.own_size is deprecated, use local_batch_size", DeprecationWarning, stacklevel=2)
        return self.local_batch_size

    def _run(self, epoch: int, start: int) -> Iterator[Batch]:
        count = len(self.split)
        order = shuffled(count, seed=self.seed, epoch=epoch) if self.shuffle else torch.arange(count)
        device_order = order.to(self.device)  # one copy per epoch, and all random bits at once
        bits = None if self.augment is None else augmentation_bits(self.seed, epoch, device_order)
        batches = range(start, len(self))
        if self.resident:
            gathered = (None for _ in batches)
        else:
            gathered = _prefetch(self._gather, (self._share(order, k) for k in batches))
        return (self._make(k, rows, device_order, bits) for k, rows in zip(batches, gathered, strict=True))

    def _share(self, values: torch.Tensor, batch: int) -> torch.Tensor:
        """The values of this process's samples in a batch; `values` has one value per sample of the epoch."""
        first = batch * self.batch_size
        return values[first : first + self.global_size(batch)].tensor_split(self.world_size)[self.rank]

    def _gather(self, index: torch.Tensor) -> torch.Tensor:
        inputs = self.split.inputs
        raw = inputs.take(index) if isinstance(inputs, MappedRows) else inputs[index]
        return raw.pin_memory() if self.device.type == "cuda" else raw

    def _make(self, batch: int, rows: torch.Tensor | None, order: torch.Tensor, bits: torch.Tensor | None) -> Batch:
        """A batch from the rows that were read, or from the resident split if `rows` is None."""
        index = self._share(order, batch)
        bits = None if bits is None else self._share(bits, batch)
        if rows is not None:
            rows = rows.to(self.device, non_blocking=True)
        return _prepare(self, rows, index, bits)


@has_fast_version("data.prepare")
def _prepare(
    batches: DeviceBatches, rows: torch.Tensor | None, index: torch.Tensor, bits: torch.Tensor | None
) -> Batch:
    """Gather, augment, resize and standardize a batch on the device."""
    x = batches._inputs[index] if rows is None else rows  # type: ignore[index]
    if bits is not None:
        layout = batches.split.layout
        x = crop_flip(x if layout is None else layout.images(x), bits, flip=batches.augment == "crop_flip")
        x = x if layout is None else layout.series(x)
    if batches.split.resize_to is not None:
        x = resize_images(x, batches.split.resize_to)
    x = torch.addcmul(batches._offset, x.float(), batches._gain)
    lengths = None if batches._lengths is None else batches._lengths[index]
    if lengths is not None:
        past = torch.arange(x.shape[-1], device=batches.device) >= lengths[:, None]
        x = x.masked_fill(past[:, None], 0.0)
    if batches._tail is not None:
        x = torch.cat([x, batches._tail.expand(len(x), -1, -1)], dim=-1)
    return x.to(batches.dtype), batches._labels[index], lengths


def _prefetch(function: Callable[[_Item], _Result], items: Iterable[_Item], *, depth: int = 3) -> Iterator[_Result]:
    """function(item) for each item, computed up to `depth` items ahead by a background thread."""
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
