"""The user's own images, recordings and sequences: folders, .npz files and IDX files."""

from __future__ import annotations

import gzip
import os
import struct
import zlib

import numpy as np
import pytest
import torch

from flexconv import at_resolution, cli, data, from_pretrained, save_pretrained, train

from . import published


@pytest.fixture
def write_images(tmp_path):
    image = pytest.importorskip("PIL.Image")

    def write(folder, count=5, classes=("cat", "dog"), size=(6, 4)):
        for label, name in enumerate(classes):
            (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                image.new("RGB", size, (10 * label, i, 0)).save(tmp_path / folder / name / f"{i}.png")
        return tmp_path / folder

    return write


def test_images_in_class_folders(write_images, tmp_path):
    own = data.load("folder", path=write_images("pets"))
    assert own.class_names == ("cat", "dog")
    assert (len(own.train), len(own.test)) == (8, 2)
    assert own.model_arguments == {"in_channels": 3, "num_classes": 2, "image_size": (4, 6)}
    assert set(own.train.inputs[own.train.labels == 1][:, 0].flatten().tolist()) == {10}
    below_root = data.load("folder", path="pets", root=tmp_path, image_size=8, mode="grey")
    assert below_root.model_arguments == {"in_channels": 1, "num_classes": 2, "image_size": 8}


@pytest.mark.parametrize("validation", ["validation", "val"])
def test_existing_splits_are_used(write_images, validation):
    write_images("pets/train")
    write_images("pets/test", count=2)
    folder = write_images(f"pets/{validation}", count=1).parent
    own = data.load("folder", path=folder)
    assert (len(own.train), len(own.validation), len(own.test)) == (10, 2, 4)
    write_images("pets/test", classes=("bird",))
    with pytest.raises(data.MissingDataError, match=r"bird: .*no such class"):
        data.load("folder", path=folder)


def test_split_of_unknown_name_is_refused(write_images):
    write_images("pets/train")
    folder = write_images("pets/notes", classes=("readme",)).parent
    assert len(data.load("folder", path=folder).train) == 8
    write_images("pets/holdout", classes=("dog",))
    with pytest.raises(data.MissingDataError, match=r"holdout .*class dog.*rename it to validation or test"):
        data.load("folder", path=folder)


def test_images_of_different_sizes_need_a_size(write_images):
    write_images("pets")
    folder = write_images("pets", classes=("dog",), size=(5, 5))
    with pytest.raises(data.DamagedDataError, match=r"0\.png: 5 × 5 .*6 × 4.*set data\.image_size"):
        data.load("folder", path=folder)
    assert data.load("folder", path=folder, image_size=(4, 4)).image_size == 4


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_16_bit_images_are_reduced_to_8_bits(tmp_path, suffix):
    image = pytest.importorskip("PIL.Image")
    grey = np.array([[0, 257, 1000], [32_768, 65_278, 65_535]], np.uint16)
    image.fromarray(grey).save(tmp_path / f"grey{suffix}")
    assert data.read_image(tmp_path / f"grey{suffix}", mode="L").tolist() == [[[0, 1, 4], [128, 254, 255]]]
    colour = data.read_image(tmp_path / f"grey{suffix}")
    assert colour.shape == (3, 2, 3)
    assert colour[1].tolist() == [[0, 1, 4], [128, 254, 255]]


@pytest.mark.parametrize(("kind", "name"), [(np.float32, "floats"), (np.int32, "32-bit integers")])
def test_error_names_an_image_of_unknown_range(write_images, kind, name):
    image = pytest.importorskip("PIL.Image")
    folder = write_images("pets")
    image.fromarray(np.full((4, 6), 70_000, kind)).save(folder / "dog" / "9.tif")
    with pytest.raises(data.DamagedDataError, match=rf"dog/9\.tif: .*{name}.*8 or 16 bits"):
        data.load("folder", path=folder)


def test_reads_all_image_formats_and_ignores_other_files(write_images):
    image = pytest.importorskip("PIL.Image")
    folder = write_images("pets", classes=("cat",))
    (folder / "dog").mkdir()
    frames = [image.new("L", (6, 4), grey) for grey in (10, 200)]
    for i, suffix in enumerate((".gif", ".tif", ".TIFF", ".jpe", ".tga")):
        frames[0].save(folder / "dog" / f"{i}{suffix}")
    frames[0].save(folder / "dog" / "moving.gif", save_all=True, append_images=frames[1:])
    (folder / "dog" / "about.txt").write_text("dogs")
    (folder / "dog" / "manual.pdf").write_text("dogs")
    (folder / "dog" / ".DS_Store").write_bytes(b"?")
    (folder / "dog" / "._0.gif").write_bytes(b"?")  # which macOS creates on other file systems
    own = data.load("folder", path=folder, mode="grey")
    assert len(own.train) + len(own.test) == 5 + 6
    dogs = torch.cat([part.inputs[part.labels == 1] for part in (own.train, own.test)])
    assert set(dogs.flatten().tolist()) == {10}


def test_error_names_a_class_without_samples(write_images):
    folder = write_images("pets/train").parent
    (folder / "train" / "bird").mkdir()
    with pytest.raises(data.MissingDataError, match=r"train/bird: .*no samples.*empty"):
        data.load("folder", path=folder)
    (folder / "train" / "bird" / "0.heic").write_bytes(b"?")
    with pytest.raises(data.MissingDataError, match=r"train/bird: .*contains \.heic, expected images"):
        data.load("folder", path=folder)


def test_notes_a_class_without_test_samples(write_images):
    write_images("pets/train")
    folder = write_images("pets/test", classes=("dog",)).parent
    own = data.load("folder", path=folder)
    assert own.class_names == ("cat", "dog")
    assert own.test.labels.tolist() == [1] * 5
    assert own.note == "the test set has no samples of cat"
    (folder / "test" / "cat").mkdir()
    with pytest.raises(data.MissingDataError, match=r"test/cat: .*no samples"):
        data.load("folder", path=folder)


def test_rejects_images_of_other_formats(write_images):
    image = pytest.importorskip("PIL.Image")
    folder = write_images("pets")
    image.new("RGB", (6, 4)).save(folder / "cat" / "9.eps")  # ignored, as any other file
    assert len(data.load("folder", path=folder).train) == 8
    (folder / "cat" / "9.eps").rename(folder / "cat" / "9.png")  # Pillow would run Ghostscript
    with pytest.raises(data.DamagedDataError, match=r"cat/9\.png: .*cannot be read: .*not one of .*PNG"):
        data.load("folder", path=folder)


def test_error_names_an_image_with_too_many_pixels(tmp_path):
    pytest.importorskip("PIL.Image")

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b""))
    with pytest.raises(data.DamagedDataError, match=r"huge\.png: .*too large.*900000000 pixels"):
        data.read_image(tmp_path / "huge.png")


