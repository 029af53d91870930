"""Shipped networks: they load by name, are small, tell where they come from, and score what their logs say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flexconv import cli
from flexconv.data import MissingDataError
from flexconv.models import from_pretrained
from flexconv.models._pretrained import SHIPPED, list_pretrained
from flexconv.train import ModelRecipe, RunError, RunFolder, load_data
from reproduction import Ledger, ship
from reproduction._ship import LARGEST

RESULTS = Path(__file__).parents[2] / "results"


def test_some_are_shipped():
    assert {"flexnet3-digits", "flextcn2-character-trajectories"} <= set(list_pretrained())


@pytest.mark.parametrize("name", list_pretrained())
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


@pytest.mark.parametrize("name", list_pretrained())
def test_its_log_is_among_the_results(name):
    results = RunFolder(SHIPPED / name).read_results()
    folders = [log.path / stage for log in Ledger(RESULTS).logs for stage in ("", "source", "target")]
    found = [run.read_results() for run in map(RunFolder, folders) if run.finished]
    assert results in found, "a number without its log does not count"


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", list_pretrained())
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


def finish(run, **changes):
    """A run folder as training leaves it, of a shipped network."""
    source, folder = RunFolder(SHIPPED / "flexnet3-digits"), RunFolder(run)
    folder.write_recipe(replace(source.read_recipe(), **changes))
    folder.write_results(source.read_results())
    folder.weights.mkdir()
    for name in ("config.json", json.loads((source.path / "config.json").read_text())["weights"]):
        (folder.weights / name).write_bytes((source.path / name).read_bytes())


def test_a_run_is_shipped_by_one_command(tmp_path, capsys):
    run = tmp_path / "run"
    recipe = RunFolder(SHIPPED / "flexnet3-digits").read_recipe()
    RunFolder(run).write_recipe(recipe)
    with pytest.raises(RunError, match="no finished network"):
        ship(run, "mine", into=tmp_path)
    finish(run, data=replace(recipe.data, root="/a/place/of/mine"))
    assert cli.run(["ship", str(run), "--name", "mine", "--into", str(tmp_path)]) == 0
    assert str(tmp_path / "mine") in capsys.readouterr().out.replace("\n", "")
    assert "/a/place" not in "".join(p.read_text("utf-8") for p in (tmp_path / "mine").glob("*.[yjm]*"))
    assert cli.run(["eval", str(tmp_path / "mine"), "--device", "cpu"]) == 0
    assert "98.61 %" in capsys.readouterr().out


@pytest.mark.parametrize("into", ["weights", "."])
def test_the_card_says_how_to_load_it_from_where_it_is(into, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(tmp_path / "run")
    ship("run", "flexnet3-digits", into=into)  # a name of the package's, too
    card = (tmp_path / into / "flexnet3-digits/README.md").read_text("utf-8")
    assert f'from_pretrained("{into}/flexnet3-digits")' in card
    assert card.count("# flexnet3-digits\n") == 1


def test_a_licence_is_stated_where_there_is_one(tmp_path, monkeypatch, capsys):
    finish(tmp_path / "run")
    monkeypatch.setattr("reproduction._ship.SHIPPED", tmp_path / "package")
    cards = {}
    for into, options in (("package", []), ("mine", []), ("theirs", ["--licence", "cc-by-4.0"])):
        command = ["ship", tmp_path / "run", "--name", "net", "--into", tmp_path / into, *options]
        assert cli.run([str(word) for word in command]) == 0, capsys.readouterr().err
        cards[into] = (tmp_path / into / "net/README.md").read_text("utf-8")
    assert 'license: "mit"\n' in cards["package"]
    assert 'from_pretrained("net")' in cards["package"]
    assert "license" not in cards["mine"]
    assert "| licence | not stated |" in cards["mine"]
    assert 'license: "cc-by-4.0"\n' in cards["theirs"]


def test_what_a_run_does_not_say_is_left_out(tmp_path, monkeypatch):
    finish(tmp_path / "run", about="")
    nobody = SimpleNamespace(title="Pictures in a folder", citation="", licence="")
    monkeypatch.setattr("reproduction._ship.dataset", lambda _: nobody)
    card = (ship(tmp_path / "run", "mine", into=tmp_path) / "README.md").read_text("utf-8")
    assert "# mine\n\n| | |\n|---|---|\n| network |" in card
    assert "| data | Pictures in a folder |\n" in card


def test_the_card_says_what_network_it_began_from(tmp_path):
    finish(tmp_path / "run", model=ModelRecipe(name="flexnet3-digits-penalty", pretrained=True))
    card = (ship(tmp_path / "run", "mine", into=tmp_path) / "README.md").read_text("utf-8")
    assert "| recipe | `recipe.yaml` beside this file: from the weights of flexnet3-digits-penalty, " in card


@pytest.mark.parametrize("name", ["bad name/..", "..", "", "a/b", "-a", "né"])
def test_a_name_that_is_none_is_refused_before_anything_is_written(name, tmp_path, capsys):
    finish(tmp_path / "run")
    assert cli.run(["ship", str(tmp_path / "run"), f"--name={name}", "--into", str(tmp_path / "w")]) != 0
    assert f"letters, digits, '.', '_' and '-', and begin with a letter or a digit; got {name!r}" in (
        " ".join(capsys.readouterr().err.split())
    )
    assert not (tmp_path / "w").exists()


def test_what_is_too_large_is_not_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction._ship.LARGEST", 1000)
    (tmp_path / "weights").mkdir()
    folder = RunFolder(tmp_path)
    folder.write_recipe(RunFolder(SHIPPED / "flexnet3-digits").read_recipe())
    folder.write_results({})
    (tmp_path / "weights/weights-1.safetensors").write_bytes(bytes(1001))
    with pytest.raises(RunError, match="no more than 1,000"):
        ship(tmp_path, "mine", into=tmp_path / "out")
