"""Checkpoints that are whole or not there.

A checkpoint is written beside the old one, flushed to the disk and renamed, so that a process that dies anywhere leaves
at least one that is whole. It begins with the SHA-256 of the rest: one that was cut short or changed is refused by its
name. The last two are kept.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from ..errors import UsageError

MAGIC = b"flexconv checkpoint 1\n"
KEEP = 2


class CheckpointError(UsageError):
    """A checkpoint that cannot be written, or one that cannot be trusted."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `state` (tensors, numbers, text, lists, dicts) as the checkpoint of `step`; drop those before last."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:09d}.ckpt"
    partial = folder / f".{path.name}.part"
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
        rest = f"the last one, {kept[-1].name}, is untouched" if kept else "there is none before it"
        raise CheckpointError(f"cannot write checkpoint {path}: {why}; {rest}") from error
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state in one file, on the CPU. Nothing in it is executed."""
    content = path.read_bytes()
    start = len(MAGIC) + hashlib.sha256().digest_size
    if not content.startswith(MAGIC):
        raise CheckpointError(f"{path} is no checkpoint of this version of flexconv, or its beginning is damaged")
    if hashlib.sha256(content[start:]).digest() != content[len(MAGIC) : start]:
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum ({len(content)} bytes)")
    return torch.load(io.BytesIO(content[start:]), map_location="cpu", weights_only=True)


def load_latest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest state that is whole (None where there is none), and what is wrong with the newer ones."""
    problems: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path), problems
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
    return None, problems


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """What a run goes on from, None where it has not saved anything; `say` hears of checkpoints that are damaged."""
    state, problems = load_latest(folder)
    for problem in problems:
        say(f"[yellow]refused:[/] {escape(problem)}")
    if state is None and problems:
        raise CheckpointError(f"no checkpoint in {folder} is whole: {'; '.join(problems)}")
    return state


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system lets folders be flushed."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
