"""`fetch`: mirrors, checksums and archives, with a local server."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import http.server
import io
import sys
import tarfile
import threading
import zipfile

import pytest

from flexconv import data
from flexconv.data import _registry
from flexconv.data._files import read_manifest

from . import published


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def mirror(tmp_path):
    """A folder, and the address at which it is served."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def checksum_of(path):
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def remote_set(monkeypatch, mirror, tmp_path):
    """`character_trajectories`, served by the local server as a zip file."""
    pytest.importorskip("pooch")
    folder, address = mirror
    published.write_trajectories(tmp_path / "origin")
    with zipfile.ZipFile(folder / "good.zip", "w") as packed:
        for path in (tmp_path / "origin" / "CharacterTrajectories").iterdir():
            packed.write(path, f"nested/{path.name}")
        packed.writestr("nested/readme.txt", "not wanted")

    def offer(urls, checksum):
        chosen = data.dataset("character_trajectories")
        download = dataclasses.replace(
            chosen.downloads[0], urls=tuple(f"{address}/{u}" for u in urls), checksum=checksum
        )
        offered = dataclasses.replace(chosen, downloads=(download,))
        monkeypatch.setitem(_registry._DATASETS, "character_trajectories", offered)

    return folder, offer


def test_tries_the_next_mirror_after_a_failure(remote_set, tmp_path):
    folder, offer = remote_set
    (folder / "bad.zip").write_bytes((folder / "good.zip").read_bytes()[:-7])
    offer(["absent.zip", "bad.zip", "good.zip"], checksum_of(folder / "good.zip"))
    root = tmp_path / "root"
    assert data.fetch("character_trajectories", root=root) == root
    assert sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()) == [
        "CharacterTrajectories/CharacterTrajectories_TEST.ts",
        "CharacterTrajectories/CharacterTrajectories_TRAIN.ts",
        "flexconv-checksums.json",
    ]
    assert len(read_manifest(root)) == 2
    (folder / "good.zip").unlink()
    data.fetch("character_trajectories", root=root)  # the files are present: nothing is downloaded
    assert len(data.load("character_trajectories", root=root, verify=False).train) == 60


def test_damaged_file_is_downloaded_again(remote_set, tmp_path):
    _, offer = remote_set
    offer(["good.zip"], None)
    root = tmp_path / "root"
    data.fetch("character_trajectories", root=root)
    path = root / "CharacterTrajectories" / "CharacterTrajectories_TEST.ts"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert data.status("character_trajectories", root=root).state == "damaged"
    data.fetch("character_trajectories", root=root)
    assert path.read_bytes() == whole


def test_error_lists_all_mirrors_that_failed(remote_set, tmp_path):
    folder, offer = remote_set
    offer(["absent.zip", "good.zip"], "sha256:" + "0" * 64)
    with pytest.raises(data.DataError, match=r"(?s)could not be downloaded.*absent\.zip: .*404.*good\.zip: .*hash"):
        data.fetch("character_trajectories", root=tmp_path / "root")
    assert not any(p.is_file() for p in (tmp_path / "root").rglob("*"))
    (folder / "good.zip").write_bytes(b"no archive")
    offer(["good.zip"], None)
    with pytest.raises(data.DamagedDataError, match=r"CharacterTrajectories.zip .*unpacked"):
        data.fetch("character_trajectories", root=tmp_path / "root")


def test_offline_needs_no_pooch_and_downloading_does(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(data.MissingDataError, match="flexconv data fetch mnist"):
        data.fetch("mnist", root=tmp_path, offline=True)
    with pytest.raises(ImportError, match=r"pooch.*\[train\]"):
        data.fetch("mnist", root=tmp_path)
    assert data.fetch("digits", root=tmp_path) == tmp_path


def test_error_gives_instructions_for_manual_downloads(tmp_path):
    with pytest.raises(data.MissingDataError, match=r"imagenet16 .*registration"):
        data.fetch("imagenet16", root=tmp_path)


def test_unpacks_gzip_and_tar_archives(mirror, tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    import gzip

    folder, address = mirror
    published.write_mnist(tmp_path / "origin")
    downloads, files = [], []
    for path in (tmp_path / "origin" / "MNIST" / "raw").iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        sums = checksum_of(folder / f"{path.name}.gz")
        downloads.append(data.Download(f"{path.name}.gz", (f"{address}/{path.name}.gz",), sums, into="MNIST/raw"))
        files.append(data.DataFile(f"MNIST/raw/{path.name}", path.stat().st_size, checksum_of(path)))
    offered = dataclasses.replace(data.dataset("mnist"), downloads=tuple(downloads), files=tuple(files))
    monkeypatch.setitem(_registry._DATASETS, "mnist", offered)
    data.fetch("mnist", root=tmp_path / "root")
    assert len(data.load("mnist", root=tmp_path / "root").test) == 20

    published.write_speech(tmp_path / "origin", "0.02", per_word=3)
    with tarfile.open(folder / "speech.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "origin" / "speech_commands_v0.02", arcname=".")
    chosen = data.dataset("speech_commands_raw")
    download = dataclasses.replace(
        chosen.downloads[0], urls=(f"{address}/speech.tar.gz",), checksum=checksum_of(folder / "speech.tar.gz")
    )
    monkeypatch.setitem(_registry._DATASETS, chosen.name, dataclasses.replace(chosen, downloads=(download,)))
    data.fetch("speech_commands_raw", root=tmp_path / "root")
    assert len(data.load("speech_commands_raw", root=tmp_path / "root").train) == 10


def test_archives_cannot_write_outside_the_folder(tmp_path):
    from flexconv.data._fetch import _unpack

    evil = tmp_path / "evil.tar.gz"
    with tarfile.open(evil, "w:gz") as packed:
        member = tarfile.TarInfo("../outside.txt")
        member.size = 4
        packed.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(data.DamagedDataError, match="unpacked"):
        _unpack(evil, tmp_path / "inside", None)
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as packed:
        packed.writestr("../outside.txt", "evil")
    _unpack(tmp_path / "evil.zip", tmp_path / "unpacked", None)
    assert not (tmp_path / "outside.txt").exists()


def test_every_download_has_a_checksum_except_one():
    unpinned = {name for name in data.list_datasets() for d in data.dataset(name).downloads if d.checksum is None}
    assert unpinned == {"character_trajectories"}
    for name in data.list_datasets():
        chosen = data.dataset(name)
        assert chosen.downloads or chosen.instructions or not chosen.needs_files
        for download in chosen.downloads:
            assert len(download.urls) >= 2
