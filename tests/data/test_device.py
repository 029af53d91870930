"""Batches on a GPU equal those on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flexconv import data
from flexconv.data._augment import augmentation_bits, crop_flip
from tests.conftest import no_synchronization

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def split():
    x = torch.randint(0, 256, (90, 3, 32, 32), dtype=torch.uint8)
    mean = torch.full((3, 1, 1), 0.45)
    return data.Split(x, torch.arange(90), scale=1 / 255, mean=mean, std=mean / 2)


def test_augmentation_and_resizing_equal_those_on_the_cpu(split):
    bits = augmentation_bits(1, 2, torch.arange(90))
    assert torch.equal(augmentation_bits(1, 2, torch.arange(90, device="cuda")).cpu(), bits)
    augmented = crop_flip(split.inputs, bits, flip=True)
    assert torch.equal(crop_flip(split.inputs.cuda(), bits.cuda(), flip=True).cpu(), augmented)
    for size in (16, 28, 36):
        assert torch.equal(data.resize_images(augmented.cuda(), size).cpu(), data.resize_images(augmented, size))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("resident_bytes", [2**30, 0])
def test_batches_equal_those_on_the_cpu(split, resident_bytes, compiled):
    options = {"shuffle": True, "augment": "crop_flip", "seed": 4, "epoch": 1, "resident_bytes": resident_bytes}
    for part in (split, split.at_resolution(16)):
        host = list(data.DeviceBatches(part, 16, **options))
        device = list(data.DeviceBatches(part, 16, device="cuda", compiled=compiled, **options))
        for (x, y, _), (on_device, labels, _) in zip(host, device, strict=True):
            assert on_device.is_cuda
            assert labels.is_cuda
            assert torch.equal(labels.cpu(), y)
            assert torch.allclose(on_device.cpu(), x, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_resident_epoch_never_synchronises_with_the_host(split, compiled):
    batches = data.DeviceBatches(split, 16, shuffle=True, augment="crop_flip", device="cuda", compiled=compiled)
    iterator = iter(batches)
    next(iterator)
    with no_synchronization():
        assert sum(len(y) for _, y, _ in iterator) == 74


def test_memory_mapped_rows_are_copied_to_the_device(split, tmp_path):
    split.inputs.numpy().tofile(tmp_path / "x.bin")
    array = np.memmap(tmp_path / "x.bin", np.uint8, mode="r", shape=tuple(split.inputs.shape))
    mapped = data.Split(data.MappedRows(array, np.arange(90)), split.labels, scale=1 / 255)
    streamed = torch.cat([x for x, _, _ in data.DeviceBatches(mapped, 32, device="cuda")])
    assert torch.allclose(streamed.cpu(), split.inputs / 255, atol=1e-6)
