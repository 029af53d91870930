"""Errors for truncated, altered and wrong files name the file and the problem."""

from __future__ import annotations

import dataclasses
import gzip
import os
import pickle
import re

import numpy as np
import pytest

from flexconv import data
from flexconv.data import _registry
from flexconv.data._files import checksum, read_manifest, write_manifest
from flexconv.data._idx import read_idx
from flexconv.data._pickles import load_arrays
from flexconv.data._ts import read_ts
from flexconv.data._wav import read_wav

from . import published


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """Tiny MNIST files whose sizes and checksums are in the registry in place of the published ones."""
    published.write_mnist(tmp_path)
    mnist = data.dataset("mnist")
    files = tuple(
        data.DataFile(f.path, (tmp_path / f.path).stat().st_size, checksum(tmp_path / f.path)) for f in mnist.files
    )
    monkeypatch.setitem(_registry._DATASETS, "mnist", dataclasses.replace(mnist, files=files))
    assert len(data.load("mnist", root=tmp_path).train) == 40
    return tmp_path


LABELS = "MNIST/raw/train-labels-idx1-ubyte"


def test_truncated_file(pinned):
    path = pinned / LABELS
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(data.DamagedDataError, match=r"train-labels-idx1-ubyte: truncated, 43 of 48 .*data fetch"):
        data.load("mnist", root=pinned)
    assert data.status("mnist", root=pinned).state == "damaged"
    assert data.status("mnist", root=pinned, verify=False).state == "damaged"  # sizes are always compared


def test_flipped_bit(pinned):
    path = pinned / "MNIST/raw/t10k-images-idx3-ubyte"
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 4
    path.write_bytes(raw)
    with pytest.raises(data.DamagedDataError, match=r"t10k-images-idx3-ubyte: .*contents differ.* sha256:"):
        data.load("mnist", root=pinned)
    state = data.status("mnist", root=pinned)
    assert state.state == "damaged"
    assert len(state.problems) == 1
    with pytest.raises(data.DamagedDataError):
        data.fetch("mnist", root=pinned, offline=True)


def test_file_of_another_version(pinned):
    path = pinned / LABELS
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(data.DamagedDataError, match=r"52 bytes.*48.*another version"):
        data.load("mnist", root=pinned)


def test_missing_file_and_missing_data_set(pinned, tmp_path_factory, monkeypatch):
    (pinned / LABELS).unlink()
    with pytest.raises(data.MissingDataError, match=r"no MNIST/raw/train-labels-idx1-ubyte.*flexconv data fetch mn"):
        data.load("mnist", root=pinned)
    assert data.status("mnist", root=pinned).state == "incomplete"
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(data.MissingDataError, match=re.escape(f"{empty} (the given root)")):
        data.load("cifar10", root=empty)
    monkeypatch.setenv("FLEXCONV_DATA", str(empty))
    with pytest.raises(data.MissingDataError, match=re.escape(f"{empty} (from FLEXCONV_DATA)")):
        data.load("cifar10")
    monkeypatch.delenv("FLEXCONV_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty))
    monkeypatch.setenv("LOCALAPPDATA", str(empty))
    monkeypatch.setenv("HOME", str(empty))
    with pytest.raises(data.MissingDataError, match="the user's cache"):
        data.fetch("cifar10", offline=True)
    assert data.status("cifar10").state == "absent"
    with pytest.raises(data.MissingDataError, match=r"https://image-net.org.*imagenet32/"):
        data.load("imagenet32")


def test_checksums_of_downloads_are_recorded(tmp_path):
    published.write_trajectories(tmp_path)
    path = tmp_path / "CharacterTrajectories" / "CharacterTrajectories_TEST.ts"
    write_manifest(tmp_path, {path.relative_to(tmp_path).as_posix(): checksum(path)})
    write_manifest(tmp_path, {"other": "sha256:0"})
    assert set(read_manifest(tmp_path)) == {path.relative_to(tmp_path).as_posix(), "other"}
    assert data.status("character_trajectories", root=tmp_path).state == "present"
    path.write_text(path.read_text().replace("1", "2", 1))
    assert data.status("character_trajectories", root=tmp_path).state == "damaged"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (gzip.compress(b"\0\0\x08\x01\0\0\0\0", mtime=0), "gzip"),
        (b"\0\0\x0d\x01\0\0\0\x02ab", "00 00 0d 01, expected 00 00 08 01"),
        (b"\0\0\x08\x01\0\0\0\x03ab", "announces 3, but 2 bytes"),
        (b"\0\0\x08\x01\0", "announces more axes"),
        (b"", "not an IDX file"),
    ],
)
def test_damaged_idx(tmp_path, raw, message):
    (tmp_path / "labels").write_bytes(raw)
    with pytest.raises(data.DamagedDataError, match=f"labels: .*{message}"):
        read_idx(tmp_path / "labels", dims=1)


def test_damaged_cifar10_batches(tmp_path):
    rows = published.write_cifar10(tmp_path)["test_batch"]
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(rows.tobytes()[:-1])
    with pytest.raises(data.DamagedDataError, match=r"test_batch\.bin: 61,459 bytes"):
        data.load("cifar10", root=tmp_path, verify=False)
    rows[4, 0] = 11
    rows.tofile(path)
    with pytest.raises(data.DamagedDataError, match=r"test_batch\.bin: label 11"):
        data.load("cifar10", root=tmp_path, verify=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@classLabel true a b\n@data\n1,2:3,4:a\n1,2:3", "line 4: .*'3'.*not a class"),
        ("@classLabel true a b\n@data\n1,2:3:a\n", "line 3: "),
        ("@classLabel true a b\n@data\n1,?:3,4:a\n", "line 3: could not convert"),
        ("@classLabel true a b\n@data\n1,nan:3,4:a\n", "line 3: .*not finite"),
        ("@classLabel true a b\n@data\n1,2:3,4:a\n1,2:a\n", "line 4: 1 channels.* 2"),
        ("@classLabel false\n@data\n", "line 1: .*@classLabel true"),
        ("@timeStamps true\n@data\n", "line 1: time stamps"),
        ("@data\n", "line 1: .*no @classLabel"),
        ("1,2:3,4:a\n", "line 1: .*header line"),
        ("@classLabel true a b\n@data\n", "no sequences.*truncated"),
    ],
)
def test_damaged_ts(tmp_path, text, message):
    (tmp_path / "x.ts").write_text(text)
    with pytest.raises(data.DamagedDataError, match=message):
        read_ts(tmp_path / "x.ts")


