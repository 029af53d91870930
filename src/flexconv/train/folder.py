"""The folder of a run: its files, and a lock so that only one process writes to it.

recipe.yaml         the recipe with every default stated
metrics.jsonl       a record per epoch
machines.jsonl      a record per start or resumption: time, device, versions
events.*            the metrics for TensorBoard
checkpoints/        the last two checkpoints, for `flexconv train --resume`
weights/            the trained network, for `flexconv.models.from_pretrained`
results.json        the results; written last, so its presence means that the run is finished
plots/              curves, learned sizes, masks, kernels
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._files import is_temporary, write_atomically
from ..errors import FlexConvError, RunError
from ._read import _read, build_recipe, import_yaml, parse_recipe, plain
from .checkpoint import is_partial
from .recipe import AnyRecipe

#: Keys of a recipe that do not change what a run computes. `data.options.path` is that of data that was moved.
CHANGEABLE = ("about", "engine", "checkpoint_seconds", "root", "data.root", "data.options.path")


STAGES = ("source", "target")  # subfolders of a cross-resolution run, each of which is a run


class RunFolder:
    """The paths and files of a run."""

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
        """Whether the folder contains a run."""
        return self._recipe.is_file()

    @property
    def finished(self) -> bool:
        return self.results.is_file()

    def refuse_used(self, command: str) -> None:
        """Raise an error unless the folder can be used for a new run of `flexconv train` or `flexconv fit`."""
        if self.exists:
            raise RunError(
                f"{self.path} already contains a run: resume it (flexconv {command} --resume "
                f"{shlex.quote(str(self.path))}), or choose another folder"
            )
        for place in (self.path, *self.path.parents):
            if place.exists():
                if not place.is_dir():
                    raise RunError(f"{self.path} cannot be a run folder, because {place} is a file: choose another one")
                break

    def write_recipe(self, recipe: AnyRecipe) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._recipe, recipe_text(recipe).encode())

    def read_recipe(self) -> AnyRecipe:
        if not self.exists:
            raise RunError(f"{self.path} is not a run folder: it has no {self._recipe.name}")
        try:
            return build_recipe(_with_parametrization(_read(self._recipe)))
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
        """Append a record. Returns the size of the file, for `metrics_text`."""
        return _append_line(self.metrics, record)

    def append_machine(self, facts: Mapping[str, Any]) -> None:
        """Append a record of the machine. It is written at the start, so interrupted runs have it too."""
        _append_line(self.machines, facts)

    def metrics_text(self, size: int) -> str:
        """Return the first `size` bytes of the metrics, for a checkpoint."""
        return self.metrics.read_bytes()[:size].decode("utf-8", "replace") if self.metrics.is_file() else ""

    def restore_metrics(self, checkpoint: Mapping[str, Any] | None, size: int) -> None:
        """Make the metrics what they were at a checkpoint: later records go, and lost or damaged ones come back.

        Checkpoints of older versions contain only the `size` of the file. None: there is no checkpoint.
        """
        if checkpoint is not None and "metrics" in checkpoint:
            content = checkpoint["metrics"].encode("utf-8")
            if not self.metrics.is_file() or self.metrics.read_bytes() != content:
                write_atomically(self.metrics, content)
        elif self.metrics.is_file() and self.metrics.stat().st_size > size:
            os.truncate(self.metrics, size)

    def read_metrics(self) -> list[dict[str, Any]]:
        return _read_lines(self.metrics)

    def read_machines(self) -> list[dict[str, Any]]:
        return _read_lines(self.machines)

    def all_machines(self) -> dict[str, str]:
        """Return the devices, torch versions and engines of all sessions of the run, in order."""
        sessions, facts = self.read_machines(), ("device", "torch", "engine")
        known = {fact: dict.fromkeys(each[fact] for each in sessions if fact in each) for fact in facts}
        return {fact: ", then ".join(values) for fact, values in known.items() if values}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, and remove what killed processes have left in it.

        The system releases the lock when the process ends for any reason.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"another process is training in {self.path}: wait for it or choose another folder"
                ) from None
            self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        """Remove the temporary files of writes that were killed. Only the process with the lock may do this."""
        for run in (self.path, *(self.path / stage for stage in STAGES)):
            for folder in (run, run / "checkpoints", run / "weights"):
                for path in folder.glob(".*"):
                    if is_temporary(path) or is_partial(path):
                        path.unlink(missing_ok=True)

    def check_present(self) -> None:
        """Raise an error if the folder of a running process was deleted: its files would not make a run any more."""
        if not self.exists:
            raise RunError(f"{self._recipe} was deleted while the run was going on: nothing more is written")


def recipe_text(recipe: AnyRecipe) -> str:
    """Return a recipe as YAML with every default stated, as recipe.yaml and checkpoints contain it."""
    return import_yaml().safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)


def compare_recipes(recipe: AnyRecipe, earlier: AnyRecipe | str, where: Path) -> list[str]:
    """Return the differences between a recipe and the one that a run was begun with, such as "engine: auto → eager".

    Raises a `RunError` unless the run can go on with all of them. `earlier` may be the text in a checkpoint. `where` is
    the checkpoint or the folder that it is from.
    """
    if isinstance(earlier, str):
        try:
            earlier = build_recipe(_with_parametrization(parse_recipe(earlier, f"the recipe in {where}")))
        except FlexConvError as error:
            raise RunError(f"the recipe in {where} cannot be used: {error}") from error
    old, new = _leaves(plain(earlier)), _leaves(plain(recipe))
    changed = [key for key in dict.fromkeys((*old, *new)) if old.get(key, _ABSENT) != new.get(key, _ABSENT)]
    texts = {key: f"{key}: {old.get(key, _ABSENT)} → {new.get(key, _ABSENT)}" for key in changed}
    if refused := [text for key, text in texts.items() if key not in CHANGEABLE]:
        raise RunError(
            f"recipe.yaml was changed since {where} was written ({'; '.join(refused)}). A run keeps its recipe, except "
            f"for {', '.join(CHANGEABLE)}: undo the change, or start another run with it"
        )
    return list(texts.values())


_ABSENT = "(none)"


def _leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their path, such as "optim.lr"."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{path}.{key}" if path else str(key)
        leaves |= _leaves(value, name) if isinstance(value, Mapping) and value else {name: value}
    return leaves


def _with_parametrization(tree: dict[str, Any]) -> dict[str, Any]:
    """State the parametrization of a run of an older version, which knew only that of the paper."""
    model = tree.get("model")
    if tree.get("kind") == "fit" or not isinstance(model, Mapping) or model.get("pretrained"):
        return tree
    return {**tree, "model": {"parametrization": "paper", **model}}


def _append_line(path: Path, record: Mapping[str, Any]) -> int:
    """Append a line of JSON to a file. Returns the size of the file."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # an incomplete line, from a full disk or a power failure
                file.write(b"\n")
        file.write(f"{json.dumps(record, ensure_ascii=False)}\n".encode())
    return path.stat().st_size


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete records of a file of JSON lines; an empty list if there is no file."""
    records = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with contextlib.suppress(ValueError):  # an incomplete line, from a full disk or a power failure
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records
