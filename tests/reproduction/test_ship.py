"""Published networks: they load by name, are small, have a model card, and reach the accuracy in their logs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flexconv import cli
from flexconv.data import MissingDataError
from flexconv.models import from_pretrained, list_pretrained, pretrained_folder
from flexconv.train import ModelRecipe, RunError, RunFolder, load_data
from reproduction import Ledger, ship
from reproduction import __main__ as command
from reproduction._files import PACKAGE_WEIGHTS, WEIGHTS
from reproduction._ship import LARGEST

from ..conftest import MISSING_DATA

RESULTS = Path(__file__).parents[2] / "results"
DIGITS = PACKAGE_WEIGHTS / "flexnet3-digits"


# --- what is published ------------------------------------------------------------------------------------------------


def test_package_holds_the_digits_network_only():
    assert [path.parent for path in PACKAGE_WEIGHTS.glob("*/config.json")] == [DIGITS]
    assert {"flexnet3-digits", "flexnet7-cifar10", "flextcn2-character-trajectories"} <= set(list_pretrained())


@pytest.mark.parametrize("root", [PACKAGE_WEIGHTS, WEIGHTS], ids=["package", "weights"])
def test_index_has_the_digest_of_every_weights_file(root):
    index = json.loads((root / "index.json").read_text("utf-8"))
    assert sorted(index["networks"]) == sorted(path.parent.name for path in root.glob("*/config.json"))
    for name, entry in index["networks"].items():
        assert hashlib.sha256((root / name / entry["weights"]).read_bytes()).hexdigest() == entry["sha256"]
    if root == PACKAGE_WEIGHTS:
        assert index["flexconv-weights"] == sorted(path.parent.name for path in WEIGHTS.glob("*/config.json"))


@pytest.mark.parametrize("name", list_pretrained())
def test_published_network_is_complete(name):
    model = from_pretrained(name)
    folder = RunFolder(pretrained_folder(name))
    results = folder.read_results()
    assert sum(p.numel() for p in model.parameters()) == results["parameters"]
    assert sum(path.stat().st_size for path in folder.path.glob("*.safetensors")) <= LARGEST
    assert len(list(folder.path.glob("*.safetensors"))) == 1
    assert folder.read_recipe().data.root is None
    assert len(folder.read_metrics()) == results["epochs"]  # `flexconv explore` shows the training
    card = (folder.path / "README.md").read_text("utf-8")
    assert f"{100 * results['test_accuracy']:.2f} %" in card
    assert f'from flexconv import from_pretrained\n\nmodel = from_pretrained("{name}")' in card
    for part in ("license: ", "| data |", "| recipe |", "Learned sizes"):
        assert part in card


@pytest.fixture(scope="module")
def logged():
    """The results of all runs in results/."""
    folders = [log.path / stage for log in Ledger(RESULTS).logs for stage in ("", "source", "target")]
    return [run.read_results() for run in map(RunFolder, folders) if run.finished]


@pytest.mark.parametrize("name", list_pretrained())
def test_log_of_a_published_network_is_in_results(logged, name):
    assert RunFolder(pretrained_folder(name)).read_results() in logged, "a number without its log does not count"


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize("name", list_pretrained())
def test_eval_reaches_the_accuracy_in_the_log(name, capsys):
    folder = RunFolder(pretrained_folder(name))
    results, recipe = folder.read_results(), folder.read_recipe()
    if results["test_count"] > 1000:
        pytest.skip(f"takes minutes: flexconv eval {name}")
    try:
        load_data(recipe)
    except MissingDataError:
        pytest.skip(f"{MISSING_DATA}{recipe.data.name}")
    assert cli.run(["eval", name, "--device", "cpu"]) == 0
    accuracy, count, loss = re.search(
        r"test: ([\d.]+) % of ([\d,]+),.* loss ([\d.]+)", capsys.readouterr().out
    ).groups()
    assert accuracy == f"{100 * results['test_accuracy']:.2f}"
    assert int(count.replace(",", "")) == results["test_count"]
    assert float(loss) == pytest.approx(results["test_loss"], abs=1e-3)


# --- publishing -------------------------------------------------------------------------------------------------------


def finish(run, **changes):
    """Write a run folder as training leaves it, from a published network."""
    source, folder = RunFolder(DIGITS), RunFolder(run)
    folder.write_recipe(replace(source.read_recipe(), **changes))
    folder.write_results(source.read_results())
    folder.weights.mkdir()
    for name in ("config.json", json.loads((source.path / "config.json").read_text())["weights"]):
        (folder.weights / name).write_bytes((source.path / name).read_bytes())


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose folders of weights may be written to."""
    weights, package = tmp_path / "checkout/weights", tmp_path / "checkout/src/flexconv/weights"
    monkeypatch.setattr("reproduction._ship.WEIGHTS", weights)
    monkeypatch.setattr("reproduction._ship.PACKAGE_WEIGHTS", package)
    monkeypatch.setattr("flexconv.models._locate.CHECKOUT", weights)
    monkeypatch.setattr("flexconv.models._locate.PACKAGE", package)
    return tmp_path / "checkout"


