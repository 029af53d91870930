"""Training runs that are killed, damaged and edited end as if undisturbed, or are refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.helpers import EXAMPLES, fuzz

pytest.importorskip("lightning_fabric")
pytestmark = pytest.mark.timeout(max(300, 10 * EXAMPLES))

ROOT = Path(__file__).parents[2]
KINDS = ["checkpoint", "metrics.jsonl", "recipe.yaml"]

parts = st.floats(0, 1).map(lambda part: round(part, 3))
faults = st.one_of(
    st.tuples(st.just("kill"), parts),
    st.tuples(st.just("die"), st.integers(1, 60) | st.integers(-9, -1)),
    st.tuples(st.just("stop"), st.sampled_from(["SIGTERM", "SIGINT"]), parts),
    st.tuples(st.just("full"), st.integers(1, 60)),
    st.tuples(st.just("limit"), st.sampled_from([0, 100, 3000, 10_000, 30_000])),
    st.tuples(st.just("race"), parts),
    st.just(("move",)),
    st.sampled_from([("edit", "optim.lr", 0.5), ("edit", "seed", 6), ("edit", "epochs", 1)]),
    st.tuples(st.just("cut"), st.sampled_from([*KINDS, "machines.jsonl", "results.json"]), parts),
    st.tuples(st.just("flip"), st.sampled_from(KINDS), parts, st.integers(0, 7)),
    st.tuples(st.just("lose"), st.sampled_from([*KINDS[:2], "machines.jsonl"])),
)


@pytest.fixture(scope="module")
def play():
    """A function that plays a list of faults in a process of its own (see runs.py) and returns what happened so far."""
    command = [sys.executable, "-m", "tests.fuzz.runs"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(recipe, faults):
            process.stdin.write(json.dumps([recipe, faults]) + "\n")
            process.stdin.flush()
            failure, counts = json.loads(process.stdout.readline())
            assert failure is None, failure
            return counts

        yield ask
        process.stdin.close()


def test_kills_in_the_last_file_operations(play):
    """Results are written last, and once: a run that has them is complete, without parts of files."""
    for operation in (-1, -2, -3):
        counts = play("sgd", [("die", operation)])
    assert counts["die: killed"] == 3


def test_files_that_are_restored_or_refused(play):
    counts = play("adam", [("die", 30), ("lose", "metrics.jsonl")])
    counts = play("adam", [("die", 30), ("edit", "optim.lr", 0.5), ("flip", "checkpoint", 0.5, 1)])
    assert counts["lose: finished"] == counts["edit: refused"] == counts["flip: finished"] == 1


@fuzz(16, recipe=st.sampled_from(["adam", "sgd", "cross"]), faults=st.lists(faults, min_size=1, max_size=5), cost=50)
def test_faults(play, recipe, faults):
    play(recipe, faults)
