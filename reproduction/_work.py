"""Starting missing runs one after the other, each in its own folder, until a time limit."""

from __future__ import annotations

import _thread
import contextlib
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from flexconv.data import MissingDataError
from flexconv.train import (
    CrossResolutionRecipe,
    DivergedError,
    FitRecipe,
    Interrupted,
    RunError,
    RunFolder,
    build_recipe,
    fit,
    merge,
    parse_override,
    plain,
    resume,
    train,
)
from flexconv.train.recipe import AnyRecipe

from ._item import Job
from ._ledger import CIRCUMSTANCES, Ledger, differences

AFTER_SOURCE = {"target", "crop", "finetune_epochs"}  # settings that have no effect on the first stage of a run


@dataclass(frozen=True)
class Outcome:
    """How many runs were done and how many are left. `stopped`: the time limit was reached."""

    done: int
    left: int
    stopped: bool


def do(
    jobs: Sequence[Job],
    ledger: Ledger,
    *,
    device: str = "auto",
    changes: Sequence[str] = (),
    limit: float | None = None,
    console: Console | None = None,
    plots: bool = True,
) -> Outcome:
    """Run the jobs in the ledger's folder. Runs that were started there are resumed; runs that diverge or whose data
    are missing are skipped.

    Arguments:
        jobs: the runs.
        ledger: where they are written.
        device: "auto", "cpu" or "cuda".
        changes: overrides such as "engine=graph" for the recipes of networks and for timings; not used for fits.
        limit: seconds after which the current run is saved and the remaining ones are left.
        console: where progress is printed.
        plots: whether runs draw plots.

    """
    end, done = None if limit is None else time.monotonic() + limit, 0
    for number, job in enumerate(jobs):
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return Outcome(done, len(jobs) - done, stopped=True)
        if console is not None:
            console.print(f"{number + 1} of {len(jobs)}: {job.name}, seed {job.seed}", highlight=False)
        try:
            with interrupted_after(left):
                _do(job, ledger, device, changes, console, plots=plots)
        except TimeoutError:
            return Outcome(done, len(jobs) - done, stopped=True)
        except (MissingDataError, DivergedError) as error:
            if console is not None:
                console.print(f"skipped: {error}", highlight=False, markup=False)
            continue
        done += 1
    return Outcome(done, len(jobs) - done, stopped=False)


def _do(job: Job, ledger: Ledger, device: str, changes: Sequence[str], console: Console | None, *, plots: bool) -> None:
    if callable(job.work):
        job.work(device=device, changes=changes)
        return
    if isinstance(job.work, FitRecipe):
        changes = ()
    recipe = changed(job.work, changes)
    folder = RunFolder(run_folder(ledger.runs, job.name, job.seed, changes))
    if folder.exists:
        if other := differences(recipe, folder.read_recipe()):
            raise RunError(f"{folder.path} holds a run of another recipe: {', '.join(other)} differ")
        resume(folder.path, device=device, console=console)
    elif isinstance(recipe, FitRecipe):
        fit(recipe, folder.path, device=device, console=console)
    else:
        if isinstance(recipe, CrossResolutionRecipe):
            _share_source(recipe, folder, ledger)
        train(recipe, folder.path, device=device, console=console, plots=plots)


def _share_source(recipe: CrossResolutionRecipe, folder: RunFolder, ledger: Ledger) -> None:
    """Copy the first stage from a finished run with the same source resolution: runs to several targets share it."""
    if (folder.path / "source").exists():  # copied by an earlier attempt that did not start
        return
    for log in Ledger(ledger.results).logs:  # read again, to see runs that have just finished
        stage = RunFolder(log.path / "source")
        same = log.seed == recipe.seed and differences(recipe, log.recipe).keys() <= AFTER_SOURCE
        if same and stage.finished and stage.weights.is_dir():
            part = folder.path / "source.part"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(stage.path, part, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
            part.rename(folder.path / "source")
            return


def run_folder(runs: Path, name: str, seed: int, changes: Sequence[str] = ()) -> Path:
    """The folder of a run: RECIPE-seedN, with overrides of the recipe in the name unless they are circumstances."""
    pairs = [change.partition("=") for change in changes]
    told = [f"{key.rpartition('.')[2]}-{value}" for key, _, value in pairs if key not in CIRCUMSTANCES]
    return runs / "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in (name, *told, f"seed{seed}"))


def changed(recipe: AnyRecipe, changes: Sequence[str]) -> AnyRecipe:
    """A recipe with overrides such as "optim.lr=0.001"."""
    tree = plain(recipe)
    for change in changes:
        tree = merge(tree, parse_override(change))
    return build_recipe(tree)


@contextlib.contextmanager
def interrupted_after(seconds: float | None) -> Iterator[None]:
    """Raise KeyboardInterrupt after this many seconds, so that a run saves itself, and turn it into a TimeoutError."""
    if seconds is None:
        yield
        return
    fired = threading.Event()

    def interrupt() -> None:
        fired.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore the signal
    timer.start()
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        if not fired.is_set():
            raise
        raise TimeoutError(f"stopped after {seconds:.0f} seconds") from error
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
