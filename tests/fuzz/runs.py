"""Tiny training runs that meet faults: kills, signals, full disks, damaged and edited files, and several processes.

A run that meets any number of faults ends with the bits of one that met none. An attempt to resume it either succeeds
or is refused in one line; then the fault is undone, and the run goes on.

    python -m tests.fuzz.runs SEED KILLS [LOG]

counts kills until there are KILLS of them and writes a summary to LOG. Without arguments, it plays the lists of faults
that it reads from standard input, a line of JSON each, and answers each with a line of JSON. `test_runs.py` uses this.

Every attempt is a fork of this process, which has imported everything already. So it must not start threads.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import lightning_fabric  # noqa: F401  (imported before the forks, which then need not)
import sklearn.datasets  # noqa: F401
import torch
import torch.utils.tensorboard

torch.set_num_threads(1)

import flexconv  # noqa: E402
from flexconv import cli  # noqa: E402
from flexconv.train import folder as folders  # noqa: E402
from flexconv.train import run as training  # noqa: E402
from tests.train.tiny import tiny_recipe  # noqa: E402

training.draw_plots = lambda *_: None  # most of the time, and after everything else was written

Fault = Sequence[Any]  # the name of a method of `Run`, and its arguments

#: entries of logs that two equal runs do not share
TIMES = {"seconds", "epoch_seconds", "finished", "started"}

RECIPES = {
    "adam": {},
    "sgd": {
        "model": {"name": "flexnet3", "widths": [3], "generator_options": {"hidden": 4}},
        "optim": {"name": "sgd", "lr": 0.05, "weight_decay": 0.01},
        "alias": None,
        "data": {"name": "digits"},
        "epochs": 2,
    },
    "cross": {
        "kind": "cross-resolution",
        "source": 4,
        "target": 8,
        "epochs": 2,
        "finetune_epochs": 1,
        "data": {"name": "digits", "validation": 0.2},
    },
}


class Failure(AssertionError):  # noqa: N818
    """A run was lost, ended with other bits, or was refused in another way than by one line."""


class Outcome:
    """How an attempt to continue a run ended: an exit code, or minus the number of a signal, and what it printed."""

    def __init__(self, status: int, printed: str) -> None:
        self.status, self.printed = status, printed

    @property
    def refused(self) -> bool:
        return self.status in (1, 2)

    def check(self) -> Outcome:
        """Raise unless it succeeded, was killed or stopped, or was refused in one line."""
        lines = [line for line in self.printed.splitlines() if line.strip()]
        stopped = self.status in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
        if self.status in (0, -signal.SIGKILL):
            return self
        if not (stopped or self.refused) or len(lines) > 1 or (self.refused and not lines):
            raise Failure(f"an attempt ended with {self.status} and printed: {self.printed[-3000:]}")
        return self


class Reference:
    """A run of a recipe that meets no fault."""

    def __init__(self, place: Path, name: str) -> None:
        self.file = place / f"{name}.yaml"
        recipe = tiny_recipe(checkpoint_seconds=0.0, about=name, **RECIPES[name]) if name != "cross" else None
        if recipe is not None:
            self.file.write_text(folders.recipe_text(recipe))
        else:
            tree = {**_tree(tiny_recipe(checkpoint_seconds=0.0)), **RECIPES[name], "about": name}
            self.file.write_text(folders.import_yaml().safe_dump(tree))
        began = time.monotonic()
        run = Run(place / f"{name}-reference", self, random.Random(0))
        operations = mmap.mmap(-1, 8)  # shared with the fork
        outcome = run.attempt(lambda: _at_file_operation(0, lambda *_: _increase(operations)))
        if outcome.status != 0:
            raise Failure(outcome.printed)
        self.operations = int.from_bytes(operations[:8], "little")
        self.seconds = time.monotonic() - began
        self.content = run.content()


def _tree(recipe: Any) -> dict[str, Any]:
    return folders.import_yaml().safe_load(folders.recipe_text(recipe))


class Run:
    """One run, and the faults that it can meet. Each method with a name that is a fault returns what happened."""

    def __init__(self, path: Path, reference: Reference, chance: random.Random) -> None:
        self.path, self.reference, self.chance = path, reference, chance

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill(self, when: float) -> str:
        """SIGKILL after a part of the time that the whole run needs."""
        return self._ended(self.attempt(number=signal.SIGKILL, after=when * self.reference.seconds))

    def die(self, operation: int) -> str:
        """SIGKILL in a file operation (−1 is the last one), just before or just after it."""
        operation = operation if operation > 0 else self.reference.operations + 1 + operation
        return self._ended(self.attempt(lambda: _at_file_operation(operation, _die)))

    def stop(self, name: str, when: float) -> str:
        """SIGTERM or SIGINT."""
        return self._ended(self.attempt(number=signal.Signals[name], after=when * self.reference.seconds))

    def full(self, operation: int) -> str:
        """The disk is full from a file operation on."""
        return self._ended(self.attempt(lambda: _at_file_operation(operation, _no_space)))

    def limit(self, size: int) -> str:
        """No file may be larger than `size` bytes."""
        return self._ended(self.attempt(lambda: _limit_files(size)))

    def race(self, when: float) -> str:
        """Two processes continue the run. One is refused, or finds it finished; both may be killed."""
        delay = when * self.reference.seconds
        first, second = self._start(), self._start()
        time.sleep(delay)
        outcomes = [self._wait(*child, kill=self.chance.random() < 0.5).check() for child in (first, second)]
        refused = [o for o in outcomes if o.refused]
        reasons = "another process", "already contains a run"  # the latter if the first has already ended
        if any(all(reason not in o.printed for reason in reasons) for o in refused) or len(refused) == 2:
            raise Failure("\n".join(f"{o.status}: {o.printed}" for o in outcomes))
        return "refused" if refused else "killed"

    def move(self) -> str:
        """The folder is moved."""
        if not self.path.is_dir():
            return "skipped"
        moved = self.path.with_name(self.path.name + "-moved")
        self.path.rename(moved)
        self.path = moved
        return "done"

    def edit(self, key: str, value: Any) -> str:
        """The recipe of a run that has begun is edited. That is refused, unless the run is the same with it."""
        if self.finished or not self._checkpoints():
            return "skipped"

        def edited(content: bytes) -> bytes:
            tree = folders.import_yaml().safe_load(content)
            inner = tree
            *outer, last = key.split(".")
            for name in outer:
                inner = inner[name]
            inner[last] = value
            return folders.import_yaml().safe_dump(tree).encode()

        outcome = self._damage(self.path / "recipe.yaml", edited)
        if outcome == "finished":
            raise Failure(f"an edited recipe was accepted: {key}: {value}")
        return outcome

    def cut(self, kind: str, part: float) -> str:
        """A file is cut off."""
        return self._damage(self._file(kind), lambda content: content[: int(part * len(content))])

    def flip(self, kind: str, part: float, bit: int) -> str:
        """A bit of a file is wrong."""

        def flipped(content: bytes) -> bytes:
            changed = bytearray(content)
            if changed:
                changed[min(int(part * len(changed)), len(changed) - 1)] ^= 1 << bit
            return bytes(changed)

        return self._damage(self._file(kind), flipped)

    def lose(self, kind: str) -> str:
        """A file is deleted."""
        return self._damage(self._file(kind), lambda _: None)

    # --- attempts -----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return folders.RunFolder(self.path).finished

    def attempt(
        self, prepare: Callable[[], None] | None = None, *, number: int | None = None, after: float = 0.0
    ) -> Outcome:
        """Continue the run, or begin it, in a fork that `prepare` changes and that gets a signal after some seconds."""
        child, printed = self._start(prepare)
        if number is not None:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        return self._wait(child, printed)

    def _start(self, prepare: Callable[[], None] | None = None) -> tuple[int, int]:
        begun = folders.RunFolder(self.path).exists
        where = ["--resume", str(self.path)] if begun else [str(self.reference.file), "--out", str(self.path)]
        printed, errors = os.pipe()  # files may be limited; the few lines fit into a pipe that nobody reads yet
        child = os.fork()
        if child == 0:
            code = 70
            try:
                _redirect(errors)
                if prepare is not None:
                    prepare()
                code = cli.run(["train", *where, "--device", "cpu"])
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.flush()
                os._exit(code)
        os.close(errors)
        return child, printed

    def _wait(self, child: int, printed: int, *, kill: bool = False) -> Outcome:
        if kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(printed, errors="replace") as file:
            return Outcome(os.waitstatus_to_exitcode(status), file.read())

    def _ended(self, outcome: Outcome) -> str:
        outcome.check()
        return {0: "finished", 1: "refused", 2: "refused", -signal.SIGKILL: "killed"}.get(outcome.status, "stopped")

    def _damage(self, path: Path | None, change: Callable[[bytes], bytes | None]) -> str:
        """Change a file and continue the run. If that is refused, restore the file."""
        if path is None or not path.is_file():
            return "skipped"
        before = path.read_bytes()
        after = change(before)
        if after is None:
            path.unlink()
        else:
            path.write_bytes(after)
        outcome = self._ended(self.attempt())
        if outcome == "refused":
            path.write_bytes(before)
        elif path.name != "recipe.yaml":
            self.compare()
        return outcome

    def _checkpoints(self) -> list[Path]:
        """All checkpoints, newest last; those of the newest stage."""
        found = [folders.RunFolder(self.path / stage).checkpoints for stage in (*folders.STAGES[::-1], "")]
        return next((files for place in found if (files := sorted(place.glob("step-*.ckpt")))), [])

    def _file(self, kind: str) -> Path | None:
        """A file that a run needs to go on. Results are written last, and damage to them is not undone by a resume."""
        if self.finished and kind != "results.json":
            return None
        if kind == "checkpoint":
            return self._checkpoints()[-1] if self._checkpoints() else None
        if kind == "recipe.yaml" and not self._checkpoints():
            return None
        return self.path / kind

    # --- the result ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Continue to the end, and compare with the reference."""
        for _ in range(3):
            if self.finished:
                break
            if (outcome := self.attempt()).status != 0:
                raise Failure(f"the last attempt ended with {outcome.status}: {outcome.printed[-3000:]}")
        self.compare()

    def compare(self) -> None:
        """Raise unless the run has the content of the reference."""
        for name, content in self.reference.content.items():
            if self.content().get(name) != content:
                raise Failure(f"{name} differs from the run without faults")
        if leftovers := [p for p in self.path.rglob("*") if p.suffix in (".part", ".tmp")]:
            raise Failure(f"leftovers: {leftovers}")

    def content(self) -> dict[str, Any]:
        """Weights as bytes, and logs without times."""
        files = {str(p.relative_to(self.path)): p for p in self.path.rglob("*") if p.is_file()}
        content: dict[str, Any] = {name: p.read_bytes() for name, p in files.items() if p.suffix == ".safetensors"}
        for name, path in files.items():
            if path.name == "metrics.jsonl":
                content[name] = [_without_times(json.loads(line)) for line in path.read_text().splitlines()]
            elif path.name == "results.json":
                content[name] = _without_times(json.loads(path.read_text()))
        return content


