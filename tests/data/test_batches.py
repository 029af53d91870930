"""`DeviceBatches`: order, resuming, several processes, augmentation, reading from disk."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flexconv import data
from flexconv._fast import batches as fast_batches
from flexconv.data._augment import augmentation_bits, crop_flip
from flexconv.data._layout import PixelsAsSteps, RowsAsSteps
from flexconv.data._random import random_bits, shuffled

MASK = 2**64 - 1


def image_split(count=37, shape=(3, 16, 16)):
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    mean = torch.full((shape[0], 1, 1), 0.4)
    return data.Split(x, torch.arange(count), scale=1 / 255, mean=mean, std=mean / 2)


def equal(first, second):
    return all(
        (a is None and b is None) or torch.equal(a, b)
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def slow_bits(seed, epoch, stream, index):
    state = 0
    for number in (seed, epoch, stream, index):
        state = ((state + number) & MASK) + 0x9E3779B97F4A7C15 & MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state >> 2


def test_random_bits_are_splitmix64():
    index = torch.arange(50)
    for seed, epoch in ((0, 0), (1, 7), (2**63 + 5, 3), (-4, 1)):
        assert random_bits(seed, epoch, 2, index).tolist() == [slow_bits(seed, epoch, 2, i) for i in range(50)]


def test_random_bits_are_uniform():
    bits = random_bits(3, 1, 2, torch.arange(90_000))
    for shift in (0, 20, 40):
        counts = torch.bincount((bits >> shift & 0xFFFFF) % 9, minlength=9).double()
        assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 30  # χ² with 8 degrees of freedom: 1 in 5,000


def test_every_epoch_has_another_permutation():
    first, second, other = (
        shuffled(1000, seed=0, epoch=0),
        shuffled(1000, seed=0, epoch=1),
        shuffled(1000, seed=1, epoch=0),
    )
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert abs(float(torch.corrcoef(torch.stack([first, second]).double())[0, 1])) < 0.1


def test_batches_contain_all_samples():
    split = image_split()
    batches = data.DeviceBatches(split, 8)
    assert len(batches) == 5
    assert torch.cat([y for _, y, _ in batches]).tolist() == list(range(37))
    assert [batches.global_size(k) for k in range(5)] == [8, 8, 8, 8, 5]
    x, _, lengths = next(iter(batches))
    assert lengths is None
    assert torch.allclose(x, (split.inputs[:8] / 255 - 0.4) / 0.2, atol=1e-6)
    assert len(list(data.DeviceBatches(split, 8, drop_last=True))) == 4
    shuffle = data.DeviceBatches(split, 8, shuffle=True)
    assert sorted(torch.cat([y for _, y, _ in shuffle]).tolist()) == list(range(37))


@pytest.mark.parametrize("resident_bytes", [2**30, 0])
@pytest.mark.parametrize("start", [0, 1, 4, 5])
def test_resuming_in_the_middle_of_an_epoch_is_exact(start, resident_bytes):
    options = {"shuffle": True, "augment": "crop_flip", "seed": 3, "resident_bytes": resident_bytes}
    split = image_split()
    whole = list(data.DeviceBatches(split, 8, epoch=2, **options))
    rest = list(data.DeviceBatches(split, 8, **options).iterate(epoch=2, start=start))
    assert len(rest) == 5 - start
    assert equal(rest, whole[start:])
    assert not equal(list(data.DeviceBatches(split, 8, epoch=3, **options)), whole)


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_divide_the_batches_of_a_single_process(world_size):
    split = image_split()
    options = {"shuffle": True, "augment": "crop_flip", "seed": 1, "epoch": 4}
    one = list(data.DeviceBatches(split, 8, **options))
    loaders = [data.DeviceBatches(split, 8, **options, world_size=world_size, rank=r) for r in range(world_size)]
    ranks = [list(loader) for loader in loaders]
    assert [loader.local_batch_size for loader in loaders] == [len(batches[0][1]) for batches in ranks]
    joined = [
        (torch.cat([x for x, _, _ in shares]), torch.cat([y for _, y, _ in shares]), None)
        for shares in zip(*ranks, strict=True)
    ]
    assert equal(joined, one)


def test_memory_mapped_batches_equal_resident_ones(tmp_path):
    split = image_split()
    path = tmp_path / "x.bin"
    split.inputs.numpy().tofile(path)
    array = np.memmap(path, np.uint8, mode="r", shape=tuple(split.inputs.shape))
    mapped = dataclasses.replace(split, inputs=data.MappedRows(array, np.arange(37)))
    options = {"shuffle": True, "augment": "crop", "seed": 1}
    resident, streamed = (data.DeviceBatches(s, 8, **options) for s in (split, mapped))
    assert resident.resident
    assert not streamed.resident
    assert equal(list(streamed), list(resident))
    some = mapped.rows(torch.tensor([5, 3]))
    assert torch.equal(some.inputs.take(torch.tensor([1, 0])), split.inputs[[3, 5]])


def test_background_thread_ends_and_its_errors_are_raised():
    before = threading.active_count()
    batches = iter(data.DeviceBatches(image_split(), 4, resident_bytes=0))
    next(batches)
    del batches
    assert threading.active_count() == before
    short = data.MappedRows(np.zeros((3, 3, 16, 16), np.uint8), np.arange(37))
    with pytest.raises(IndexError, match="out of bounds"):
        list(data.DeviceBatches(dataclasses.replace(image_split(), inputs=short), 4))
    assert threading.active_count() == before


def test_augmentation_equals_pad_crop_flip_of_each_image():
    split = image_split(60)
    bits = augmentation_bits(5, 1, torch.arange(60))
    moved = crop_flip(split.inputs, bits, flip=True)
    flipped = 0
    for image, result, b in zip(split.inputs, moved, bits.tolist(), strict=True):
        padded = F.pad(image, (2, 2, 2, 2))  # an eighth of 16
        flip = b >> 40 & 1
        down, right = (b & 0xFFFFF) % 5, (b >> 20 & 0xFFFFF) % 5
        crop = padded[:, down : down + 16, right : right + 16]
        if flip:
            crop = F.pad(image.flip(2), (2, 2, 2, 2))[:, down : down + 16, 4 - right : 20 - right]
        flipped += flip
        assert torch.equal(result, crop)
    assert 15 < flipped < 45


def test_augmentation_precedes_resizing_and_does_not_depend_on_batch_size():
    split = image_split()
    options = {"augment": "crop_flip", "seed": 2}
    (native, _, _), (small, _, _) = (
        next(iter(data.DeviceBatches(s, 8, **options))) for s in (split, split.at_resolution(8))
    )
    raw = (native * split.std + split.mean) * 255
    resized = data.resize_images(raw.round().to(torch.uint8), 8)
    assert torch.allclose(small, (resized / 255 - split.mean) / split.std, atol=1e-5)
    assert equal(
        [(torch.cat([x for x, _, _ in data.DeviceBatches(split, n, **options)]), None) for n in (5,)],
        [(torch.cat([x for x, _, _ in data.DeviceBatches(split, n, **options)]), None) for n in (16,)],
    )


@pytest.mark.parametrize("layout", [PixelsAsSteps(width=16), RowsAsSteps(channels=3)], ids=repr)
def test_sequences_made_from_images_are_augmented_as_images(layout):
    x, labels = torch.randint(0, 256, (20, 3, 11, 16), dtype=torch.uint8), torch.arange(20)
    images, series = data.Split(x, labels), data.Split(layout.series(x), labels, layout=layout)
    options = {"augment": "crop_flip", "seed": 2, "shuffle": True}
    both = (data.DeviceBatches(split, 8, **options) for split in (images, series))
    for (expected, *_), (x, *_) in zip(*both, strict=True):
        assert torch.equal(layout.images(x), expected)
        assert torch.equal(x, layout.series(expected))


def test_padding_is_zero_and_the_tail_is_appended():
    split = data.Split(
        torch.randn(6, 2, 5),
        torch.arange(6),
        torch.tensor([5, 3, 2, 5, 1, 4]),
        mean=torch.full((2, 1), 3.0),
        std=torch.full((2, 1), 0.5),
        tail=torch.ones(2, 4),
    )
    x, _, lengths = next(iter(data.DeviceBatches(split, 6, dtype=torch.bfloat16)))
    assert x.dtype == torch.bfloat16
    assert x.shape == (6, 2, 9)
    assert lengths.tolist() == [5, 3, 2, 5, 1, 4]
    assert (x[4, :, 1:5] == 0).all()
    assert (x[:, :, 5:] == 1).all()
    assert torch.allclose(x[0, :, :5].float(), (split.inputs[0] - 3) / 0.5, rtol=1e-2)


def sequence_split():
    lengths = torch.randint(1, 6, (20,))
    return data.Split(torch.randn(20, 2, 5), torch.arange(20), lengths, mean=torch.ones(2, 1), tail=torch.ones(2, 3))


def noise_padded_split():
    layout = RowsAsSteps(channels=3)
    return data.Split(
        layout.series(torch.randint(0, 256, (20, 3, 16, 16))), torch.arange(20), tail=torch.ones(48, 5), layout=layout
    )


@pytest.mark.parametrize("resident_bytes", [2**30, 0])
@pytest.mark.parametrize(
    ("split", "augment", "graphs"),
    [
        (image_split(), "crop_flip", 1),
        (image_split().at_resolution(8), "crop", 0),
        (sequence_split(), None, 1),
        (noise_padded_split(), "crop_flip", 1),
    ],
    ids=["images", "resized images", "sequences", "rows as steps"],
)
def test_compiled_batches_are_equal(split, augment, graphs, resident_bytes, monkeypatch):
    region = fast_batches._region()
    compiled = torch.compile(region.function, backend="aot_eager", fullgraph=True, dynamic=False)
    monkeypatch.setitem(region.__dict__, "compiled", compiled)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = {"shuffle": True, "augment": augment, "seed": 3, "resident_bytes": resident_bytes}
    for epoch in (0, 1):
        plain, quick = (list(data.DeviceBatches(split, 8, epoch=epoch, compiled=c, **options)) for c in (False, True))
        assert equal([batch[1:] for batch in quick], [batch[1:] for batch in plain])
        for (x, *_), (expected, *_) in zip(quick, plain, strict=True):
            torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)
    assert (
        torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    )  # the last batch, which is not full, is not compiled


def test_former_name_of_the_local_batch_size_still_works_with_a_warning():
    batches = data.DeviceBatches(image_split(), 8, world_size=3, rank=0)
    with pytest.warns(DeprecationWarning, match=r"own_size .*local_batch_size"):
        assert batches.own_size == batches.local_batch_size == 3


def test_rejects_invalid_arguments():
    split = image_split()
    with pytest.raises(ValueError, match="augmentation 'flip'"):
        data.DeviceBatches(split, 8, augment="flip")
    with pytest.raises(ValueError, match="needs images"):
        data.DeviceBatches(dataclasses.replace(split, inputs=split.inputs.flatten(2)), 8, augment="crop")
    with pytest.raises(ValueError, match=r"rank .*1; got 2"):
        data.DeviceBatches(split, 8, world_size=2, rank=2)
    with pytest.raises(ValueError, match=r"batch_size .*world_size = 4; got 3"):
        data.DeviceBatches(split, 3, world_size=4)
    with pytest.raises(ValueError, match=r"batch_size .*got 0"):
        data.DeviceBatches(split, 0)
    with pytest.raises(ValueError, match="37 samples"):
        data.DeviceBatches(split, 64, drop_last=True)
    with pytest.raises(TypeError, match=r"floating-point.*torch.int64"):
        data.DeviceBatches(split, 8, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"start .*5; got 6"):
        data.DeviceBatches(split, 8).iterate(start=6)