def test_pipes_do_not_block(tmp_path):
    for name in ("pipe.npz", "pipe.csv", "pipe.png"):
        os.mkfifo(tmp_path / name)
    for name in ("pipe.npz", "pipe.csv"):
        with pytest.raises(data.DamagedDataError, match=rf"{name} is a device or a pipe"):
            data.load(data.dataset_for(tmp_path / name), path=tmp_path / name)
    with pytest.raises(data.DamagedDataError, match=r"pipe\.png is not a regular file"):
        data.read_image(tmp_path / "pipe.png")


def test_names_of_folders_that_are_not_utf8(tmp_path):
    """They are the names of classes, which files of networks contain."""
    for word in (b"a\xff", b"b"):
        folder = tmp_path / os.fsdecode(word)
        folder.mkdir()
        for i in range(8):
            published.write_wav(folder / f"{i}.wav", np.full(100, i, "<i2"), rate=8000)
    names = data.load("folder", path=tmp_path).class_names
    assert names == ("a\\udcff", "b")


def test_rejects_recording_that_ends_within_a_sample(tmp_path):
    published.write_wav(tmp_path / "a.wav", np.ones(40, "<i2"), rate=8000)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[40:44] = (79).to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(data.DamagedDataError, match="79 bytes, which is no whole number"):
        data.read_unlabelled(tmp_path / "a.wav", channels=1, size=(40,))


@pytest.mark.parametrize("announced", [0, 20, 95])
def test_rejects_recording_whose_header_announces_too_little(tmp_path, announced):
    """As after a program that was killed before it could update the header."""
    for word in ("no", "yes"):
        for i in range(2):
            published.write_wav(tmp_path / word / f"{i}.wav", np.full(100, -300 - i, "<i2"), rate=8000)
    path = tmp_path / "no" / "1.wav"
    content = bytearray(path.read_bytes())
    content[40:44] = struct.pack("<I", 2 * announced)
    path.write_bytes(content)
    with pytest.raises(data.DamagedDataError, match=rf"no/1\.wav: .*announces {announced} samples"):
        data.load("folder", path=tmp_path)


