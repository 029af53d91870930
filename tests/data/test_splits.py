"""Hold-out, statistics, and resizing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from flexconv import data
from flexconv.data._holdout import stratified_holdout
from flexconv.data._splits import MappedRows
from flexconv.data._statistics import channel_statistics, time_statistics

from . import published


@given(st.lists(st.integers(2, 30), min_size=2, max_size=6), st.sampled_from([0.1, 0.15, 0.3, 0.5]), st.integers(0, 99))
def test_holdout_is_disjoint_and_stratified(counts, share, seed):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    assume(math.ceil(share * len(labels)) >= len(counts))
    kept, held = stratified_holdout(labels, share, seed=seed)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(len(labels)))
    assert len(held) == math.ceil(share * len(labels))
    for label, count in enumerate(counts):
        assert abs(int((labels[held] == label).sum()) - count * len(held) / len(labels)) < 1


@pytest.mark.parametrize(("share", "seed"), [(0.3, 0), (0.5, 1), (0.1, 7), (0.25, 3)])
def test_holdout_equals_scikit_learn(share, seed):
    split = pytest.importorskip("sklearn.model_selection").train_test_split
    labels = published.random(seed).integers(0, 7, 301)
    kept, held = split(np.arange(301), test_size=share, stratify=labels, random_state=seed)
    own = stratified_holdout(torch.from_numpy(labels), share, seed=seed)
    assert own[0].tolist() == sorted(kept)
    assert own[1].tolist() == sorted(held)


def test_holdout_rejects_too_few_samples_and_invalid_shares():
    with pytest.raises(ValueError, match="the smallest class has 1"):
        stratified_holdout(torch.tensor([0, 0, 0, 1]), 0.5, seed=0)
    with pytest.raises(ValueError, match="between 0 and 1; got 1"):
        stratified_holdout(torch.tensor([0, 1]), 1, seed=0)


def test_validation_set_depends_on_the_seed_and_the_test_set_does_not():
    first, same, other = (data.load("digits", validation=0.2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.validation.inputs, same.validation.inputs)
    assert not torch.equal(first.validation.inputs, other.validation.inputs)
    assert torch.equal(first.test.inputs, other.test.inputs)
    whole = data.load("digits")
    assert len(first.train) + len(first.validation) == len(whole.train)
    assert whole.validation is None


def test_statistics_are_computed_on_the_training_set():
    digits = data.load("digits", validation=0.5)
    x = digits.train.inputs.double() / 16
    assert float(digits.train.mean) == pytest.approx(float(x.mean()))
    assert float(digits.train.std) == pytest.approx(float(x.std(correction=0)))
    assert torch.equal(digits.test.mean, digits.train.mean)
    assert not torch.equal(digits.train.mean, data.load("digits").train.mean)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32])
def test_channel_statistics(dtype, monkeypatch):
    monkeypatch.setattr("flexconv.data._statistics.CHUNK", 7)  # several chunks
    x = (torch.randn(30, 3, 4, 5) * 20 + torch.tensor([100.0, 60.0, 120.0])[:, None, None]).clamp(0, 255).to(dtype)
    samples = data.Samples(x, torch.zeros(30, dtype=torch.int64))
    mean, std = channel_statistics(samples, scale=0.5)
    twin = x.double() * 0.5
    assert mean.shape == std.shape == (3, 1, 1)
    assert torch.allclose(mean.flatten().double(), twin.mean((0, 2, 3)))
    assert torch.allclose(std.flatten().double(), twin.transpose(0, 1).flatten(1).std(1, correction=0))
    mapped = data.Samples(MappedRows(x.numpy(), np.arange(30)), samples.labels)
    assert torch.equal(channel_statistics(mapped, scale=0.5)[0], mean)


def test_statistics_of_large_and_constant_values():
    x = torch.randn(50, 2, 9) * 1e-3 + 1000
    x[:, 1] = 5
    mean, std = channel_statistics(data.Samples(x, torch.zeros(50, dtype=torch.int64)), scale=1.0)
    assert float(std[0]) == pytest.approx(float(x[:, 0].double().std(correction=0)), rel=1e-5)
    assert float(std[1]) == 1
    assert float(mean[1]) == 5
    mean, std = time_statistics(data.Samples(x, torch.zeros(50, dtype=torch.int64)), scale=1.0)
    assert torch.allclose(std[0].double(), x.double().transpose(0, 2).flatten(1).std(1))


def test_rejects_labels_of_another_length():
    with pytest.raises(ValueError, match=r"labels .*3 int64"):
        data.Samples(torch.zeros(3, 1, 4), torch.zeros(2, dtype=torch.int64))


def test_repr():
    digits = data.load("digits", validation=0.1)
    shape = "samples [1, 8, 8]"
    classes = "10 classes: 0, 1, 2, …, 9"
    assert repr(digits) == f"DataSplits(digits: train 1,293, validation 144, test 360; {shape}; {classes})"
    assert repr(digits.test) == f"Split(360 {shape})"
    assert repr(digits.at_resolution(4).test) == "Split(360 samples [1, 4, 4])"
    series = data.Samples(torch.zeros(2, 1, 5), torch.arange(2), torch.tensor([5, 3]))
    assert repr(series) == "Samples(2 samples [1, 5], of different lengths)"


def test_at_resolution_resizes_batches():
    digits = data.load("digits", validation=0.1)
    small = digits.at_resolution(4)
    assert small.image_size == 4
    assert small.train.inputs is digits.train.inputs
    x, _, _ = next(iter(data.DeviceBatches(small.test, 5)))
    raw = data.resize_images(digits.test.inputs[:5], 4)
    assert torch.allclose(x, (raw / 16 - digits.train.mean) / digits.train.std, atol=1e-6)
    assert small.at_resolution((8, 8)).train.resize_to is None
    with pytest.raises(ValueError, match="needs images"):
        data.load("sdigits").at_resolution(4)


@pytest.mark.parametrize("size", [4, 16, 20, 28, 30, 34, 36, 48, 64, 97])
def test_resizing_uint8_is_identical_to_pillow(size):
    image = pytest.importorskip("PIL.Image")
    pixels = published.random().integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    bilinear = image.Resampling.BILINEAR
    twin = np.stack([np.array(image.fromarray(p).resize((size, size), bilinear)) for p in pixels])
    own = data.resize_images(torch.from_numpy(pixels).permute(0, 3, 1, 2), size)
    assert own.dtype == torch.uint8
    assert torch.equal(own, torch.from_numpy(twin).permute(0, 3, 1, 2))


@pytest.mark.parametrize("size", [(16, 36), (40, 7)])
def test_resizing_floats_matches_torch(size):
    x = torch.rand(2, 3, 32, 24, dtype=torch.float64)
    twin = F.interpolate(x, size=size, mode="bilinear", antialias=True)
    assert torch.allclose(data.resize_images(x, size), twin, atol=1e-6)  # the weights have 22 bits


def test_resizing_to_the_same_size_and_invalid_inputs():
    x = torch.rand(2, 3, 8, 8)
    assert data.resize_images(x, 8) is x
    assert torch.allclose(data.resize_images(torch.ones(1, 1, 8, 8), 5), torch.ones(1, 1, 5, 5))
    with pytest.raises(ValueError, match=r"\[B, C, H, W\]"):
        data.resize_images(x[0], 4)
    with pytest.raises(TypeError, match=r"torch.int16"):
        data.resize_images(x.short(), 4)
