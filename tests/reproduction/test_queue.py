"""The queue of `python -m reproduction run`: order, time limit, resumption, packing."""

from __future__ import annotations

import tarfile

import pytest

from flexconv.errors import ArgumentError
from flexconv.train import RunFolder, load_recipe
from reproduction import Ledger, _queue
from reproduction import _work as work
from reproduction.__main__ import run as command
from reproduction._ledger import differences
from reproduction._plan import Wanted, starting_with

from .test_page import RESULTS
from .test_smoke import AtOnce

WANTED = (Wanted("first", ("digits",), 2), Wanted("second", ("digits/penalty", "digits")))
RUNS = [("digits", 0), ("digits", 1), ("digits/penalty", 0)]
SMALL = ["model.widths=[2]", "model.generator_options.hidden=3", "epochs=3", "batch_size=719"]
SMALL += ["schedule.warmup_epochs=0"]


def ledger_of(folder):
    return Ledger(folder, load=lambda name: load_recipe(name, SMALL))


def work_on(folder, **options):
    return _queue.work(ledger_of(folder), device="cpu", plots=False, wanted=WANTED, **options)


def states(attempts):
    return [(attempt.name, attempt.seed, attempt.state) for attempt in attempts]


def test_lists_each_missing_run_once_in_the_order_of_the_plan(tmp_path):
    assert _queue.queue(ledger_of(tmp_path), WANTED) == RUNS
    _, rows = _queue.missing_table(ledger_of(tmp_path), WANTED)
    assert [row[:4] for row in rows] == [
        ("digits", "0", "first", ""),
        ("digits", "1", "first", ""),
        ("digits/penalty", "0", "second", ""),
    ]


def test_plan_can_be_restricted_to_some_recipes(capsys):
    assert starting_with(["digits/"], WANTED) == [Wanted("second", ("digits/penalty",))]
    assert starting_with([], WANTED) == list(WANTED)
    with pytest.raises(ArgumentError, match="'digit-x'"):
        starting_with(["digit-x"], WANTED)
    command(["run", "--list", "--only", "sepflexnet-scifar10", "--results", str(RESULTS)])
    listed = capsys.readouterr().out
    assert "SepFlexNet" in listed
    assert "flextcn" not in listed


def test_runs_until_the_plan_is_empty(tmp_path):
    attempts = work_on(tmp_path, changes=["checkpoint_seconds=0"])
    assert states(attempts) == [(*run, "finished") for run in RUNS]
    assert _queue.queue(ledger_of(tmp_path), WANTED) == []
    assert work_on(tmp_path) == []
    _, rows = _queue.attempts_table(attempts)
    accuracy = RunFolder(tmp_path / "runs/digits-seed0").read_results()["test_accuracy"]
    assert rows[0] == ("digits", "0", "finished", "3 epochs", f"{100 * accuracy:.2f}")


def test_stops_at_the_limit_and_resumes_started_runs_first(tmp_path, monkeypatch):
    assert work_on(tmp_path, minutes=0) == []
    only_last = (Wanted("second", ("digits/penalty",)),)
    with monkeypatch.context() as context:
        context.setattr(work.threading, "Timer", AtOnce)
        attempts = _queue.work(ledger_of(tmp_path), device="cpu", minutes=100, wanted=only_last, plots=False)
    assert states(attempts) == [("digits/penalty", 0, "stopped")]
    assert "interrupted" in _queue.attempts_table(attempts)[1][0][3]
    _, rows = _queue.missing_table(ledger_of(tmp_path), WANTED)
    assert [(row[0], row[3]) for row in rows] == [("digits/penalty", "started"), ("digits", ""), ("digits", "")]

    packed = _queue.pack(attempts, tmp_path / "packed")
    assert [path.name for path in packed] == ["digits-penalty-seed0.tar"]
    with tarfile.open(packed[0]) as archive:
        archive.extractall(tmp_path / "elsewhere/runs", filter="data")
    attempts = work_on(tmp_path / "elsewhere", minutes=100)
    assert states(attempts) == [(*run, "finished") for run in (RUNS[2], *RUNS[:2])]
    assert len(RunFolder(attempts[0].folder).read_machines()) == 2


def test_packs_logs_and_weights_of_finished_runs(tmp_path):
    packed = _queue.pack(work_on(tmp_path), tmp_path / "packed")
    assert len(packed) == 3
    with tarfile.open(packed[0]) as archive:
        names = {name.partition("/")[2].partition("/")[0] for name in archive.getnames()}
    assert names == {"recipe.yaml", "metrics.jsonl", "machines.jsonl", "results.json", "weights"}


def test_skips_runs_that_cannot_be_started(tmp_path):
    busy = RunFolder(tmp_path / "runs/digits-seed0")
    RunFolder(tmp_path / "runs/digits-seed1").write_recipe(load_recipe("digits"))  # another recipe
    with busy.locked():
        attempts = work_on(tmp_path)
    assert [attempt.state for attempt in attempts] == ["skipped", "skipped", "finished"]


def test_skips_runs_without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXCONV_DATA", str(tmp_path))
    ledger = Ledger(tmp_path)
    attempts = _queue.work(ledger, device="cpu", wanted=(Wanted("a", ("flexnet7-mnist",)),))
    assert states(attempts) == [("flexnet7-mnist", 0, "skipped")]
    assert _queue.attempts_table(attempts)[1][0][3:] == ("–", "–")


def test_rejects_changes_of_the_experiment(tmp_path):
    with pytest.raises(ArgumentError, match="epochs=2"):
        work_on(tmp_path, changes=["epochs=2"])


def test_runs_several_at_a_time(tmp_path):
    RunFolder(tmp_path / "runs/digits-seed1").write_recipe(load_recipe("digits"))  # another recipe
    attempts = work_on(tmp_path, jobs=2)
    assert sorted(states(attempts)) == [(*RUNS[0], "finished"), (*RUNS[1], "skipped"), (*RUNS[2], "finished")]
    assert _queue.queue(ledger_of(tmp_path), WANTED) == [RUNS[1]]
    assert work_on(tmp_path, jobs=2, minutes=0) == []


@pytest.mark.parametrize(("minutes", "seconds"), [(9, 520), (1, 54), (0, 0)])
def test_leaves_time_to_write_a_checkpoint(minutes, seconds):
    assert _queue.stop_after(minutes) == seconds


def test_no_missing_run_of_the_plan_has_its_folder_taken():
    ledger = Ledger(RESULTS, own_weights=False)
    for name, seed in _queue.queue(ledger):
        folder = RunFolder(work.run_folder(ledger.runs, name, seed))
        assert not folder.exists or not differences(ledger.load(name), folder.read_recipe()), folder.path


def test_headline_rows_come_first():
    queue = _queue.queue(Ledger(RESULTS / "none", own_weights=False))
    assert queue[:4] == [("flextcn-smnist", 0), ("flextcn-smnist", 1), ("flextcn-smnist", 2), ("flextcn-pmnist", 0)]
    assert queue.index(("kodak", 2)) < queue.index(("flextcn-smnist/2-blocks", 0)) < queue.index(("flexnet7-mnist", 0))
    assert len(queue) == len(set(queue))


def test_command_lists_and_runs_nothing_if_the_time_is_over(tmp_path, capsys):
    assert command(["run", "--list", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["flextcn-smnist", "0"]
    assert command(["run", "--minutes", "0", "--results", str(tmp_path), "--pack", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == lines[-1]
    assert command(["run", "--minutes", "1", "--set", "epochs=2", "--results", str(tmp_path)]) == 2
    assert "epochs=2" in capsys.readouterr().err