def test_reads_recording_with_further_chunks(tmp_path):
    for word in ("no", "yes"):
        for i in range(5):
            path = tmp_path / word / f"{i}.wav"
            published.write_wav(path, np.full(100, 7, "<i2"), rate=8000)
            path.write_bytes(path.read_bytes() + b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"\0")
    assert data.load("folder", path=tmp_path).train.inputs.shape[2] == 100


def test_error_names_a_damaged_image(write_images):
    folder = write_images("pets")
    path = folder / "cat" / "3.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(data.DamagedDataError, match=r"cat/3\.png: .*cannot be read: .*damaged"):
        data.load("folder", path=folder)
    image = pytest.importorskip("PIL.Image")
    image.effect_noise((40, 40), 50).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(data.DamagedDataError, match=r"cat/3\.png: .*cannot be read: .*truncated.*replace or remove"):
        data.load("folder", path=folder)


def test_recordings_in_class_folders(tmp_path):
    for word in ("no", "yes"):
        for i in range(5):
            published.write_wav(tmp_path / word / f"{i}.wav", np.full(100 + 10 * i, i + 1, "<i2"), rate=8000)
    own = data.load("folder", path=tmp_path, test_share=0.4)
    assert own.model_arguments == {"in_channels": 1, "num_classes": 2, "length": 140}
    assert own.train.lengths.tolist() == [100 + 10 * (int(x[0, 0]) - 1) for x in own.train.inputs]
    published.write_wav(tmp_path / "no" / "9.wav", np.zeros(100, "<i2"), rate=16_000)
    with pytest.raises(data.DamagedDataError, match=r"sampling rate: .*8000 Hz.*9.wav: 1 channel at 16000"):
        data.load("folder", path=tmp_path)


@pytest.mark.parametrize("features", ["waves", "mfcc"])
def test_error_names_an_empty_recording(tmp_path, features):
    for i, samples in enumerate((1600, 0)):
        published.write_wav(tmp_path / "no" / f"{i}.wav", np.ones(samples, "<i2"), rate=16_000)
    with pytest.raises(data.DamagedDataError, match=r"no/1\.wav: .*no samples"):
        data.load("folder", path=tmp_path, features=features)


def test_recordings_as_mfcc(tmp_path):
    waves = {}
    for word in ("no", "yes"):
        for i in range(5):
            waves[word, i] = np.random.default_rng(i).integers(-(2**15), 2**15, (1600 + 100 * i, 2)).astype("<i2")
            published.write_wav(tmp_path / word / f"{i}.wav", waves[word, i], rate=16_000, channels=2)
    own = data.load("folder", path=tmp_path, test_share=0.4, features="mfcc")
    assert own.model_arguments == {"in_channels": 40, "num_classes": 2, "length": 21}
    assert sorted(own.train.lengths.tolist() + own.test.lengths.tolist()) == sorted(2 * [17, 18, 19, 20, 21])
    longest = torch.from_numpy(waves["no", 4].T / 2**15).float()
    expected = data.mfcc(longest).flatten(0, 1)
    found = torch.cat([own.train.inputs, own.test.inputs])
    assert (found == expected).flatten(1).all(1).sum() == 2  # one per class
    short = torch.from_numpy(waves["no", 0].T / 2**15).float()
    alone = data.mfcc(short).flatten(0, 1)[:, :16]  # the last frame depends on the end
    assert (found[:, :, :16] == alone).flatten(1).all(1).sum() == 2
    with pytest.raises(ValueError, match=r"features 'mfc'.*did you mean 'mfcc'"):
        data.load("folder", path=tmp_path, features="mfc")


def test_frame_rate_does_not_depend_on_the_sampling_rate(tmp_path):
    for rate in (8_000, 16_000, 44_100):
        for word in ("no", "yes"):
            published.write_wav(tmp_path / str(rate) / word / "0.wav", np.ones(rate, "<i2"), rate=rate)
            published.write_wav(tmp_path / str(rate) / word / "1.wav", np.ones(rate, "<i2"), rate=rate)
        own = data.load("folder", path=tmp_path / str(rate), test_share=0.5, features="mfcc")
        assert abs(own.length - 161) <= 1
        assert own.train.lengths is None
        assert torch.equal(own.test.inputs[0], data.mfcc(torch.ones(1, rate) / 2**15, rate=rate)[0])