def test_trajectories_with_wrong_count(tmp_path):
    published.write_trajectories(tmp_path)
    with pytest.raises(data.DamagedDataError, match=r"_TRAIN\.ts: 60 .*1,422"):
        data.load("character_trajectories", root=tmp_path)


def test_damaged_wav(tmp_path):
    path = tmp_path / "a.wav"
    published.write_wav(path, np.arange(100, dtype="<i2"), channels=2)
    samples, rate = read_wav(path)
    assert rate == 16_000
    assert samples.tolist() == [list(range(0, 100, 2)), list(range(1, 100, 2))]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(data.DamagedDataError, match=r"a\.wav: truncated, 42 of 50 samples"):
        read_wav(path)
    path.write_bytes(b"RIFF")
    with pytest.raises(data.DamagedDataError, match=r"a\.wav: .*cannot be read"):
        read_wav(path)
    published.write_wav(path, np.zeros(9, np.uint8), width=1)
    with pytest.raises(data.DamagedDataError, match="8 bits per sample"):
        read_wav(path)


def test_speech_commands_of_another_version_or_rate(tmp_path):
    folder = published.write_speech(tmp_path, per_word=3)
    with pytest.raises(data.MissingDataError, match=r"no speech_commands_v0.02/validation_list.txt"):
        data.load("speech_commands", root=tmp_path)
    published.write_wav(folder / "go" / "x.wav", np.zeros(100, "<i2"), rate=8_000)
    with pytest.raises(data.DamagedDataError, match=r"go/x\.wav: 1 channels of 100 samples at 8000 Hz"):
        data.load("speech_commands_raw_v0.01", root=tmp_path)
    for path in (folder / "go").iterdir():
        path.unlink()
    with pytest.raises(data.MissingDataError, match="no clips of go"):
        data.load("speech_commands_raw_v0.01", root=tmp_path)


def test_overlapping_lists_are_an_error(tmp_path):
    folder = published.write_speech(tmp_path, per_word=3)
    (folder / "testing_list.txt").write_text((folder / "validation_list.txt").read_text())
    with pytest.raises(data.DamagedDataError, match=r"validation_list.txt and testing_list.txt"):
        data.load("speech_commands_raw_v0.01", root=tmp_path)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def test_pickles_can_only_contain_arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Evil()}))
    with pytest.raises(data.DamagedDataError, match=r"batch: cannot be read: .*(posix|nt).mkdir"):
        load_arrays(path)
    assert not (tmp_path / "evil").exists()
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(data.DamagedDataError, match="contains a list"):
        load_arrays(path)
    whole = pickle.dumps({"data": np.arange(5)})
    path.write_bytes(whole[:-9])
    with pytest.raises(data.DamagedDataError, match="truncated"):
        load_arrays(path)
    for protocol in range(2, 6):
        path.write_bytes(pickle.dumps({b"data": np.arange(5), "labels": [1, np.int64(2)]}, protocol))
        assert load_arrays(path)["data"].tolist() == list(range(5))


def test_damaged_imagenet_batches(tmp_path):
    published.write_imagenet(tmp_path)
    with pytest.raises(data.DamagedDataError, match=r"the batches contain .*published"):
        data.load("imagenet8", root=tmp_path)
    assert not list((tmp_path / "imagenet8").glob(".*"))  # no incomplete files remain
    (tmp_path / "imagenet8").rename(tmp_path / "imagenet16")
    with pytest.raises(data.DamagedDataError, match=r"batch_1\.npz: uint8 images of shape \(6, 192\).*16 × 16"):
        data.load("imagenet16", root=tmp_path, verify=False)
    (tmp_path / "imagenet16").rename(tmp_path / "imagenet8")
    data.load("imagenet8", root=tmp_path, verify=False)
    prepared = tmp_path / "imagenet8" / "flexconv-v1" / "train.bin"
    prepared.write_bytes(prepared.read_bytes()[:-1])
    with pytest.raises(data.DamagedDataError, match=r"train\.bin: 11,519 bytes, expected 11,520"):
        data.load("imagenet8", root=tmp_path, verify=False)


def test_rejects_invalid_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"data set 'cifar': .*did you mean 'cifar10'"):
        data.load("cifar")
    with pytest.raises(ValueError, match=r"protocol 'papers'.*did you mean 'paper'"):
        data.load("digits", protocol="papers")
    with pytest.raises(ValueError, match=r"digits .*protocol .*'paper'"):
        data.load("digits", protocol="paper")
    with pytest.raises(ValueError, match=r"validation .*got 1.5"):
        data.load("digits", validation=1.5)
    with pytest.raises(ValueError, match="'digits' has no options; got 'size'"):
        data.load("digits", size=3)
    with pytest.raises(ValueError, match=r"option 'pth' of data set 'folder'.*did you mean 'path'"):
        data.load("folder", pth=tmp_path)
    assert data.options("pmnist") == {"permutation_seed": 0}