def _without_times(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: _without_times(value) for key, value in record.items() if key not in TIMES}
    return record


# --- what a fork does to itself ---------------------------------------------------------------------------------------


def _redirect(errors: int) -> None:
    """Send errors to a pipe and other output nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(errors, 2)


def _at_file_operation(count: int, fault: Callable[..., None]) -> None:
    """Call `fault` at the `count`-th flush or rename: before it if `count` is odd, otherwise after it."""
    left = [count]

    def wrap(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0 and count % 2:
                fault(function, *args)
            result = function(*args, **kwargs)
            if left[0] <= 0 and count % 2 == 0:
                fault(None, *args)
            return result

        return wrapped

    os.fsync = wrap(os.fsync)
    Path.replace = wrap(Path.replace)  # type: ignore[method-assign]


def _die(function: Any, *args: Any) -> None:
    """Die, and leave half of the file if it was about to be flushed."""
    if function is not None and isinstance(args[0], int):
        with contextlib.suppress(OSError):  # a folder
            os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)


def _no_space(_function: Any, *_args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _increase(number: mmap.mmap) -> None:
    number[:8] = (int.from_bytes(number[:8], "little") + 1).to_bytes(8, "little")


def _limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails with an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


# --- playing ----------------------------------------------------------------------------------------------------------


class Player:
    """Plays lists of faults, and counts what happened."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.references: dict[str, Reference] = {}
        self.counts: Counter[str] = Counter()
        self.runs = 0

    def play(self, recipe: str, faults: Sequence[Fault], seed: int = 0) -> None:
        if recipe not in self.references:
            self.references[recipe] = Reference(self.place, recipe)
        self.runs += 1
        run = Run(self.place / f"run-{self.runs}", self.references[recipe], random.Random(seed))
        for name, *arguments in faults:
            if run.finished and name != "cut":
                break
            self.counts[f"{name}: {getattr(run, name)(*arguments)}"] += 1
        run.finish()
        self.counts[f"runs of {recipe}, equal to the one without faults"] += 1
        shutil.rmtree(run.path)

    def attack(self, chance: random.Random) -> tuple[str, list[Fault]]:
        """A random list of faults, most of which are kills."""
        return chance.choice([*RECIPES, "adam", "sgd"]), [random_fault(chance) for _ in range(chance.randrange(1, 9))]