@pytest.mark.parametrize(
    ("rate", "samples", "message"),
    [
        (100, 500, r"no/0\.wav.*at least 160 Hz; got 100"),
        (16_000, 80, r"no/0\.wav.*half a window of 200; got 80 samples"),
    ],
)
def test_error_for_recordings_without_mfcc(tmp_path, rate, samples, message):
    for word in ("no", "yes"):
        for i in range(2):
            published.write_wav(tmp_path / word / f"{i}.wav", np.ones(samples, "<i2"), rate=rate)
    with pytest.raises(ValueError, match=message):
        data.load("folder", path=tmp_path, test_share=0.5, features="mfcc")


def test_error_for_features_of_images(write_images):
    with pytest.raises(ValueError, match=r"images.*features='mfcc'"):
        data.load("folder", path=write_images("pets"), features="mfcc")


def test_network_trained_on_mfcc_accepts_waves(tmp_path, capsys):
    """Its input transform computes the MFCCs that it was trained on, and `flexconv eval` uses it."""
    draw = np.random.default_rng(0)
    for word in ("no", "yes"):
        for i in range(6):
            wave = draw.integers(-(2**15), 2**15, (800, 2)).astype("<i2")
            published.write_wav(tmp_path / "words" / word / f"{i}.wav", wave, rate=8_000, channels=2)
    settings = {"name": "folder", "options": {"path": str(tmp_path / "words"), "features": "mfcc"}}
    tree = {"model": {"name": "flextcn2", "widths": [2, 2]}, "data": settings, "epochs": 1, "batch_size": 4}
    train.train(train.build_recipe(tree), tmp_path / "run", device="cpu", plots=False)
    network = from_pretrained(tmp_path / "run/weights")
    assert (network.inputs.mfcc_rate, network.inputs.size) == (8_000, (17,))
    waves = data.load("folder", path=tmp_path / "words").test
    own = data.load(**settings["options"], name="folder")
    for (fed, *_), raw in zip(data.DeviceBatches(own.test, 2), waves.inputs.split(2), strict=True):
        torch.testing.assert_close(network.inputs(raw), fed)
    with pytest.raises(ValueError, match=r"\[batch, 2, length\], waves at 8000 Hz; got \(1, 40, 17\)"):
        network.inputs(torch.zeros(1, 40, 17))
    tested = ["eval", str(tmp_path / "run/weights"), "--data", "folder", "--data-option", f"path={tmp_path / 'words'}"]
    assert cli.run([*tested, "--data-option", "features=mfcc"]) == 0
    assert "folder test: " in capsys.readouterr().out
    assert cli.run(tested) == 2
    error = capsys.readouterr().err
    assert "MFCCs at 8000 Hz" in error
    assert "--data-option features=mfcc" in error


def test_error_for_image_options_of_recordings(tmp_path):
    for name in ("0", "1"):
        published.write_wav(tmp_path / "no" / f"{name}.wav", np.ones(100, "<i2"))
    for options in ({"image_size": 32}, {"mode": "grey"}):
        with pytest.raises(ValueError, match=r"image_size and mode .*recordings"):
            data.load("folder", path=tmp_path, test_share=0.5, **options)


def test_error_names_a_missing_or_empty_folder(tmp_path):
    with pytest.raises(data.MissingDataError, match=r"nowhere does not exist.*--root"):
        data.load("folder", path="nowhere", root=tmp_path)
    with pytest.raises(data.MissingDataError, match=r"nowhere does not exist$"):
        data.load("folder", path=tmp_path / "nowhere")
    with pytest.raises(data.MissingDataError, match="no class folder"):
        data.load("folder", path=tmp_path)
    with pytest.raises(ValueError, match="option 'path'"):
        data.load("folder")


