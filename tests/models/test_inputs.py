"""`model.inputs`: raw samples to the input of a network, also for images that become series."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flexconv import create_model, data, from_pretrained, list_pretrained
from flexconv.models import ImageSeries, Inputs
from flexconv.train.run import _inputs

NAMES = list_pretrained()


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_network_has_inputs(name):
    model = from_pretrained(name)
    inputs = model.inputs
    assert inputs is not None
    assert len(inputs.classes) == model.num_classes
    assert len(inputs.mean) == len(inputs.std) == model.in_channels
    steps = inputs.size if inputs.images is None else (inputs.size[0] - inputs.images.noise_steps,)
    raw = torch.randint(0, 17, (2, model.in_channels, *steps))
    with torch.no_grad():
        assert model(inputs(raw)).shape == (2, model.num_classes)
    assert inputs(raw).shape[2:] == inputs.size


@pytest.mark.parametrize(("name", "channels"), [("flextcn6-npcifar10", 3), ("flextcn6-pmnist", 1)])
def test_networks_on_images_as_series_take_images(name, channels):
    if name not in NAMES:
        pytest.skip("flexconv-weights is not installed")
    inputs = from_pretrained(name).inputs
    assert inputs is not None
    assert inputs.images is not None
    images = torch.randint(0, 256, (2, channels, *inputs.images.size), dtype=torch.uint8)
    assert torch.equal(inputs(images), inputs(inputs.images.series(images)))
    with pytest.raises(ValueError, match=r"got \(2, 1, 9, 9\)"):
        inputs(torch.zeros(2, 1, 9, 9))


def test_image_series_arranges_pixels():
    images = torch.arange(2 * 3 * 4).view(1, 2, 3, 4)
    pixels = ImageSeries(size=(3, 4), steps="pixels").series(images)
    assert torch.equal(pixels, images.view(1, 2, 12))
    rows = ImageSeries(size=(3, 4), steps="rows").series(images)
    assert rows.shape == (1, 8, 3)
    assert torch.equal(rows[0, :, 1], images[0, :, 1].flatten())
    permuted = ImageSeries(size=(3, 4), steps="pixels", order_seed=3).series(images)
    order = np.random.RandomState(3).permutation(12)
    assert torch.equal(permuted, pixels[:, :, torch.from_numpy(order)])
    with pytest.raises(ValueError, match=r"'columns'.*pixels"):
        ImageSeries(size=(3, 4), steps="columns")


def test_inputs_append_the_noise_of_the_training_data():
    images = ImageSeries(size=(2, 2), steps="rows", noise_steps=5, noise_seed=1)
    inputs = Inputs(size=(7,), scale=1.0, mean=(1.0, 2.0), std=(2.0, 4.0), classes=("a",), images=images)
    x = inputs(torch.zeros(3, 2, 2))
    assert x.shape == (3, 2, 7)
    assert torch.equal(x[1, :, 2:], images.noise(2))
    assert torch.equal(x[0, :, 0], torch.tensor([-0.5, -0.5]))
    assert Inputs.read(inputs.plain()) == inputs


def test_data_sets_describe_how_images_became_series():
    digits = data.load("sdigits")
    inputs = _inputs(digits)
    assert inputs is not None
    assert inputs.images == ImageSeries(size=(8, 8), steps="pixels")
    assert (inputs.varying, inputs.rate) == (False, None)
    images = _inputs(data.load("digits"))
    assert images is not None
    assert (images.images, images.varying) == (None, None)


def test_older_files_without_the_new_entries_can_be_read():
    entries = {"size": [8], "scale": 1.0, "mean": [0.0], "std": [1.0], "classes": ["a", "b"]}
    inputs = Inputs.read(entries)
    assert (inputs.mfcc_rate, inputs.rate, inputs.varying, inputs.images) == (None, None, None, None)


@pytest.mark.parametrize("name", ["flexnet3", "cifar_resnet20", "sepflexnet_tiny", "flextcn2"])
def test_network_refuses_integers_and_arrays(name):
    size = {"flexnet3": {"image_size": 8}, "flextcn2": {"length": 8}, "sepflexnet_tiny": {"length": 8}}.get(name, {})
    network = create_model(name, in_channels=1, num_classes=2, **size)
    images = np.zeros((2, 1, 8, 8) if "length" not in size else (2, 1, 8), np.uint8)
    with pytest.raises(TypeError, match="expects a tensor; got ndarray"):
        network(images)
    with pytest.raises(TypeError, match=r"floating-point.*uint8$"):
        network(torch.from_numpy(images))
    network.inputs = Inputs(size=images.shape[2:], scale=1 / 255, mean=(0.5,), std=(0.2,), classes=("a", "b"))
    with pytest.raises(TypeError, match=r"uint8; .*model\.inputs"):
        network(torch.from_numpy(images))
