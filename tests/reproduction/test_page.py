"""What is printed of the paper: the listing, single tables, the page in the docs, the plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flexconv import cli
from flexconv.train import RunFolder, list_recipes
from flexconv.train._read import build_recipe, plain
from reproduction import Ledger, items
from reproduction._page import page
from reproduction._plan import WANTED, estimate, plan, to_ship

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
AGAIN = "flexconv paper all --markdown --out docs/images/results > docs/results.md"


@pytest.fixture(scope="module")
def ledger():
    return Ledger(RESULTS, own_weights=False)


def test_the_page_is_what_the_logs_say(ledger):
    assert (ROOT / "docs/results.md").read_text("utf-8").rstrip() == page(items(), ledger).rstrip(), f"run: {AGAIN}"


def test_its_pictures_are_there(ledger):
    text = (ROOT / "docs/results.md").read_text("utf-8")
    linked = {Path(path).name for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)}
    assert linked == {path.name for path in (ROOT / "docs/images/results").iterdir()}, f"run: {AGAIN}"
    assert AGAIN in text


def test_logs_carry_no_places_of_their_machine(ledger):
    for log in ledger.logs:
        tree = plain(log.recipe)
        assert tree.get("root") is None
        assert tree.get("data", {}).get("root") is None, log.path
        assert build_recipe(tree) == log.recipe


def test_the_list_says_what_was_run(capsys):
    assert cli.run(["paper", "--results", str(RESULTS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:20]] == [item.name for item in items()]
    assert cli.run(["paper", "--results", "nowhere"]) == 0
    assert "logs: nowhere/runs, 0 of them" in capsys.readouterr().out


def test_a_table_alone(capsys):
    assert cli.run(["paper", "table9", "--results", "nowhere"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"FlexNet-16 +0\.67M +99\.7 ± 0\.0 +not run", out)
    assert "- Published: the authors' best test epoch." in out
    assert cli.run(["paper", "table9", "--results", "nowhere", "--markdown"]) == 0
    assert "| FlexNet-16 | 0.67M | 99.7 ± 0.0 | not run |" in capsys.readouterr().out
    assert cli.run(["paper", "--smoke"]) == 2
    assert "name a table or figure" in capsys.readouterr().err
    assert cli.run(["paper", "table11"]) == 2
    assert "did you mean 'table1" in capsys.readouterr().err


def test_figures_are_drawn_into_a_folder(tmp_path, capsys):
    assert cli.run(["paper", "figure7", "--results", "nowhere", "--out", str(tmp_path / "a")]) == 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["figure7-flexnet7-cifar10-kernel.png"]
    assert re.search(r"flexnet7-cifar10 +flexnet7-cifar10 +drawn", capsys.readouterr().out)


def test_the_plan_is_made_of_commands(capsys, ledger):
    known = list_recipes()
    for wanted in WANTED:
        assert set(wanted.recipes) <= set(known)
    assert cli.run(["paper", "--plan", "--results", str(RESULTS)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    runs = [line for line in lines if not line.startswith("flexconv ship")]
    assert lines[len(runs) :] == to_ship()
    assert len(runs) == sum(len(found) for _, found in plan(ledger))
    for line in runs:
        words = shlex.split(line, comments=True)
        assert words[:2] in (["flexconv", "train"], ["flexconv", "fit"])
        if words[2] == "--resume":
            run = RunFolder(RESULTS.parent / words[3])
            assert run.exists
            assert not run.finished
        else:
            assert words[2] in known


def test_an_estimate_is_that_of_a_log_on_a_gpu(tmp_path):
    from flexconv.train import RunFolder, load_recipe

    for name, seconds in (("beside others", [20.0, 20.0, 20.0]), ("some", [90.0, 12.0, 11.0])):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.write_recipe(load_recipe("flexnet7-cifar10", ["epochs=3"]))
        for each in seconds:
            folder.append_metrics({"epoch": 1, "epoch_seconds": each})
        folder.append_machine({"device": "NVIDIA"})
    assert estimate("flexnet7-cifar10", Ledger(tmp_path)) == "70 minutes, by 12.0 s per epoch of some"
    assert estimate("kodak", Ledger(tmp_path)) == "unknown"
    assert estimate("flexnet7-mnist", Ledger(tmp_path)) == "unknown"
