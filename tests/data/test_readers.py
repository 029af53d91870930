"""The readers of all published formats, with tiny files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flexconv import data
from flexconv.data._cifar10 import IMAGENET_STATISTICS

from . import published


def test_digits_need_no_files(tmp_path):
    digits = data.load("digits", root=tmp_path / "nothing", validation=0.1)
    assert (len(digits.train), len(digits.validation), len(digits.test)) == (1293, 144, 360)
    assert digits.model_arguments == {"in_channels": 1, "num_classes": 10, "image_size": 8}
    assert digits.train.inputs.dtype == torch.uint8
    assert digits.train.inputs.max() == 16
    sequence = data.load("sdigits", root=tmp_path, validation=0.1)
    assert sequence.model_arguments == {"in_channels": 1, "num_classes": 10, "length": 64}
    assert torch.equal(sequence.train.inputs, digits.train.inputs.flatten(2))


def test_mnist_as_images_sequences_and_permuted(tmp_path):
    written = published.write_mnist(tmp_path)
    images = data.load("mnist", root=tmp_path, verify=False)
    assert torch.equal(images.train.inputs[:, 0], torch.from_numpy(written["train"]))
    assert torch.equal(images.test.labels, torch.arange(20) % 10)
    sequence = data.load("smnist", root=tmp_path, verify=False).train.inputs
    assert torch.equal(sequence, images.train.inputs.flatten(2))
    order = np.random.RandomState(0).permutation(784)
    permuted = data.load("pmnist", root=tmp_path, verify=False)
    assert torch.equal(permuted.train.inputs, sequence[:, :, order])
    assert torch.equal(permuted.test.inputs, images.test.inputs.flatten(2)[:, :, order])


def test_permutation_depends_on_the_seed_only_under_the_paper_protocol(tmp_path):
    published.write_mnist(tmp_path)

    def load(**options):
        return data.load("pmnist", root=tmp_path, verify=False, **options).test.inputs

    assert torch.equal(load(seed=0), load(seed=5))
    assert torch.equal(load(permutation_seed=5), load(seed=5, protocol="paper"))
    assert not torch.equal(load(), load(seed=5, protocol="paper"))


def test_cifar10_as_images_sequences_and_rows(tmp_path):
    written = published.write_cifar10(tmp_path)
    images = data.load("cifar10", root=tmp_path, verify=False)
    first = written["data_batch_1"][3]
    assert images.train.inputs.shape == (100, 3, 32, 32)
    assert torch.equal(images.train.inputs[3].flatten(), torch.from_numpy(first[1:]))
    assert images.class_names[int(images.train.labels[3])] == "cat"
    sequence = data.load("scifar10", root=tmp_path, verify=False)
    assert sequence.model_arguments == {"in_channels": 3, "num_classes": 10, "length": 1024}
    assert torch.equal(sequence.train.inputs, images.train.inputs.flatten(2))
    rows = data.load("npcifar10", root=tmp_path, verify=False)
    assert rows.model_arguments == {"in_channels": 96, "num_classes": 10, "length": 1000}
    assert rows.train.inputs[3, 32 + 5, 7] == images.train.inputs[3, 1, 7, 5]  # green, column 5, at time 7
    for series in (sequence.train, rows.train):
        assert torch.equal(series.layout.images(series.inputs), images.train.inputs)
    x, _, _ = next(iter(data.DeviceBatches(rows.test, 4)))
    assert torch.equal(x[0, :, 32:], x[3, :, 32:])
    assert abs(float(x[0, :, 32:].std()) - 1) < 0.02


def test_paper_protocol_uses_fixed_statistics_and_selects_on_test(tmp_path):
    published.write_cifar10(tmp_path)
    for name in ("cifar10", "npcifar10"):
        paper = data.load(name, root=tmp_path, protocol="paper", verify=False)
        assert sorted(set(paper.train.mean.flatten().tolist())) == pytest.approx(sorted(IMAGENET_STATISTICS[0]))
        assert paper.selects_on_test
        assert paper.validation is paper.test
    assert not data.load("cifar10", root=tmp_path, validation=0.2, verify=False).selects_on_test
    with pytest.raises(ValueError, match=r"test set .*validation must be 0; got 0.1"):
        data.load("cifar10", root=tmp_path, protocol="paper", validation=0.1, verify=False)


def test_trajectories_keep_their_lengths(tmp_path):
    written = published.write_trajectories(tmp_path)
    strokes = data.load("character_trajectories", root=tmp_path, verify=False)
    longest = max(s.shape[1] for part in written.values() for s in part)
    assert strokes.length == longest
    assert strokes.train.lengths.tolist() == [s.shape[1] for s in written["TRAIN"]]
    every = np.concatenate(written["TRAIN"], axis=1)
    assert strokes.train.mean[:, 0].numpy() == pytest.approx(every.mean(1), abs=1e-5)
    assert strokes.train.std[:, 0].numpy() == pytest.approx(every.std(1), abs=1e-5)
    for x, _, lengths in data.DeviceBatches(strokes.test, 16):
        for series, length in zip(x, lengths.tolist(), strict=True):
            assert (series[:, length:] == 0).all()
            assert (series[:, :length] != 0).all()


def test_trajectories_under_the_paper_protocol(tmp_path):
    written = published.write_trajectories(tmp_path)
    paper = data.load("character_trajectories", root=tmp_path, protocol="paper", verify=False)
    assert (len(paper.train), len(paper.validation), len(paper.test)) == (84, 18, 18)
    assert paper.train.lengths is None
    assert paper.train.mean.shape == (1, paper.length)
    x = paper.train.inputs.double()
    assert torch.allclose(paper.train.mean[0].double(), x.mean((0, 1)), atol=1e-6)
    own = data.load("character_trajectories", root=tmp_path, protocol="paper", split="uea", verify=False)
    first = written["TRAIN"][0]
    assert (own.train.inputs[0, :, first.shape[1] :] == torch.from_numpy(first[:, -1:])).all()
    honest = data.load("character_trajectories", root=tmp_path, split="paper", verify=False)
    assert len(honest.train) == 84
    assert honest.train.lengths is not None


def test_speech_commands_official_and_paper_split(tmp_path):
    published.write_speech(tmp_path)
    raw = data.load("speech_commands_raw_v0.01", root=tmp_path)
    assert (len(raw.train), len(raw.validation), len(raw.test)) == (60, 10, 10)
    assert raw.model_arguments == {"in_channels": 1, "num_classes": 10, "length": 16_000}
    assert raw.train.inputs.dtype == torch.int16
    assert raw.note == "80 of 23,682 clips"
    assert (raw.train.inputs[5, 0, 8_000:] == 0).all()  # the last clip of a word is padded with zeros
    paper = data.load("speech_commands_raw_v0.01", root=tmp_path, protocol="paper")
    assert (len(paper.train), len(paper.validation), len(paper.test)) == (49, 10, 11)
    assert paper.train.mean.shape == (1, 16_000)
    with pytest.raises(ValueError, match=r"its own validation set.*got 0.1"):
        data.load("speech_commands_raw_v0.01", root=tmp_path, validation=0.1)


def test_speech_commands_as_mfcc(tmp_path):
    published.write_speech(tmp_path, per_word=4)
    speech = data.load("speech_commands_v0.01", root=tmp_path)
    assert speech.model_arguments == {"in_channels": 20, "num_classes": 10, "length": 161}
    raw = data.load("speech_commands_raw_v0.01", root=tmp_path)
    assert torch.allclose(speech.test.inputs, data.mfcc(raw.test.inputs[:, 0].float() / 2**15))


def test_stl10_columns_become_rows(tmp_path):
    images = published.write_stl10(tmp_path)
    stl = data.load("stl10", root=tmp_path, verify=False)
    assert torch.equal(stl.train.inputs, torch.from_numpy(images))
    assert stl.train.labels.tolist() == [i % 10 for i in range(20)]


@pytest.mark.parametrize("npz", [True, False])
def test_imagenet_is_memory_mapped(tmp_path, npz):
    images = published.write_imagenet(tmp_path, npz=npz)
    small = data.load("imagenet8", root=tmp_path, validation=0.2, verify=False)
    assert isinstance(small.train.inputs, data.MappedRows)
    assert (len(small.train), len(small.validation), len(small.test)) == (48, 12, 6)
    assert small.num_classes == 1000
    assert torch.equal(small.test.inputs.take(torch.arange(6)), torch.from_numpy(images[60:]))
    kept = small.train.inputs.take(torch.arange(48)).numpy() / 255
    assert small.train.mean.flatten().numpy() == pytest.approx(kept.mean((0, 2, 3)), abs=1e-6)
    assert small.train.std.flatten().numpy() == pytest.approx(kept.std((0, 2, 3)), abs=1e-6)
    for batch in (tmp_path / "imagenet8").glob("train_data*"):
        batch.unlink()  # which are not needed after the first load
    again = data.load("imagenet8", root=tmp_path, validation=0.2, verify=False)
    assert torch.equal(again.train.labels, small.train.labels)
    assert data.status("imagenet8", root=tmp_path).state == "present"


def test_kodak_images_are_in_landscape_format(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "kodak").mkdir()
    for i in range(24):
        size = (512, 768) if i == 3 else (768, 512)
        image.new("RGB", size, (i, 2, 255)).save(tmp_path / "kodak" / f"kodim{i + 1:02}.png")
    kodak = data.load("kodak", root=tmp_path, verify=False)
    assert kodak.train.inputs.shape == (24, 3, 512, 768)
    x, number, _ = next(iter(data.DeviceBatches(kodak.train, 24)))
    assert number.tolist() == list(range(24))
    assert torch.allclose(x[:, :, 0, 0], torch.tensor([[i / 255, 2 / 255, 1.0] for i in range(24)]))
