"""The queue of missing runs: `python -m reproduction run` works on it until its time is over."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from flexconv.errors import ArgumentError
from flexconv.train import RunError

from ._item import NOTHING, Job
from ._ledger import Ledger, Log
from ._measures import ACCURACY, CHANGE, FINE_TUNED, PSNR, SOURCE, VALIDATION, show
from ._plan import FAST, WANTED, Wanted, estimate, missing
from ._work import do, run_folder

SAVING = 20.0  # seconds before the limit at which a run is asked to stop: it still has to write its checkpoint
CHANGEABLE = ("precision", "engine", "deterministic", "checkpoint_seconds")  # a run still counts for its recipe

Grid = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True)
class Attempt:
    """A run that the queue has worked on. `state` is "finished", "stopped" or "skipped"."""

    name: str
    seed: int
    state: str
    folder: Path


def queue(ledger: Ledger, wanted: Sequence[Wanted] = WANTED) -> list[tuple[str, int]]:
    """The (recipe, seed) of the missing runs: first those that have a checkpoint, then the others, as in the plan."""
    runs = [run for _, part in missing(ledger, wanted) for run in part]
    return sorted(runs, key=lambda run: not _has_checkpoint(run_folder(ledger.runs, *run)))


def work(
    ledger: Ledger,
    *,
    minutes: float | None = None,
    device: str = "auto",
    changes: Sequence[str] = (),
    console: Console | None = None,
    wanted: Sequence[Wanted] = WANTED,
    plots: bool = True,
) -> list[Attempt]:
    """Run what is missing, one run at a time, and return what was worked on.

    Arguments:
        ledger: where the runs are looked up and written.
        minutes: stop cleanly before this time is over; the current run can be resumed. None: until nothing is left.
        device: "auto", "cpu" or "cuda". On a GPU networks are trained in bf16.
        changes: overrides that are not a part of the experiment, as in "engine=eager".
        console: where progress is printed.
        wanted: the plan.
        plots: whether runs draw plots.

    """
    for change in changes:
        if change.partition("=")[0].strip() not in CHANGEABLE:
            raise ArgumentError(f"only {', '.join(CHANGEABLE)} of the plan's recipes can be changed; got {change!r}")
    end = None if minutes is None else time.monotonic() + stop_after(minutes)
    fast = FAST if device != "cpu" and torch.cuda.is_available() else ()
    attempts: list[Attempt] = []
    for name, seed in queue(ledger, wanted):
        limit = None if end is None else end - time.monotonic()
        if limit is not None and limit <= 0:
            break
        job = Job(name, seed, replace(ledger.load(name), seed=seed))
        settings = {"device": device, "changes": (*fast, *changes), "limit": limit, "console": console, "plots": plots}
        try:
            outcome = do([job], ledger, **settings)
        except RunError as error:  # another process works on it, or its folder holds another recipe
            if console is not None:
                console.print(f"skipped: {error}", highlight=False, markup=False)
            outcome = None
        state = "skipped" if outcome is None else "stopped" if outcome.stopped else "finished"
        if outcome is not None and not outcome.stopped and not outcome.done:
            state = "skipped"
        attempts.append(Attempt(name, seed, state, run_folder(ledger.runs, name, seed)))
        if state == "stopped":
            break
    return attempts


def stop_after(minutes: float) -> float:
    """Seconds after which a run is asked to stop, so that it has written its checkpoint within `minutes`."""
    return 60 * minutes - min(SAVING, 6 * minutes)


def pack(attempts: Sequence[Attempt], folder: Path) -> list[Path]:
    """Write a tar file per run, with what is needed to resume it or, if it is finished, its log and weights.

    `tar -xf FILE -C results/runs` puts it back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packed = []
    for attempt in attempts:
        if not (attempt.folder / "recipe.yaml").is_file():
            continue
        packed.append(folder / f"{attempt.folder.name}.tar")
        with tarfile.open(packed[-1], "w") as archive:
            for path in _files_to_keep(attempt.folder, finished=attempt.state == "finished"):
                archive.add(path, Path(attempt.folder.name) / path.relative_to(attempt.folder))
    return packed


def _files_to_keep(folder: Path, *, finished: bool) -> list[Path]:
    """The files of a run without plots and events. Of checkpoints it takes the newest one of each stage."""
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if not path.is_file() or path.name == ".lock" or path.name.startswith("events.") or "plots" in inside:
            continue
        if "checkpoints" in inside and (finished or path != max(path.parent.glob("*.ckpt"), default=None)):
            continue
        found.append(path)
    return found


def attempts_table(attempts: Sequence[Attempt]) -> Grid:
    """Titles and rows: what was worked on, how far it came, and its result."""
    rows = []
    for attempt in attempts:
        log = Log(attempt.folder) if (attempt.folder / "recipe.yaml").is_file() else None
        budget, result = (NOTHING, NOTHING) if log is None else (log.budget, _result(log))
        rows.append((attempt.name, f"{attempt.seed}", attempt.state, budget, result))
    return ("run", "seed", "state", "budget", "result"), rows


def missing_table(ledger: Ledger, wanted: Sequence[Wanted] = WANTED) -> Grid:
    """Titles and rows: the missing runs in the order in which they are started, with their part of the plan."""
    titles = {run: title for title, part in missing(ledger, wanted) for run in part}
    rows = []
    for name, seed in queue(ledger, wanted):
        started = _has_checkpoint(run_folder(ledger.runs, name, seed))
        rows.append((name, f"{seed}", titles[name, seed], "started" if started else "", estimate(name, ledger)))
    return ("run", "seed", "part", "state", "estimate"), rows


def _has_checkpoint(folder: Path) -> bool:
    return next(folder.rglob("*.ckpt"), None) is not None


def _result(log: Log) -> str:
    """The numbers of a finished run."""
    if ACCURACY.of(log) is None and (validation := VALIDATION.of(log)) is not None:
        return f"{show(validation, VALIDATION.digits)} validation"
    found = [(measure, measure.of(log)) for measure in (ACCURACY, SOURCE, CHANGE, FINE_TUNED, PSNR)]
    return ", ".join(show(value, measure.digits) for measure, value in found if value is not None) or NOTHING
