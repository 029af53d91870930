"""Checkpoints are intact, or an error names the damaged one."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from flexconv.train.checkpoint import CheckpointError, checkpoints, load_checkpoint, load_latest, save_checkpoint


def state(value):
    return {"model": {"w": torch.full((100,), float(value))}, "step": value, "best": None}


def test_loads_what_was_saved(tmp_path):
    path = save_checkpoint(tmp_path, 7, state(7))
    loaded = load_checkpoint(path)
    assert loaded["step"] == 7
    assert torch.equal(loaded["model"]["w"], torch.full((100,), 7.0))


def test_keeps_the_last_two(tmp_path):
    for step in (1, 2, 30, 400):
        save_checkpoint(tmp_path, step, state(step))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000030.ckpt", "step-000000400.ckpt"]


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def foreign(path):
    torch.save(state(1), path)


@pytest.mark.parametrize("harm", [truncate, flip, empty, foreign])
def test_names_damaged_checkpoint_and_uses_the_one_before(tmp_path, harm):
    save_checkpoint(tmp_path, 1, state(1))
    newest = save_checkpoint(tmp_path, 2, state(2))
    harm(newest)
    with pytest.raises(CheckpointError, match=newest.name):
        load_checkpoint(newest)
    loaded, problems = load_latest(tmp_path)
    assert loaded is not None
    assert loaded["step"] == 1
    assert newest.name in problems[0]


def test_loads_nothing_from_folder_without_checkpoints(tmp_path):
    assert load_latest(tmp_path / "none") == (None, [])


def test_does_not_execute_code_in_a_checkpoint(tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    path = save_checkpoint(tmp_path, 1, {"x": Evil()})
    with pytest.raises(Exception, match=r"[Ww]eights"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    old = save_checkpoint(tmp_path, 1, state(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=f"no space left.*{old.name}.*intact"):
        save_checkpoint(tmp_path, 2, state(2))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == [old.name]
    assert load_checkpoint(old)["step"] == 1


def test_full_disk_with_a_real_file_system(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True
        ).returncode
    ):
        pytest.skip("cannot mount a small disk here")
    try:
        old = save_checkpoint(disk, 1, state(1))
        with pytest.raises(CheckpointError, match="no space left"):
            save_checkpoint(disk, 2, {"model": {"w": torch.zeros(10**6)}})
        assert load_latest(disk)[0]["step"] == 1
        assert os.listdir(disk) == [old.name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