def test_npz_with_images_and_with_sequences(tmp_path):
    images = published.random().integers(0, 256, (20, 3, 5, 7), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", inputs=images, labels=np.arange(20) % 2, class_names=["a", "b"])
    own = data.load("npz", path=tmp_path / "images.npz", validation=0.25)
    assert (len(own.train), len(own.validation), len(own.test)) == (12, 4, 4)
    assert own.class_names == ("a", "b")
    series = published.random().standard_normal((9, 2, 11))
    parts = {"train_inputs": series, "train_labels": np.arange(9) % 3, "train_lengths": np.full(9, 10)}
    np.savez(tmp_path / "series.npz", **parts, test_inputs=series, test_labels=np.arange(9) % 3)
    own = data.load("npz", path="series.npz", root=tmp_path)
    assert own.model_arguments == {"in_channels": 2, "num_classes": 3, "length": 11}
    assert own.train.inputs.dtype == torch.float32
    assert own.train.lengths.tolist() == [10] * 9


def with_labels(*labels):
    return {"inputs": np.zeros((4 * len(labels), 1, 8)), "labels": np.repeat(labels, 4)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3)}, "expected train_inputs"),
        ({"inputs": np.zeros((4, 8))}, r"shape \(4, 8\), expected \[N, C, H, W\]"),
        ({"inputs": np.zeros((4, 8, 8, 3))}, "channels last"),
        ({"inputs": np.zeros((4, 1, 8), np.int64)}, "int64, expected uint8"),
        ({"inputs": np.full((4, 1, 8), np.nan)}, "sample 0 .*not finite"),
        ({"inputs": np.zeros((4, 1, 8))}, "labels: missing, expected 4 integers"),
        ({"inputs": np.zeros((4, 1, 8)), "labels": np.zeros(4)}, "labels: float64"),
        (
            with_labels(0, 1) | {"labels": np.array([0, 1, -3, 1, 0, 1, 0, 1])},
            "label -3 of sample 2, expected 8 integers",
        ),
        *(
            (
                with_labels(0, 1) | {"labels": np.array([0, label, 0, 1, 0, 1, 0, 1], np.uint64)},
                f"label {label} of sample 1",
            )
            for label in (2**64 - 100, 2**64 - 1, 2**63)
        ),
        ({"inputs": np.zeros((4, 1, 8)), "labels": np.zeros((4, 1), int)}, r"labels: int64 of shape \(4, 1\)"),
        ({"inputs": np.zeros((4, 8, 8)), "labels": np.arange(4)}, r"may be images or series; .*data\.layout=HW "),
        (
            {"inputs": np.zeros((4, 200, 1)), "labels": np.arange(4)},
            r"\(4, 200, 1\) .*data\.layout=LC \(series of 200 steps",
        ),
        ({"inputs": np.zeros((4, 1, 8)), "labels": np.arange(4), "lengths": [8, 8, 0, 8]}, "length 0 of sample 2"),
        ({"inputs": np.zeros((4, 1, 8)), "labels": np.arange(4), "lengths": np.full(4, 2.0)}, "lengths: float64"),
        (with_labels(0, 1) | {"class_names": ["a", "a"]}, "class_names: 'a' occurs twice"),
        (with_labels(0, 1) | {"class_names": ["a", ""]}, "class_names: .*entry 1 is empty"),
        (with_labels(0, 0), "the only class is 0; .*two classes"),
        (with_labels("u", "v") | {"class_names": ["u", "w"]}, "label 'v' of sample 4, expected one of u, w"),
        ({"inputs": np.zeros((4, 1, 8)), "labels": np.arange(4), "lengths": np.full(4, 9)}, "from 1 to 8"),
        (with_labels(0, 1) | {"class_names": ["a"]}, "label 1 of sample 4.* 1 class_names"),
        (
            with_labels(0, 1) | {"labels": np.array([0, 1, 0, 9, 0, 1, 0, 1]), "class_names": ["a", "b"]},
            "train_labels: label 9 of sample 3, but there are only 2 class_names: a, b",
        ),
        (with_labels(0, 1) | {"class_names": "ab"}, r"class_names: shape \(\)"),
        (with_labels(1, 2, 3), r"train_labels: no samples of class 0 \(found 1, 2, 3\).*0 … 3"),
        (with_labels(0, 2, 4), r"no samples of class 1, 3 \(found 0, 2, 4\)"),
        (with_labels(0, 10**12), r"no samples of class 1, 2, .*, 8, … \(found 0, 1000000000000\)"),
        (
            with_labels(0, 1) | {"class_names": ["a", "b", "c"]},
            r"no samples of class 2 \(found 0, 1\), but class_names has 3 names: a, b, c$",
        ),
        ({"inputs": np.full((4, 1, 8), 1e60), "labels": np.arange(4)}, "sample 0 .*not finite in float32, such as inf"),
        (
            {"train_inputs": np.zeros((2, 1, 8)), "train_labels": np.arange(2)}
            | {"test_inputs": np.zeros((3, 1, 8)), "test_labels": np.arange(3)},
            "test_labels: label 2 of sample 2, but the training set has the classes 0, 1",
        ),
    ],
)
def test_error_names_the_problem_of_an_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(data.DamagedDataError, match=message):
        data.load("npz", path=tmp_path / "own.npz")


