"""Pickles that were made to do harm are refused: they cannot choose memory, dtypes or functions."""

from __future__ import annotations

import pickle
import resource

import numpy as np
import pytest

from flexconv import data
from flexconv.data._pickles import load_arrays

from . import published


class Call:
    """Pickled as a call of a function, with an optional state."""

    def __init__(self, function, *arguments, state=None):
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.parts


reconstruct = np.array([1]).__reduce__()[0]
scalar = np.int64(1).__reduce__()[0]
frombuffer = np.arange(3).__reduce_ex__(5)[0]

HOSTILE = {
    "pointer": Call(np.ndarray, (1,), np.dtype("O"), b"AAAAAAAA"),
    "pointer of a number": Call(np.ndarray, (1,), np.dtype("i8"), b"AAAAAAAA", 0, (1 << 40,)),
    "object scalar": Call(scalar, np.dtype("O"), b"AAAAAAAA"),
    "object buffer": Call(frombuffer, b"AAAAAAAA", np.dtype("O"), (1,), "C"),
    "object array": np.array([None, {}], dtype=object),
    "structure with objects": Call(frombuffer, b"A" * 8, np.dtype([("a", "O")]), (1,), "C"),
    "dtype by name": Call(np.dtype, "O"),
    "too few bytes": Call(reconstruct, np.ndarray, (0,), b"b", state=(1, (9,), np.dtype("i8"), False, b"A" * 8)),
    "negative shape": Call(reconstruct, np.ndarray, (0,), b"b", state=(1, (-1,), np.dtype("i8"), False, b"A" * 8)),
    "huge shape": Call(reconstruct, np.ndarray, (0,), b"b", state=(1, (1 << 62, 4), np.dtype("i8"), False, b"")),
    "shape of floats": Call(reconstruct, np.ndarray, (0,), b"b", state=(1, (1.0,), np.dtype("i8"), False, b"A" * 8)),
    "state of text": Call(reconstruct, np.ndarray, (0,), b"b", state="state"),
    "array without values": Call(reconstruct, np.ndarray, (0,), b"b"),
    "strings": np.array(["a", "b"]),
    "complex": np.array([1j]),
    "dictionary": {"a": 1},
    "fractions": [1.5, 2.5],
    "huge numbers": [10**30] * 6,
    "nested arrays": [np.arange(2), np.arange(2)],
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_labels_are_refused(tmp_path, name, protocol):
    published.write_imagenet(tmp_path, npz=False)
    path = tmp_path / "imagenet8" / "train_data_batch_3"
    images = np.zeros((6, 192), np.uint8)
    path.write_bytes(pickle.dumps({"data": images, "labels": HOSTILE[name]}, protocol))
    with pytest.raises(data.DamagedDataError, match="train_data_batch_3"):
        data.load("imagenet8", root=tmp_path, verify=False)


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_images_are_refused(tmp_path, name):
    published.write_imagenet(tmp_path, npz=False)
    path = tmp_path / "imagenet8" / "val_data"
    path.write_bytes(pickle.dumps({"data": HOSTILE[name], "labels": [1]}))
    with pytest.raises(data.DamagedDataError, match="val_data"):
        data.load("imagenet8", root=tmp_path, verify=False)


def test_functions_cannot_be_changed(tmp_path):
    path = tmp_path / "batch"
    for state in (b"}", b"N}X\x01\x00\x00\x00aK\x01s\x86"):  # attributes, and attributes in slots
        path.write_bytes(b"\x80\x02}X\x04\x00\x00\x00datacnumpy\ndtype\n" + state + b"bs.")
        with pytest.raises(data.DamagedDataError, match="batch"):
            load_arrays(path)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numbers_are_read(tmp_path, protocol, dtype, order):
    path, array = tmp_path / "batch", np.asarray(np.arange(12).reshape(3, 4), dtype, order=order)
    content = {"data": array, b"labels": [1, np.int64(2)], "empty": array[:0], "number": np.float32(0.5), "name": "a"}
    path.write_bytes(pickle.dumps(content, protocol))
    found = load_arrays(path)
    np.testing.assert_array_equal(found["data"], array)
    assert found["data"].dtype == array.dtype
    assert found["empty"].shape == (0, 4)
    assert (found["labels"], found["number"], found["name"]) == ([1, 2], 0.5, "a")


def test_small_file_needs_little_memory(tmp_path):
    """The file announces an object of the number 2³⁰ − 1. A table of so many would take 16 GiB."""
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x3f.")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert load_arrays(path) == {}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**18  # in KiB
