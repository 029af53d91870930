"""The output of `python -m reproduction`: the list, single tables, docs/results.md, results/README.md, the plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flexconv.train import RunFolder, build_recipe, list_recipes, load_recipe, plain
from reproduction import Ledger, items
from reproduction.__main__ import run as command
from reproduction._page import page
from reproduction._plan import WANTED, estimate, plan, to_ship
from reproduction._results import readme

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
AGAIN = "python -m reproduction all"


@pytest.fixture(scope="module")
def ledger():
    return Ledger(RESULTS, own_weights=False)


def test_results_page_is_up_to_date(ledger):
    assert (ROOT / "docs/results.md").read_text("utf-8").rstrip() == page(items(), ledger).rstrip(), f"run: {AGAIN}"


def test_results_readme_is_up_to_date(ledger):
    assert (RESULTS / "README.md").read_text("utf-8") == readme(ledger), "run: python -m reproduction results"


def test_results_readme_lists_every_file_and_run(ledger):
    text = (RESULTS / "README.md").read_text("utf-8")
    for path in [*(RESULTS / "bench").iterdir(), *(RESULTS / "timing").rglob("*.json")]:
        assert f"`{path.relative_to(RESULTS)}`" in text
    for log in ledger.logs:
        assert text.count(f"\n| {log.path.name} |") == 1


def test_results_page_links_every_picture(ledger):
    text = (ROOT / "docs/results.md").read_text("utf-8")
    linked = {Path(path).name for path in re.findall(r'(?:src|srcset)="(images/[^"]+)"', text)}
    assert linked == {path.name for path in (ROOT / "docs/images/results").iterdir()}, f"run: {AGAIN}"
    assert AGAIN in text


def test_logs_contain_no_machine_paths(ledger):
    for log in ledger.logs:
        tree = plain(log.recipe)
        assert tree.get("root") is None
        assert tree.get("data", {}).get("root") is None, log.path
        assert build_recipe(tree) == log.recipe


def test_list_shows_what_has_been_run(capsys):
    assert command(["--results", str(RESULTS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:20]] == [item.name for item in items()]
    assert command(["--results", "nowhere"]) == 0
    assert "0 logs in nowhere/runs" in capsys.readouterr().out


def test_prints_one_table(capsys):
    assert command(["table9", "--results", "nowhere"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"FlexNet-16 +0\.67M +99\.7 ± 0\.0 +not run", out)
    assert "- Published: the authors' best test epoch." in out
    assert command(["table9", "--results", "nowhere", "--markdown"]) == 0
    assert "| FlexNet-16 | 0.67M | 99.7 ± 0.0 | not run |" in capsys.readouterr().out
    assert command(["table11"]) == 2
    assert "'table1" in capsys.readouterr().err
    assert command(["table9", "--device", "gpu"]) == 2
    assert "--device" in capsys.readouterr().err


def test_draws_figures_into_a_folder(tmp_path, capsys):
    assert command(["figure7", "--results", "nowhere", "--out", str(tmp_path / "a")]) == 0
    drawn = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert drawn == ["figure7-flexnet7-cifar10-kernel-dark.png", "figure7-flexnet7-cifar10-kernel-light.png"]
    assert re.search(r"flexnet7-cifar10 +flexnet7-cifar10 +drawn", capsys.readouterr().out)


def test_plan_prints_valid_commands(capsys, ledger):
    known = list_recipes()
    for wanted in WANTED:
        assert set(wanted.recipes) <= set(known)
    assert command(["plan", "--results", str(RESULTS)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    runs = [line for line in lines if not line.startswith("python -m reproduction ship")]
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


def test_estimates_time_from_gpu_logs(tmp_path):
    for name, seconds in (("shared GPU", [20.0, 20.0, 20.0]), ("some", [90.0, 12.0, 11.0])):
        folder = RunFolder(tmp_path / "runs" / name)
        folder.write_recipe(load_recipe("flexnet7-cifar10", ["epochs=3"]))
        for each in seconds:
            folder.append_metrics({"epoch": 1, "epoch_seconds": each})
        folder.append_machine({"device": "NVIDIA"})
    assert estimate("flexnet7-cifar10", Ledger(tmp_path)) == "70 minutes at 12.0 s per epoch (some)"
    assert estimate("kodak", Ledger(tmp_path)) == "unknown"
    assert estimate("flexnet7-mnist", Ledger(tmp_path)) == "unknown"


def test_writes_the_results_page(tmp_path, capsys):
    assert command(["all", "--results", str(tmp_path / "none"), "--docs", str(tmp_path)]) == 0
    assert "results.md" in capsys.readouterr().out
    assert "## Table 1" in (tmp_path / "results.md").read_text("utf-8")
    assert "figure7-flexnet7-cifar10-kernel-light.png" in {
        path.name for path in (tmp_path / "images/results").iterdir()
    }