def test_npz_splits_must_have_equal_samples(tmp_path):
    parts = {"train_inputs": np.zeros((2, 1, 8)), "train_labels": np.arange(2), "test_labels": np.arange(2)}
    np.savez(tmp_path / "own.npz", **parts, test_inputs=np.zeros((2, 1, 9)))
    with pytest.raises(data.DamagedDataError, match=r"train \[1, 8\] float32, test \[1, 9\] float32"):
        data.load("npz", path=tmp_path / "own.npz")


@pytest.mark.parametrize("kind", ["U", "S"])
def test_npz_with_string_labels(tmp_path, kind):
    labels = np.array(["dog", "cat"] * 5).astype(kind)
    np.savez(tmp_path / "own.npz", inputs=np.arange(10.0)[:, None, None].repeat(4, 2), labels=labels)
    own = data.load("npz", path=tmp_path / "own.npz")
    assert own.class_names == ("cat", "dog")
    assert own.train.labels.tolist() == [1 - int(x[0, 0]) % 2 for x in own.train.inputs]


def test_npz_with_class_names_as_bytes(tmp_path):
    np.savez(tmp_path / "own.npz", **with_labels(0, 1), class_names=np.array([b"caf\xc3\xa9", b"tea"]))
    assert data.load("npz", path=tmp_path / "own.npz").class_names == ("café", "tea")


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "expected"),
    [
        ((10, 3, 200), "f4", None, (3, 200)),
        ((10, 12, 200), "u1", None, (12, 200)),
        ((10, 28, 28), "u1", None, (1, 28, 28)),
        ((10, 20, 28), "u1", None, (1, 20, 28)),
        ((10, 28, 28), "f4", "HW", (1, 28, 28)),
        ((10, 28, 28), "f4", "CL", (28, 28)),
        ((10, 200, 1), "f4", "LC", (1, 200)),
        ((10, 200, 3), "f4", "LC", (3, 200)),
        ((10, 200, 3), "f4", "CL", (200, 3)),
        ((10, 200), "f4", "L", (1, 200)),
        ((10, 8, 9, 3), "u1", "HWC", (3, 8, 9)),
        ((10, 3, 8, 9), "u1", None, (3, 8, 9)),
    ],
)
def test_npz_layouts(tmp_path, shape, dtype, layout, expected):
    inputs = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.savez(tmp_path / "own.npz", inputs=inputs, labels=np.arange(10) % 2)
    own = data.load("npz", path=tmp_path / "own.npz", layout=layout, test_share=0.2)
    assert own.train.sample_shape == expected
    every = torch.cat([own.train.inputs, own.test.inputs])
    axis = -1 if layout in ("LC", "HWC") else 1
    moved = torch.from_numpy(inputs if "C" not in (layout or "C") else np.moveaxis(inputs, axis, 1))
    assert sorted(every.flatten(1).tolist()) == sorted(moved.flatten(1).tolist())


@pytest.mark.parametrize("shape", [(10, 28, 28), (10, 20, 28), (10, 4, 4), (10, 200, 3), (10, 200, 1), (10, 8, 8, 3)])
def test_ambiguous_arrays_are_rejected(tmp_path, shape):
    """Series [N, 200, 1] must not be trained as 200 channels of one step."""
    np.savez(tmp_path / "own.npz", inputs=np.zeros(shape, np.float32), labels=np.arange(10) % 2)
    with pytest.raises(data.DamagedDataError, match=r"own\.npz, train_inputs: shape .* set data\.layout="):
        data.load("npz", path=tmp_path / "own.npz")
    with pytest.raises(data.DamagedDataError, match=r"data\.layout=L means \[N, L\]"):
        data.load("npz", path=tmp_path / "own.npz", layout="L")


def test_npz_with_another_byte_order(tmp_path):
    inputs = np.random.default_rng(0).normal(size=(10, 2, 12))
    np.savez(tmp_path / "own.npz", inputs=inputs, labels=np.arange(10) % 2)
    swapped = {"inputs": inputs.astype(inputs.dtype.newbyteorder("S")), "labels": (np.arange(10) % 2).astype(">i2")}
    np.savez(tmp_path / "swapped.npz", **swapped)
    expected, own = (data.load("npz", path=tmp_path / name).train for name in ("own.npz", "swapped.npz"))
    assert torch.equal(own.inputs, expected.inputs)
    assert torch.equal(own.labels, expected.labels)


