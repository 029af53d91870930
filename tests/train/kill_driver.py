"""Train a recipe repeatedly in forked processes that die at random moments. Used by test_kill.py.

    python -m tests.train.kill_driver FOLDER SEED KILLS

Half of the processes are killed after a random time, half kill themselves during a file operation. Prints the numbers
of both. The interrupted run is in FOLDER/run, an uninterrupted one in FOLDER/reference.
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
        if folders.RunFolder(run).finished:  # it was not killed: start a new run
            finished += 1
            run.rename(folder / f"finished-{finished}\n")
        by_clock = rng.random() < 0.5
        # a run dies several times, so the time until the next death is only a part of its duration
        delay, operation = rng.uniform(0.0, whole / 3), rng.randrange(1, 40)
        status = _child(
            lambda run=run: _continue(run, recipe), None if by_clock else operation, delay if by_clock else None
        )
        if status == -signal.SIGKILL:
            died["clock" if by_clock else "file"] += 1
        else:
            assert status == 0, f"a resumed run failed with {status}"
    run = folder / "run"
    if not folders.RunFolder(run).finished:
        assert _child(lambda: _continue(run, recipe)) == 0
    sys.stdout.write(f"{died['clock']} {died['file']} {finished}\n")


def _continue(run: Path, recipe: training.Recipe) -> None:
    if folders.RunFolder(run).exists:
        training.resume(run)
    else:
        training.train(recipe, run)


def _child(work: object, die_at_operation: int | None = None, die_after: float | None = None) -> int:
    """Run `work` in a fork. Returns its exit code, or minus the signal that ended it."""
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
    """Die at the `count`-th flush or rename: in the middle of a write, just before or just after it takes effect."""
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