def test_ship_command(tmp_path, capsys):
    run = tmp_path / "run"
    recipe = RunFolder(DIGITS).read_recipe()
    RunFolder(run).write_recipe(recipe)
    with pytest.raises(RunError, match="no finished network"):
        ship(run, "mine", into=tmp_path)
    finish(run, data=replace(recipe.data, root="/a/place/of/mine"))
    RunFolder(run).append_metrics({"epoch": 1, "train_loss": 0.5})
    assert command.run(["ship", str(run), "--name", "mine", "--into", str(tmp_path)]) == 0
    assert str(tmp_path / "mine") in capsys.readouterr().out.replace("\n", "")
    assert "/a/place" not in "".join(p.read_text("utf-8") for p in (tmp_path / "mine").glob("*.[yjm]*"))
    assert list(json.loads((tmp_path / "index.json").read_text())["networks"]) == ["mine"]
    assert RunFolder(tmp_path / "mine").read_metrics() == [{"epoch": 1, "train_loss": 0.5}]
    assert cli.run(["eval", str(tmp_path / "mine"), "--device", "cpu"]) == 0
    assert "98.61 %" in capsys.readouterr().out


def test_shipped_network_is_found_by_its_name(checkout, tmp_path):
    finish(tmp_path / "run")
    ship(tmp_path / "run", "second", into=checkout / "weights")
    ship(tmp_path / "run", "first", into=checkout / "weights")
    assert list_pretrained() == ["first", "second"]
    from_pretrained("first")
    package = json.loads((checkout / "src/flexconv/weights/index.json").read_text())
    assert package["flexconv-weights"] == ["first", "second"]
    ship(tmp_path / "run", "third", into=checkout / "src/flexconv/weights")
    package = json.loads((checkout / "src/flexconv/weights/index.json").read_text())
    assert (list(package["networks"]), package["flexconv-weights"]) == (["third"], ["first", "second"])
    assert pretrained_folder("third") == checkout / "src/flexconv/weights/third"


@pytest.mark.parametrize("into", ["weights", "."])
def test_card_says_how_to_load_the_network(into, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(tmp_path / "run")
    ship("run", "flexnet3-digits", into=into)  # also the name of a published network
    card = (tmp_path / into / "flexnet3-digits/README.md").read_text("utf-8")
    assert f'from_pretrained("{into}/flexnet3-digits")' in card
    assert card.count("# flexnet3-digits\n") == 1


def test_card_states_the_licence(checkout, tmp_path, capsys):
    finish(tmp_path / "run")
    cards = {}
    for into, options in (("checkout/weights", []), ("mine", []), ("theirs", ["--licence", "cc-by-4.0"])):
        words = ["ship", tmp_path / "run", "--name", "net", "--into", tmp_path / into, *options]
        assert command.run([str(word) for word in words]) == 0, capsys.readouterr().err
        cards[into] = (tmp_path / into / "net/README.md").read_text("utf-8")
    assert 'license: "mit"\n' in cards["checkout/weights"]
    assert 'from_pretrained("net")' in cards["checkout/weights"]
    assert "license" not in cards["mine"]
    assert "| licence | not stated |" in cards["mine"]
    assert 'license: "cc-by-4.0"\n' in cards["theirs"]


def test_card_omits_what_is_unknown(tmp_path, monkeypatch):
    finish(tmp_path / "run", about="")
    unknown = SimpleNamespace(title="Pictures in a folder", citation="", licence="")
    monkeypatch.setattr("reproduction._ship.dataset", lambda _: unknown)
    card = (ship(tmp_path / "run", "mine", into=tmp_path) / "README.md").read_text("utf-8")
    assert "# mine\n\n| | |\n|---|---|\n| network |" in card
    assert "| data | Pictures in a folder |\n" in card


def test_card_names_the_network_that_was_fine_tuned(tmp_path):
    finish(tmp_path / "run", model=ModelRecipe(name="flexnet7-cifar10", pretrained=True))
    card = (ship(tmp_path / "run", "mine", into=tmp_path) / "README.md").read_text("utf-8")
    assert "starting from the weights of flexnet7-cifar10, " in card


@pytest.mark.parametrize("name", ["bad name/..", "..", "", "a/b", "-a", "né"])
def test_rejects_wrong_names_before_writing(name, tmp_path, capsys):
    finish(tmp_path / "run")
    assert command.run(["ship", str(tmp_path / "run"), f"--name={name}", "--into", str(tmp_path / "w")]) == 2
    error = capsys.readouterr().err
    assert "letters, digits" in error
    assert f"got {name!r}" in error
    assert not (tmp_path / "w").exists()


def test_rejects_large_networks(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction._ship.LARGEST", 1000)
    (tmp_path / "weights").mkdir()
    folder = RunFolder(tmp_path)
    folder.write_recipe(RunFolder(DIGITS).read_recipe())
    folder.write_results({})
    (tmp_path / "weights/weights-1.safetensors").write_bytes(bytes(1001))
    with pytest.raises(RunError, match="limit is 1,000"):
        ship(tmp_path, "mine", into=tmp_path / "out")