def test_npz_with_flattened_images(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.zeros((10, 12), np.uint8), labels=np.arange(10) % 2)
    assert data.load("npz", path=tmp_path / "own.npz", shape=[3, 4]).image_size == (3, 4)
    with pytest.raises(data.DamagedDataError, match=r"12 values, but data\.shape=\[3, 5\] needs 3 · 5 = 15"):
        data.load("npz", path=tmp_path / "own.npz", shape=[3, 5])


# --- IDX files --------------------------------------------------------------------------------------------------------


def test_idx_files_like_those_of_mnist(tmp_path):
    written = published.write_mnist(tmp_path, train=40, test=20, side=9)
    folder = tmp_path / "MNIST/raw"
    own = data.load("idx", path=folder / "train-images-idx3-ubyte")
    assert (len(own.train), len(own.test), own.image_size, own.num_classes) == (40, 20, 9, 10)
    assert np.array_equal(own.test.inputs[:, 0].numpy(), written["t10k"])
    for path in folder.iterdir():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    packed = data.load("idx", path=folder / "train-images-idx3-ubyte.gz")
    assert torch.equal(packed.train.inputs, own.train.inputs)
    assert torch.equal(packed.test.labels, own.test.labels)


def test_idx_labels_need_not_start_at_0(tmp_path):
    published.write_idx(tmp_path / "letters-images-idx3-ubyte", np.zeros((10, 4, 5)))
    published.write_idx(tmp_path / "letters-labels-idx1-ubyte", np.arange(10) % 2 + 5)
    own = data.load("idx", path=tmp_path / "letters-images-idx3-ubyte")
    assert (own.class_names, own.image_size, len(own.test)) == (("5", "6"), (4, 5), 2)


def test_error_names_the_problem_of_idx_files(tmp_path):
    images = tmp_path / "train-images-idx3-ubyte"
    published.write_idx(images, np.zeros((10, 4, 5)))
    with pytest.raises(data.MissingDataError, match=r"no train-labels-idx1-ubyte .*data\.labels_path"):
        data.load("idx", path=images)
    published.write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(9) % 2)
    with pytest.raises(data.DamagedDataError, match=r"labels-idx1-ubyte: uint8 of shape \[9\], expected 10 integers"):
        data.load("idx", path=images)
    published.write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(10) % 2)
    published.write_idx(tmp_path / "test-images-idx3-ubyte", np.zeros((4, 4, 5)))
    published.write_idx(tmp_path / "test-labels-idx1-ubyte", np.array([0, 1, 2, 0]))
    with pytest.raises(data.DamagedDataError, match=r"test-labels-idx1-ubyte: label 2 of sample 2, .*has 0, 1"):
        data.load("idx", path=images)
    floats = np.zeros((10, 4, 5), ">f4")
    floats[6, 1, 2] = np.nan
    (tmp_path / "floats-images-idx3-float").write_bytes(struct.pack(">HBB3I", 0, 13, 3, 10, 4, 5) + floats.tobytes())
    labels = tmp_path / "train-labels-idx1-ubyte"
    with pytest.raises(data.DamagedDataError, match=r"idx3-float: sample 6 .*not finite"):
        data.load("idx", path=tmp_path / "floats-images-idx3-float", labels_path=labels)
    images.write_bytes(images.read_bytes()[:-3])
    with pytest.raises(data.DamagedDataError, match=r"announces 10 × 4 × 5, but 197 bytes"):
        data.load("idx", path=images)
    images.write_bytes(b"\x89PNG")
    with pytest.raises(data.DamagedDataError, match="not an IDX file; it starts with 89 50"):
        data.load("idx", path=images)


# --- folders ----------------------------------------------------------------------------------------------------------


def test_split_folders_in_any_case(write_images):
    """A folder Train beside test must not become a class."""
    write_images("pets/Train")
    folder = write_images("pets/TEST", count=2).parent
    own = data.load("folder", path=folder)
    assert (own.class_names, len(own.train), len(own.test)) == (("cat", "dog"), 10, 4)


def test_test_folder_without_training_folder_is_an_error(write_images):
    write_images("pets")
    folder = write_images("pets/test").parent
    with pytest.raises(data.MissingDataError, match=r"has a folder test, but none called train"):
        data.load("folder", path=folder)


