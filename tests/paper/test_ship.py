"""Shipped networks: they load by name, are small, tell where they come from, and score what their logs say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flexconv import cli
from flexconv.data import MissingDataError
from flexconv.models import from_pretrained
from flexconv.models._pretrained import SHIPPED, shipped_names
from flexconv.paper import Ledger, ship
from flexconv.paper._ship import LARGEST
from flexconv.train import RunError, RunFolder, load_data

RESULTS = Path(__file__).parents[2] / "results"


def test_some_are_shipped():
    assert {"flexnet3-digits", "flextcn2-character-trajectories"} <= set(shipped_names())


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_network_is_whole(name):
    model = from_pretrained(name)
    folder = RunFolder(SHIPPED / name)
    results = folder.read_results()
    assert sum(p.numel() for p in model.parameters()) == results["parameters"]
    assert sum(path.stat().st_size for path in folder.path.glob("*.safetensors")) <= LARGEST
    assert len(list(folder.path.glob("*.safetensors"))) == 1
    assert folder.read_recipe().data.root is None
    card = (folder.path / "README.md").read_text("utf-8")
    assert f"{100 * results['test_accuracy']:.2f} %" in card
    for part in ("license: ", "| data |", "| recipe |", "Learned sizes"):
        assert part in card


@pytest.mark.parametrize("name", shipped_names())
def test_its_log_is_among_the_results(name):
    results = RunFolder(SHIPPED / name).read_results()
    logs = [log for log in Ledger(RESULTS).logs if log.results]
    found = [stage for log in logs for stage in (log.results, log.results.get("source"), log.results.get("target"))]
    assert results in found, "a number without its log does not count"


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", shipped_names())
def test_its_accuracy_is_the_one_in_its_log(name, capsys):
    folder = RunFolder(SHIPPED / name)
    results, recipe = folder.read_results(), folder.read_recipe()
    if results["test_count"] > 1000:
        pytest.skip(f"takes minutes: flexconv eval {name}")
    try:
        load_data(recipe)
    except MissingDataError:
        pytest.skip(f"{recipe.data.name} is not here")
    assert cli.run(["eval", name, "--device", "cpu"]) == 0
    accuracy, count, loss = re.search(r"test: ([\d.]+) % of ([\d,]+), loss ([\d.]+)", capsys.readouterr().out).groups()
    assert accuracy == f"{100 * results['test_accuracy']:.2f}"
    assert int(count.replace(",", "")) == results["test_count"]
    assert float(loss) == pytest.approx(results["test_loss"], abs=1e-3)


def test_a_run_is_shipped_by_one_command(tmp_path, capsys):
    run = tmp_path / "run"
    source = SHIPPED / "flexnet3-digits"
    folder = RunFolder(run)
    recipe = RunFolder(source).read_recipe()
    folder.write_recipe(replace(recipe, data=replace(recipe.data, root="/a/place/of/mine")))
    with pytest.raises(RunError, match="no finished network"):
        ship(run, "mine", into=tmp_path)
    folder.write_results(RunFolder(source).read_results())
    folder.weights.mkdir()
    for name in ("config.json", json.loads((source / "config.json").read_text())["weights"]):
        (folder.weights / name).write_bytes((source / name).read_bytes())
    assert cli.run(["ship", str(run), "--name", "mine", "--into", str(tmp_path)]) == 0
    assert str(tmp_path / "mine") in capsys.readouterr().out.replace("\n", "")
    assert "/a/place" not in "".join(p.read_text("utf-8") for p in (tmp_path / "mine").glob("*.[yjm]*"))
    assert cli.run(["eval", str(tmp_path / "mine"), "--device", "cpu"]) == 0
    assert "98.61 %" in capsys.readouterr().out


def test_what_is_too_large_is_not_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr("flexconv.paper._ship.LARGEST", 1000)
    (tmp_path / "weights").mkdir()
    folder = RunFolder(tmp_path)
    folder.write_recipe(RunFolder(SHIPPED / "flexnet3-digits").read_recipe())
    folder.write_results({})
    (tmp_path / "weights/weights-1.safetensors").write_bytes(bytes(1001))
    with pytest.raises(RunError, match="no more than 1,000"):
        ship(tmp_path, "mine", into=tmp_path / "out")
