"""Checkpoints that survive a crash at any time.

A checkpoint is written to a temporary file, flushed to disk and renamed, so a process that dies at any point leaves at
least one intact checkpoint. The file begins with the SHA-256 of its content, so a truncated or changed checkpoint is
detected. The last two checkpoints are kept.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from ..errors import UsageError

MAGIC = b"flexconv checkpoint 1\n"
KEEP = 2


class CheckpointError(UsageError):
    """A checkpoint cannot be written, is damaged, or does not fit the run."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` (tensors, numbers, strings, lists, dicts) as the checkpoint of `step`. Keeps the last two."""
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:09d}.ckpt"
    partial = folder / f".{path.name}.part"  # see `is_partial`
    try:
        with partial.open("wb") as file:
            file.write(MAGIC + hashlib.sha256(content).digest())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _flush_folder(folder)
    except OSError as error:
        partial.unlink(missing_ok=True)
        why = "no space left on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        kept = checkpoints(folder)
        rest = f"the last one, {kept[-1].name}, is intact" if kept else "there is no earlier one"
        raise CheckpointError(f"cannot write checkpoint {path}: {why}; {rest}") from error
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load the state from a file to the CPU. Code in the file is not executed."""
    content = path.read_bytes()
    start = len(MAGIC) + hashlib.sha256().digest_size
    if not content.startswith(MAGIC):
        raise CheckpointError(f"{path} is not a checkpoint of this version of flexconv, or its beginning is damaged")
    if hashlib.sha256(content[start:]).digest() != content[len(MAGIC) : start]:
        raise CheckpointError(f"{path} is damaged: its content ({len(content)} bytes) does not match its checksum")
    return torch.load(io.BytesIO(content[start:]), map_location="cpu", weights_only=True)


def load_latest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Load the newest intact state, or None, and return what is wrong with the newer ones."""
    problems: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path), problems
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
    return None, problems


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Load the newest intact state, or None if there is no checkpoint. Reports damaged checkpoints through `say`."""
    state, problems = load_latest(folder)
    for problem in problems:
        say(f"[yellow]skipped:[/] {escape(problem)}")
    if state is None and problems:
        raise CheckpointError(f"no checkpoint in {folder} is intact: {'; '.join(problems)}")
    return state


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint files of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*.ckpt") if path.is_file())


def is_partial(path: Path) -> bool:
    """Whether a file is a checkpoint that was not completely written, which a killed process leaves."""
    return re.fullmatch(r"\.step-\d+\.ckpt\.part", path.name) is not None


def checkpoint_step(path: Path) -> int:
    """Return the number of steps before a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def _flush_folder(folder: Path) -> None:
    """Flush a folder, so that a rename survives a power failure. Not all systems support this."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