def test_single_class_folder_is_an_error(write_images):
    with pytest.raises(data.DamagedDataError, match=r"pets: the only class is cat; .*two classes"):
        data.load("folder", path=write_images("pets", classes=("cat",)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.csv", "is a file, expected a folder; .*data.name=table"),
        ("own.npz", "is a file, expected a folder; .*data.name=npz"),
        ("x.zip", r"unknown kind of file, expected .csv, .*\.npz.* or a folder"),
        ("x.npy", r"unknown kind of file, expected .csv, .*numpy\.savez writes train_inputs"),
    ],
)
def test_file_in_place_of_a_folder_is_an_error(tmp_path, name, message):
    (tmp_path / name).write_text("label,a,b\n")
    with pytest.raises(data.MissingDataError, match=rf"{name}:? {message}"):
        data.load("folder", path=tmp_path / name)


def test_folder_of_tables_names_the_path_to_set(tmp_path):
    (tmp_path / "train.csv").write_text("label,a,b\n")
    with pytest.raises(data.MissingDataError, match=r"data\.path=.*train\.csv"):
        data.load("folder", path=tmp_path)


def test_test_share_is_checked_although_there_is_a_test_folder(write_images):
    write_images("pets/train")
    folder = write_images("pets/test").parent
    with pytest.raises(ValueError, match=r"data\.test_share .*got 'a'"):
        data.load("folder", path=folder, test_share="a")


def test_npz_with_pickles_is_an_error(tmp_path):
    np.savez(tmp_path / "own.npz", inputs=np.array([{"a": 1}], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(data.DamagedDataError, match="cannot be read"):
        data.load("npz", path=tmp_path / "own.npz")


def test_file_that_is_no_npz_archive_is_an_error_without_talk_of_pickles(tmp_path):
    (tmp_path / "own.npz").write_bytes(b"not an archive")
    with pytest.raises(data.DamagedDataError, match=r"own\.npz: cannot be read: .*numpy\.savez") as caught:
        data.load("npz", path=tmp_path / "own.npz")
    assert "pickle" not in str(caught.value)


def test_shows_that_gray_images_can_be_read_with_one_channel(write_images, capsys):
    folder = write_images("pets")
    assert cli.run(["data", "show", str(folder)]) == 0
    assert "data.mode=gray" not in capsys.readouterr().out
    image = pytest.importorskip("PIL.Image")
    for path in folder.rglob("*.png"):
        image.open(path).convert("L").save(path)
    assert cli.run(["data", "show", str(folder)]) == 0
    assert "data.mode=gray" in capsys.readouterr().out
    assert cli.run(["data", "show", str(folder), "--set", "data.mode=gray"]) == 0
    shown = capsys.readouterr().out
    assert "with 1 channel" in shown
    assert "data.mode=gray" not in shown


def test_two_validation_folders_are_an_error(write_images):
    for part in ("train", "val", "validation"):
        folder = write_images(f"pets/{part}").parent
    with pytest.raises(data.MissingDataError, match="both val and validation"):
        data.load("folder", path=folder)


def test_path_that_is_a_number_is_an_error():
    with pytest.raises(TypeError, match=r"path .*got 2024"):
        data.load("folder", path=2024)


def test_eval_on_recordings_of_another_rate_is_an_error(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for rate in (8_000, 16_000):
        for word in ("no", "yes"):
            for i in range(6):
                wave = draw.integers(-(2**15), 2**15, 80).astype("<i2")
                published.write_wav(tmp_path / str(rate) / word / f"{i}.wav", wave, rate=rate)
    tree = {"model": {"name": "flextcn2", "widths": [2, 2]}, "data": {"path": str(tmp_path / "8000")}, "epochs": 1}
    train.train(train.build_recipe(tree | {"batch_size": 4}), tmp_path / "run", device="cpu", plots=False)
    assert cli.run(["eval", str(tmp_path / "run/weights"), "--device", "cpu", "--data", str(tmp_path / "16000")]) == 2
    message = capsys.readouterr().err
    assert f"needs recordings at 8000 Hz; {tmp_path / '16000'} has 16000 Hz" in message
    assert "at_resolution(model, 2)" in message
    save_pretrained(at_resolution(from_pretrained(tmp_path / "run/weights"), 2), tmp_path / "faster")
    assert cli.run(["eval", str(tmp_path / "faster"), "--device", "cpu", "--data", str(tmp_path / "16000")]) == 0


def test_home_of_an_unknown_user_is_an_ordinary_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(data.MissingDataError, match="~0"):
        data.load("folder", path="~0", root=tmp_path)
