"""The folder of a run: what it is called inside, and that only one process writes to it.

recipe.yaml         the whole recipe, defaults written out
metrics.jsonl       a line per epoch
machines.jsonl      a line per start or resumption: when, on what, with which versions
events.*            the same for TensorBoard
checkpoints/        the last two, for `flexconv train --resume`
weights/            the finished network, for `flexconv.models.from_pretrained`
results.json        what came out; written last, so a run that has it is complete
plots/              curves, learned sizes, masks, kernels
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._files import write_atomically
from ..errors import FlexConvError, RunError
from ._read import _read, build_recipe, import_yaml, plain
from .recipe import AnyRecipe


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.weights = self.path / "weights"
        self.plots = self.path / "plots"
        self.metrics = self.path / "metrics.jsonl"
        self.machines = self.path / "machines.jsonl"
        self.results = self.path / "results.json"
        self._recipe = self.path / "recipe.yaml"

    @property
    def exists(self) -> bool:
        """Whether a run was ever started here."""
        return self._recipe.is_file()

    @property
    def finished(self) -> bool:
        return self.results.is_file()

    def write_recipe(self, recipe: AnyRecipe) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        text = import_yaml().safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)
        write_atomically(self._recipe, text.encode())

    def read_recipe(self) -> AnyRecipe:
        if not self.exists:
            raise RunError(f"{self.path} is no run: it has no {self._recipe.name}")
        try:
            return build_recipe(_read(self._recipe))
        except FlexConvError as error:
            raise RunError(f"{self._recipe} cannot be used: {error}") from error

    def write_results(self, results: Mapping[str, Any]) -> None:
        write_atomically(self.results, (json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())

    def read_results(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"{self.path} has no results yet: the run is not finished")
        try:
            results = json.loads(self.results.read_text("utf-8"))
        except ValueError as error:
            raise RunError(f"{self.results} is damaged: {error}") from error
        if not isinstance(results, dict):
            raise RunError(f"{self.results} is damaged: it must hold a JSON object; got {type(results).__name__}")
        return results

    def append_metrics(self, record: Mapping[str, Any]) -> int:
        """Add a line; returns the size of the file, which is where a resumed run cuts it off."""
        return _append_line(self.metrics, record)

    def append_machine(self, facts: Mapping[str, Any]) -> None:
        """Note what the run goes on with: an interrupted one has no results that could tell."""
        _append_line(self.machines, facts)

    def cut_metrics(self, size: int) -> None:
        """Drop what was written after a checkpoint."""
        if self.metrics.is_file() and self.metrics.stat().st_size > size:
            os.truncate(self.metrics, size)

    def read_metrics(self) -> list[dict[str, Any]]:
        return _read_lines(self.metrics)

    def read_machines(self) -> list[dict[str, Any]]:
        return _read_lines(self.machines)

    def all_machines(self) -> dict[str, str]:
        """Devices and versions of torch that it ran on and engines that took its steps, one after the other."""
        sessions, facts = self.read_machines(), ("device", "torch", "engine")
        known = {fact: dict.fromkeys(each[fact] for each in sessions if fact in each) for fact in facts}
        return {fact: ", then ".join(values) for fact, values in known.items() if values}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; the system lets go of it when the process ends, however that happens."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"another process is training in {self.path}: choose another folder, or wait") from None
            yield


def _append_line(path: Path, record: Mapping[str, Any]) -> int:
    """A line of JSON at the end of a file; returns its size."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a full disk or a power cut left half a line
                file.write(b"\n")
        file.write(f"{json.dumps(record, ensure_ascii=False)}\n".encode())
    return path.stat().st_size


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; none where there is no file."""
    records = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with contextlib.suppress(ValueError):  # half a line, from a full disk or a power cut
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records
