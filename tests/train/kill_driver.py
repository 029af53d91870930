"""Trains the same recipe again and again in forked processes that die at random moments. Run by test_kill.py.

    python -m tests.train.kill_driver FOLDER SEED KILLS

Half of the processes are killed by a clock, half by themselves in the middle of a file operation. Prints how many died
where, and leaves the weights of the interrupted run in FOLDER/run, those of an uninterrupted one in FOLDER/reference.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

torch.set_num_threads(1)

from flexconv import train as training  # noqa: E402
from flexconv.train import folder as folders  # noqa: E402
from tests.train.tiny import tiny_recipe  # noqa: E402


def main(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    recipe = tiny_recipe(checkpoint_seconds=0.0)
    began = time.monotonic()
    assert _child(lambda: training.train(recipe, folder / "reference")) == 0
    whole = time.monotonic() - began
    died = {"clock": 0, "file": 0}
    finished = 0
    while sum(died.values()) < kills:
        run = folder / "run"
        if folders.RunFolder(run).finished:  # it got through: start again from nothing
            finished += 1
            run.rename(folder / f"finished-{finished}\n")
        by_clock = rng.random() < 0.5
        # a run dies several times on its way: only a part of its time is left between two deaths
        delay, operation = rng.uniform(0.0, whole / 3), rng.randrange(1, 40)
        status = _child(
            lambda run=run: _go_on(run, recipe), None if by_clock else operation, delay if by_clock else None
        )
        if status == -signal.SIGKILL:
            died["clock" if by_clock else "file"] += 1
        else:
            assert status == 0, f"a resumed run failed with {status}"
    run = folder / "run"
    if not folders.RunFolder(run).finished:
        assert _child(lambda: _go_on(run, recipe)) == 0
    sys.stdout.write(f"{died['clock']} {died['file']} {finished}\n")


def _go_on(run: Path, recipe: training.Recipe) -> None:
    if folders.RunFolder(run).exists:
        training.resume(run)
    else:
        training.train(recipe, run)


def _child(work: object, die_at_operation: int | None = None, die_after: float | None = None) -> int:
    """Run `work` in a fork; its exit code, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if die_at_operation is not None:
                _die_in_file_operation(die_at_operation)
            work()  # type: ignore[operator]
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if die_after is not None:
        time.sleep(die_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _die_in_file_operation(count: int) -> None:
    """Die at the `count`-th flush or rename: half-way through a write, or just before or after it takes effect."""
    left = [count]

    def deadly(function):
        def wrapped(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0 and count % 2:
                if function is os.fsync:
                    os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    os.fsync = deadly(os.fsync)
    Path.replace = deadly(Path.replace)  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
