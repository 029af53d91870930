"""Tables, figures and timings end to end with tiny networks: run, log, read and draw."""

from __future__ import annotations

import signal

import pytest

from flexconv.train import Interrupted, RunError, RunFolder, load_recipe
from flexconv.train.fit_group import FitGroup
from reproduction import ITEMS, Ledger
from reproduction import _work as work
from reproduction.__main__ import run
from reproduction._smoke import smoke


@pytest.mark.parametrize(
    "name", ["table2", "table5", "table8", "table9", "table10", "figure3", "figure7", "crop-timing"]
)
def test_item_end_to_end(name, tmp_path):
    said: list[str] = []
    ledger = smoke([ITEMS[name]], tmp_path, say=said.append)
    section = ITEMS[name].section(ledger)
    assert section.state == "run"
    assert section.grid is not None
    assert not any("not run" in cell for row in section.grid.rows for cell in row)
    assert not ITEMS[name].jobs(ledger, (0,)), "no run is missing"
    drawn = [path.stem for path in (tmp_path / "pictures").iterdir()]
    assert sorted(drawn) == sorted(ITEMS[name].pictures(ledger))
    assert bool(drawn) == name.startswith("figure")
    assert len(said) == 1


def tiny(monkeypatch, name="digits"):
    recipe = load_recipe(name, ["model.widths=[2]", "model.generator_options.hidden=3", "epochs=3", "batch_size=719",
                                "schedule.warmup_epochs=0"])  # fmt: skip
    monkeypatch.setattr("flexconv.train.run.draw_plots", lambda *_: None)
    return recipe


def test_limit_saves_the_run_and_the_next_call_resumes(tmp_path, monkeypatch):
    jobs = [work.Job("digits", seed, tiny(monkeypatch)) for seed in (0, 1)]
    ledger = Ledger(tmp_path)
    assert work.do(jobs, ledger, device="cpu", limit=0.0) == work.Outcome(0, 2, stopped=True)
    monkeypatch.setattr(work.threading, "Timer", AtOnce)
    assert work.do(jobs, ledger, device="cpu", limit=1000.0) == work.Outcome(0, 2, stopped=True)
    assert not RunFolder(tmp_path / "runs/digits-seed0").finished
    monkeypatch.undo()
    tiny(monkeypatch)
    assert work.do(jobs, ledger, device="cpu", limit=1000.0) == work.Outcome(2, 0, stopped=False)
    assert RunFolder(tmp_path / "runs/digits-seed1").finished
    starts = RunFolder(tmp_path / "runs/digits-seed0").read_machines()
    assert [facts["device"].partition(",")[0] for facts in starts] == ["cpu", "cpu"]


class AtOnce:
    """A timer that fires as soon as the training handles signals."""

    def __init__(self, _seconds, press):
        self.press = press

    def start(self):
        from flexconv.train import Trainer

        original = Trainer._epoch

        def epoch(trainer, stop_asked):
            Trainer._epoch = original
            self.press()
            return original(trainer, stop_asked)

        Trainer._epoch = epoch

    def cancel(self):
        pass


def test_resumes_an_interrupted_fit(tmp_path, monkeypatch):
    recipe = load_recipe("fit-gabor/magnet-s", ["steps=3", "target_options.size=5"])
    jobs, step = [work.Job("fit-gabor/magnet-s", 0, recipe)], FitGroup.step
    folder = RunFolder(tmp_path / "runs/fit-gabor-magnet-s-seed0")

    def stopped(group):
        step(group)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as context:
        context.setattr(FitGroup, "step", stopped)
        with pytest.raises(Interrupted):
            work.do(jobs, Ledger(tmp_path), device="cpu")
    assert not folder.finished
    assert work.do(jobs, Ledger(tmp_path), device="cpu").done == 1
    assert {line["step"] for line in folder.read_metrics()} == {0, 3}
    other = [work.Job("fit-gabor/magnet-s", 0, load_recipe("fit-gabor/magnet-s"))]
    with pytest.raises(RunError, match=r"another recipe.*steps"):
        work.do(other, Ledger(tmp_path), device="cpu")


def test_skips_runs_without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXCONV_DATA", str(tmp_path))
    jobs = [work.Job("flexnet7-mnist", 0, load_recipe("flexnet7-mnist")), work.Job("digits", 0, tiny(monkeypatch))]
    assert work.do(jobs, Ledger(tmp_path), device="cpu") == work.Outcome(1, 1, stopped=False)
    assert not (tmp_path / "runs/flexnet7-mnist-seed0").exists()


def test_rejects_a_folder_with_another_recipe(tmp_path, monkeypatch):
    RunFolder(tmp_path / "runs/digits-seed0").write_recipe(load_recipe("digits"))
    with pytest.raises(work.RunError, match="epochs"):
        work.do([work.Job("digits", 0, tiny(monkeypatch))], Ledger(tmp_path), device="cpu")


def test_folder_names_contain_changes_but_not_circumstances(tmp_path):
    changes = ["epochs=75", "engine=graph", "optim.lr=0.1", "model.widths=[3, 4]"]
    assert work.run_folder(tmp_path, "a/b", 2, changes).name == "a-b-epochs-75-lr-0.1-widths-3-4-seed2"


def test_run_option_starts_missing_runs_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("reproduction._timing._measure", lambda *_: MEASURED)
    arguments = ["low-resolution-timing", "--results", str(tmp_path)]
    assert run([*arguments, "--run", "--device", "cpu"]) == 0
    assert "1 runs done" in capsys.readouterr().out
    assert run([*arguments, "--run", "--device", "cpu"]) == 0
    assert "0 runs done" in capsys.readouterr().out
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "12.0" in out
    assert "32 × 32 / 16 × 16: measured 1.00" in out
    assert run([*arguments, "--run", "--seeds", "one"]) == 2


@pytest.mark.parametrize("option", [("--seeds", "0"), ("--limit", "9"), ("--set", "epochs=2")])
def test_run_options_need_run(option, capsys):
    assert run(["table3", *option]) == 2
    assert capsys.readouterr().err == f"error: {option[0]} needs --run\n"


MEASURED = {
    "milliseconds": 12.0,
    "batches": 4,
    "batch_size": 64,
    "precision": "bf16",
    "engine": "graph",
    "device": "a card",
}
