"""Files of samples without labels, which `flexconv predict` reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flexconv import data

from . import published


def test_reads_an_image_in_the_colors_of_the_network(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    image.new("RGB", (6, 4), (10, 20, 30)).save(path)
    color = data.read_unlabelled(path, channels=3, size=(8, 8))
    assert (color.inputs.shape, color.inputs[0, :, 0, 0].tolist()) == ((1, 3, 4, 6), [10, 20, 30])
    assert color.names == (str(path),)
    assert data.read_unlabelled(path, channels=1, size=(8, 8)).inputs.shape == (1, 1, 4, 6)
    with pytest.raises(data.DamagedDataError, match=r"a\.png: .*images with 3 channels, .*expects series with 2"):
        data.read_unlabelled(path, channels=2, size=(8,))


def test_reads_a_recording_with_its_rate(tmp_path):
    wave = np.arange(20, dtype="<i2").reshape(10, 2)
    published.write_wav(tmp_path / "a.wav", wave, rate=8_000, channels=2)
    read = data.read_unlabelled(tmp_path / "a.wav", channels=2, size=(100,))
    assert (read.inputs.tolist(), read.rate) == ([wave.T.tolist()], 8_000)
    with pytest.raises(data.DamagedDataError, match=r"a\.wav: .*2 channels, but the network expects series with 1"):
        data.read_unlabelled(tmp_path / "a.wav", channels=1, size=(100,))


@pytest.mark.parametrize(
    ("shape", "channels", "size", "expected"),
    [
        ((5, 200, 1), 1, (200,), (5, 1, 200)),
        ((5, 1, 90), 1, (200,), (5, 1, 90)),
        ((5, 200), 1, (200,), (5, 1, 200)),
        ((200,), 1, (200,), (1, 1, 200)),
        ((3, 200), 3, (200,), (1, 3, 200)),
        ((200, 3), 3, (200,), (1, 3, 200)),
        ((28, 28), 1, (28, 28), (1, 1, 28, 28)),
        ((5, 28, 28), 1, (28, 28), (5, 1, 28, 28)),
        ((5, 784), 1, (28, 28), (5, 1, 28, 28)),
        ((5, 28, 28, 3), 3, (32, 32), (5, 3, 28, 28)),
        ((28, 28, 3), 3, (32, 32), (1, 3, 28, 28)),
        ((3, 28, 28), 3, (32, 32), (1, 3, 28, 28)),
    ],
)
def test_the_network_decides_the_layout_of_an_array(tmp_path, shape, channels, size, expected):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "a.npz", inputs=values, labels=np.zeros(3))
    for name in ("a.npy", "a.npz"):
        assert data.read_unlabelled(tmp_path / name, channels=channels, size=size).inputs.shape == expected


def test_layout_of_an_array_can_be_given(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 3, 3)))
    read = data.read_unlabelled(tmp_path / "a.npy", channels=3, size=(3,), layout="LC")
    assert (read.inputs.shape, read.names[0], len(read.names)) == ((5, 3, 3), f"{tmp_path / 'a.npy'}:1", 5)
    with pytest.raises(ValueError, match=r"data\.layout=HW does not fit the network"):
        data.read_unlabelled(tmp_path / "a.npy", channels=3, size=(3,), layout="HW")


def test_reads_rows_of_a_table_for_a_network(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,a,b,c,d,e,f\ncat,1,2,3,4,5,6\ndog,7,8,9,10,11,12\n")
    assert data.read_unlabelled(path, channels=1, size=(6,)).inputs[1].tolist() == [[7, 8, 9, 10, 11, 12]]
    assert data.read_unlabelled(path, channels=1, size=(2, 3)).inputs[0].tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert data.read_unlabelled(path, channels=2, size=(3,)).inputs[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert data.read_unlabelled(path, channels=1, size=(6,)).names == (f"{path}:1", f"{path}:2")
    with pytest.raises(data.DamagedDataError, match=r"6 values per row, .* samples of 1 × 4 × 4 = 16"):
        data.read_unlabelled(path, channels=1, size=(4, 4))
    with pytest.raises(data.DamagedDataError, match=r"6 values per row, .* samples of 4 × 3 = 12 values"):
        data.read_unlabelled(path, channels=4, size=(3,))


def test_reads_a_table_without_labels(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    assert data.read_unlabelled(tmp_path / "a.csv", channels=1, size=(2,)).inputs.tolist() == [[[1, 2]], [[3, 4]]]
    (tmp_path / "b.csv").write_text("1,2\n")
    assert data.read_unlabelled(tmp_path / "b.csv", channels=1, size=(2,)).inputs.tolist() == [[[1, 2]]]
    (tmp_path / "b.csv").write_text("1,2,3,4\n")
    (tmp_path / "labelled.csv").write_text("7,1,2,3,4\n")
    for name in ("b.csv", "labelled.csv"):
        read = data.read_unlabelled(tmp_path / name, channels=1, size=(2, 2), label=0, shape=[2, 2])
        assert read.inputs.tolist() == [[[[1, 2], [3, 4]]]]
    (tmp_path / "c.csv").write_text("id,x,y\nu,1,2\nu,3,4\nv,5,6\n")
    read = data.read_unlabelled(tmp_path / "c.csv", channels=2, size=(9,), id="id")
    assert (read.inputs.shape, read.lengths.tolist()) == ((2, 2, 2), [2, 1])
    assert read.names == tuple(f"{tmp_path / 'c.csv'}:{name}" for name in "uv")


def test_reads_idx_images(tmp_path):
    published.write_idx(tmp_path / "new-images-idx3-ubyte", np.full((4, 5, 6), 7))
    read = data.read_unlabelled(tmp_path / "new-images-idx3-ubyte", channels=1, size=(28, 28))
    assert torch.equal(read.inputs, torch.full((4, 1, 5, 6), 7, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xyz", b"", r"a\.xyz: unknown kind of file"),
        ("a.npy", b"no", r"a\.npy: cannot be read"),
        ("a.csv", b"", r"a\.csv: the file is empty"),
    ],
)
def test_error_names_the_file(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(data.DataError, match=message):
        data.read_unlabelled(tmp_path / name, channels=1, size=(8,))


def test_error_names_a_missing_file_and_a_wrong_shape(tmp_path):
    with pytest.raises(data.MissingDataError, match=r"a\.png does not exist"):
        data.read_unlabelled(tmp_path / "a.png", channels=1, size=(8,))
    with pytest.raises(data.MissingDataError, match="is a folder"):
        data.read_unlabelled(tmp_path, channels=1, size=(8,))
    np.save(tmp_path / "a.npy", np.zeros((5, 7, 9)))
    with pytest.raises(data.DamagedDataError, match=r"shape \(5, 7, 9\), but the network needs \[N, 3, length\]"):
        data.read_unlabelled(tmp_path / "a.npy", channels=3, size=(8,))
    values = np.zeros((5, 8))
    values[2, 3] = np.nan
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(data.DamagedDataError, match=r"a\.npy, row 3: .*not finite"):
        data.read_unlabelled(tmp_path / "a.npy", channels=1, size=(8,))
    np.save(tmp_path / "a.npy", values[2])
    with pytest.raises(data.DamagedDataError, match=r"a\.npy: .*not finite"):
        data.read_unlabelled(tmp_path / "a.npy", channels=1, size=(8,))
    with pytest.raises(ValueError, match=r"id is not an option for .*a\.npy"):
        data.read_unlabelled(tmp_path / "a.npy", channels=1, size=(8,), id="x")
