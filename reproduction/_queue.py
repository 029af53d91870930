"""The queue of missing runs: `python -m reproduction run` works on it until its time is over."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from flexconv.errors import ArgumentError
from flexconv.train import RunError

from ._item import NOTHING, Job
from ._ledger import Ledger, Log
from ._measures import ACCURACY, CHANGE, FINE_TUNED, PSNR, SOURCE, VALIDATION, show
from ._parallel import ProcessFailedError, in_processes, shared_gpu
from ._plan import FAST, WANTED, Wanted, estimate, missing
from ._work import do, run_folder

SAVING = 20.0  # seconds before the limit at which a run is asked to stop: it still has to write its checkpoint
CHANGEABLE = ("precision", "engine", "deterministic", "checkpoint_seconds")  # a run still counts for its recipe

Grid = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclass(frozen=True)
class Attempt:
    """A run that the queue has worked on. `state` is "finished", "stopped", "skipped" or "failed"."""

    name: str
    seed: int
    state: str
    folder: Path


@dataclass(frozen=True)
class Settings:
    """How runs are started: the arguments of `_work.do`, and the time at which they are stopped, if any."""

    device: str
    changes: Sequence[str]
    plots: bool
    end: float | None

    @property
    def left(self) -> float | None:
        """Seconds until runs are stopped. None: there is no limit."""
        return None if self.end is None else self.end - time.time()


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
    jobs: int = 1,
) -> list[Attempt]:
    """Run what is missing, and return what was worked on.

    Arguments:
        ledger: where the runs are looked up and written.
        minutes: stop cleanly before this time is over; runs that are not finished can be resumed. None: until nothing
            is left.
        device: "auto", "cpu" or "cuda". On a GPU networks are trained in bf16.
        changes: overrides that are not a part of the experiment, as in "engine=eager".
        console: where progress is printed.
        wanted: the plan.
        plots: whether runs draw plots.
        jobs: the number of runs at a time, each in a process of its own.

    """
    for change in changes:
        if change.partition("=")[0].strip() not in CHANGEABLE:
            raise ArgumentError(f"only {', '.join(CHANGEABLE)} of the plan's recipes can be changed; got {change!r}")
    end = None if minutes is None else time.time() + stop_after(minutes)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    settings = Settings(device, (*(FAST if on_gpu else ()), *changes), plots, end)
    waiting = [Job(name, seed, replace(ledger.load(name), seed=seed)) for name, seed in queue(ledger, wanted)]
    if jobs > 1:
        with shared_gpu(enabled=on_gpu):
            return list(_side_by_side(waiting, ledger, settings, console, jobs))
    attempts: list[Attempt] = []
    for job in waiting:
        attempt = _attempt(job, ledger.results, settings, console)
        attempts += [] if attempt is None else [attempt]
        if attempt is None or attempt.state == "stopped":
            break
    return attempts


def _attempt(job: Job, results: Path, settings: Settings, console: Console | None = None) -> Attempt | None:
    """Run one job in the folder of logs, or return None if the time is over."""
    left, ledger = settings.left, Ledger(results)
    if left is not None and left <= 0:
        return None
    try:
        options = {"device": settings.device, "changes": settings.changes, "plots": settings.plots}
        outcome = do([job], ledger, limit=left, console=console, **options)
    except RunError as error:  # another process works on it, or its folder holds another recipe
        if console is not None:
            console.print(f"skipped: {error}", highlight=False, markup=False)
        outcome = None
    state = "skipped" if outcome is None else "stopped" if outcome.stopped else "finished"
    if outcome is not None and not outcome.stopped and not outcome.done:
        state = "skipped"
    return Attempt(job.name, job.seed, state, run_folder(ledger.runs, job.name, job.seed))


def _side_by_side(
    waiting: Sequence[Job], ledger: Ledger, settings: Settings, console: Console | None, jobs: int
) -> Iterator[Attempt]:
    """Run several jobs at a time, each in a new process, so that one that fails does not affect the others."""
    for (job, *_), found in in_processes(_attempt, _calls(waiting, ledger.results, settings), at_once=jobs):
        attempt = found
        if isinstance(found, ProcessFailedError):
            attempt = Attempt(job.name, job.seed, "failed", run_folder(ledger.runs, job.name, job.seed))
        if attempt is not None:
            if console is not None:
                reason = f": {found}" if attempt is not found else ""
                line = f"{attempt.state}: {attempt.name}, seed {attempt.seed}{reason}"
                console.print(line, highlight=False, markup=False)
            yield attempt


def _calls(waiting: Sequence[Job], results: Path, settings: Settings) -> Iterator[tuple[Job, Path, Settings]]:
    """The arguments of `_attempt` for one job after the other, until the time is over."""
    for job in waiting:
        if settings.left is not None and settings.left <= 0:
            return
        yield job, results, settings


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
