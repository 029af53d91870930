"""Known facts about the published data sets. Skipped for data sets that are not present."""

from __future__ import annotations

import pytest
import torch

from flexconv import data
from flexconv.data import _registry

from ..conftest import skip_without_data

pytestmark = pytest.mark.usefixtures("real_data")


def load_real(name, **options):
    """Load a published data set, or skip the test if it is not present."""
    skip_without_data(name)
    return data.load(name, **options)


def test_mnist():
    mnist = load_real("mnist", validation=0.1)
    assert (len(mnist.train), len(mnist.validation), len(mnist.test)) == (54_000, 6_000, 10_000)
    assert mnist.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert float(mnist.train.mean) == pytest.approx(0.1307, abs=1e-3)
    assert float(mnist.train.std) == pytest.approx(0.3081, abs=1e-3)


def test_cifar10():
    cifar = load_real("cifar10")
    assert cifar.train.mean.flatten().tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert cifar.train.std.flatten().tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)
    assert torch.bincount(cifar.train.labels).tolist() == [5000] * 10
    x, y, _ = next(iter(data.DeviceBatches(cifar.at_resolution(16).train, 64, shuffle=True, augment="crop_flip")))
    assert x.shape == (64, 3, 16, 16)
    assert len(y.unique()) > 5


def test_character_trajectories():
    strokes = load_real("character_trajectories")
    assert (len(strokes.train), len(strokes.test), strokes.length) == (1422, 1436, 182)
    assert (int(strokes.train.lengths.min()), strokes.num_classes) == (60, 20)
    paper = load_real("character_trajectories", protocol="paper")
    assert (len(paper.train), len(paper.validation), len(paper.test)) == (2000, 429, 429)


@pytest.mark.parametrize("name", ["speech_commands_raw", "speech_commands_raw_v0.01"])
def test_speech_commands(name):
    speech = load_real(name)
    assert speech.length == 16_000
    counts = torch.bincount(speech.test.labels)
    assert len(counts) == 10
    assert abs(float(speech.train.mean)) < 0.01
    coefficients = data.mfcc(speech.test.inputs[:3, 0].float() / 2**15)
    assert coefficients.shape == (3, 20, 161)


def test_kodak():
    pytest.importorskip("PIL")
    assert load_real("kodak").train.inputs.shape == (24, 3, 512, 768)


@pytest.mark.parametrize("name", ["stl10", "imagenet8", "imagenet16", "imagenet32"])
def test_larger_data_sets(name):
    split = load_real(name).test
    x, y, _ = next(iter(data.DeviceBatches(split, 16)))
    assert x.isfinite().all()
    assert len(y) == 16


def test_every_name_has_a_status():
    for name in _registry._DATASETS:
        assert data.status(name, verify=False).name == name