def random_fault(chance: random.Random) -> Fault:
    part, operation = round(chance.random(), 3), chance.randrange(1, 60)
    kinds = ["checkpoint", "checkpoint", "metrics.jsonl", "recipe.yaml"]
    rare: list[Fault] = [
        ("stop", chance.choice(["SIGTERM", "SIGINT"]), part),
        ("full", operation),
        ("limit", chance.choice([0, 100, 3000, 10_000, 30_000])),
        ("race", part),
        ("move",),
        ("edit", *chance.choice([("optim.lr", 0.5), ("seed", 6), ("epochs", 1), ("batch_size", 100)])),
        ("cut", chance.choice([*kinds, "machines.jsonl", "results.json"]), part),
        ("flip", chance.choice(kinds), part, chance.randrange(8)),  # machines.jsonl has no checksum
        ("lose", chance.choice([*kinds[:3], "machines.jsonl"])),
    ]
    return chance.choice([("kill", round(part / 2, 3)), ("kill", part), ("die", operation), chance.choice(rare)])


def campaign(seed: int, kills: int, log: Path | None) -> None:
    chance, began = random.Random(seed), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        player = Player(Path(place))
        while (killed := player.counts["kill: killed"] + player.counts["die: killed"]) < kills:
            recipe, faults = player.attack(chance)
            try:
                player.play(recipe, faults)
            except Failure as failure:
                raise SystemExit(f"player.play({recipe!r}, {faults!r})\n{failure}") from None
            if player.runs % 20 == 0:
                print(f"{killed} kills, {player.runs} runs, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
        summary = {
            "what": "runs of `flexconv train` that met faults, each compared with a run without faults: weights bit "
            "by bit, metrics.jsonl and results.json except for times",
            "command": f"python -m tests.fuzz.runs {seed} {kills}",
            "kills": killed,
            "runs": player.runs,
            "failures": 0,
            "seconds": round(time.monotonic() - began),
            "flexconv": flexconv.__version__,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "counts": dict(sorted(player.counts.items())),
        }
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    sys.stdout.write(text)


def serve() -> None:
    """Play what comes from standard input."""
    with tempfile.TemporaryDirectory() as place:
        player = Player(Path(place))
        for line in sys.stdin:
            recipe, faults = json.loads(line)
            try:
                player.play(recipe, faults)
                answer = None
            except Failure as failure:
                answer = str(failure)
            sys.stdout.write(json.dumps([answer, player.counts]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        campaign(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    else:
        serve()
