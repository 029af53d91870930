"""Which logs count for a recipe, and how the others are listed."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from flexconv.models import pretrained_folder
from flexconv.train import RunFolder, list_recipes, load_recipe
from reproduction import ITEMS, Ledger, items
from reproduction._item import NOTHING
from reproduction._measures import ACCURACY, CHANGE, FINE_TUNED, show
from reproduction._table import Column, Row, Table, published_value

RECIPE = "flexnet7-cifar10"
TABLE = Table(
    name="t", title="T", columns=(Column("accuracy"),), rows=(Row("A", "1M", ("92.2 ± 0.1",), RECIPE),), notes=("n.",)
)


def write(results, name, *, accuracy=None, epochs=0, **changes):
    """Write the log of a run of the recipe with changes. It is finished if it has an accuracy."""
    folder = RunFolder(results / "runs" / name)
    folder.write_recipe(replace(load_recipe(RECIPE), **changes))
    for epoch in range(1, epochs + 1):
        folder.append_metrics({"epoch": epoch, "epoch_seconds": 2.0})
    if accuracy is not None:
        folder.write_results({"test_accuracy": accuracy, "selected": "last", "device": "a card"})


def ours(results):
    return TABLE.section(Ledger(results)).grid.rows[0][-1]


def test_table_without_logs(tmp_path):
    section = TABLE.section(Ledger(tmp_path))
    assert section.grid.rows == (("A", "1M", "92.2 ± 0.1", "not run"),)
    assert (section.state, section.runs) == ("not run", None)
    assert section.notes == ("Published: the authors' best test epoch.", "n.")


def test_column_without_published_numbers(tmp_path):
    rows = (Row("A", "1M", ("92.2", NOTHING), RECIPE), Row("B", "1M", (NOTHING, NOTHING), "flexnet3-cifar10"))
    table = replace(TABLE, columns=(Column("accuracy"), Column("again")), rows=rows)
    write(tmp_path, "a", accuracy=0.920)
    grid = table.section(Ledger(tmp_path)).grid
    assert grid.titles[2:] == ("accuracy, published", "accuracy, ours", "again, ours")
    assert grid.rows[0][2:] == ("92.2", "92.00 (n = 1; −0.20)", "92.00 (n = 1)")
    assert grid.rows[1][2:] == (NOTHING, "not run", "not run")


def test_averages_seeds_and_shows_the_difference(tmp_path):
    write(tmp_path, "a", accuracy=0.920, seed=0)
    assert ours(tmp_path) == "92.00 (n = 1; −0.20)"
    write(tmp_path, "b", accuracy=0.926, seed=1, precision="bf16", engine="graph")
    write(tmp_path, "c", accuracy=0.1, seed=1)  # each seed counts once
    section = TABLE.section(Ledger(tmp_path))
    assert section.grid.rows[0][-1] == "92.30 ± 0.42 (n = 2; +0.10)"
    assert section.state == "run"
    assert [row[0] for row in section.runs.rows] == ["a", "b", "c"]
    assert "350 epochs, bf16, graph" in section.runs.rows[1]


def test_shorter_run_is_listed_but_does_not_count(tmp_path):
    write(tmp_path, "short", accuracy=0.7, epochs=2)
    folder = RunFolder(tmp_path / "runs/short")
    folder.write_recipe(replace(load_recipe(RECIPE), epochs=2))
    section = TABLE.section(Ledger(tmp_path))
    assert section.grid.rows[0][-1] == "not run; 70.00 with 2 epochs"
    assert section.state == "started"
    assert section.runs.rows[0][-1] == "epochs 2 instead of 350"


def test_interrupted_run(tmp_path):
    write(tmp_path, "cut", epochs=3)
    section = TABLE.section(Ledger(tmp_path))
    assert section.grid.rows[0][-1] == "not run"
    assert section.runs.rows[0][4] == "3 of 350 epochs, interrupted"
    assert section.runs.rows[0][6] == "not recorded"
    RunFolder(tmp_path / "runs/cut").append_machine({"device": "some card", "engine": "graph"})
    row = TABLE.section(Ledger(tmp_path)).runs.rows[0]
    assert (row[4], row[6]) == ("3 of 350 epochs, interrupted, graph", "some card")


def test_interrupted_fit(tmp_path):
    folder = RunFolder(tmp_path / "runs/kodak-seed0")
    folder.write_recipe(load_recipe("kodak"))
    folder.append_machine({"device": "a card"})
    for target, steps in (("kodim01", (0, 20000)), ("kodim02", (0, 500))):
        for step in steps:
            folder.append_metrics({"target": target, "step": step, "mse": 0.1, "psnr": 10.0})
    section = ITEMS["table5"].section(Ledger(tmp_path))
    assert section.runs.rows[0][4] == "500 of 20000 steps of 2 targets, interrupted"
    assert "a card" in section.runs.rows[0]


def test_run_with_other_settings_is_unrelated(tmp_path):
    write(tmp_path, "other", accuracy=0.9, optim=replace(load_recipe(RECIPE).optim, kernel_norm=1e-5))
    assert not Ledger(tmp_path).of(RECIPE)
    assert Ledger(tmp_path).finished(f"{RECIPE}/kernel-norm")
    write(tmp_path, "data", accuracy=0.9, data=replace(load_recipe(RECIPE).data, augment=False), epochs=0)
    assert not Ledger(tmp_path).of(RECIPE)


def test_shorter_run_is_listed_under_the_closest_recipe(tmp_path):
    write(tmp_path, "short", accuracy=0.7, epochs=2)
    RunFolder(tmp_path / "runs/short").write_recipe(replace(load_recipe(RECIPE), epochs=2))
    table = replace(TABLE, rows=(*TABLE.rows, Row("B", "1M", ("90.6",), f"{RECIPE}/kernel-norm")))
    section = table.section(Ledger(tmp_path))
    assert [row[-1] for row in section.grid.rows] == ["not run; 70.00 with 2 epochs", "not run"]
    assert len(section.runs.rows) == 1


def test_data_folder_makes_no_difference(tmp_path):
    write(tmp_path, "a", accuracy=0.92, data=replace(load_recipe(RECIPE).data, root="/somewhere"))
    assert Ledger(tmp_path).finished(RECIPE)


def test_finds_networks_in_runs_stages_and_published_weights(tmp_path):
    recipe, published = "cross-resolution-cifar10", "flexnet3-digits"
    assert Ledger(tmp_path).network(recipe, "no-such-network") is None
    assert Ledger(tmp_path).network(recipe, published) == pretrained_folder(published)
    folder = RunFolder(tmp_path / "runs/cross")
    folder.write_recipe(load_recipe(recipe))
    folder.write_results({})
    (folder.path / "source/weights").mkdir(parents=True)
    (folder.path / "source/weights/config.json").write_text("{}")
    assert Ledger(tmp_path).network(recipe, published) == folder.path / "source/weights"
    assert Ledger(tmp_path, own_weights=False).network(recipe, published) == pretrained_folder(published)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(92.151, 2, "92.15"), (-3.84, 1, "−3.8"), (4.98e-5, -2, "5.0e-5"), (2e-12, -2, "2.0e-12")],
)
def test_shows_numbers_as_the_paper_does(value, digits, text):
    assert show(value, digits) == text


@pytest.mark.parametrize(
    ("text", "value"), [("92.2 ± 0.1", 92.2), ("92.9*†", 92.9), ("−31.6 ± 1.3", -31.6), ("< 5e-9", 5e-9), ("–", None)]
)
def test_reads_published_numbers(text, value):
    assert published_value(text) == value


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if isinstance(item, Table)])
def test_rows_have_known_recipes_and_one_number_per_column(name):
    item, known = ITEMS[name], list_recipes()
    assert isinstance(item, Table)
    for recipe in item.recipes:
        assert recipe in known
    for row in item.rows:
        assert len(row.published) == len(item.columns), row.model


def test_all_tables_and_figures_exist():
    names = [f"table{n}" for n in range(1, 11)] + [f"figure{n}" for n in range(3, 10)]
    assert [*names, "crop-timing", "low-resolution-timing"] == [item.name for item in items("all")]
    with pytest.raises(ValueError, match="did you mean 'table3'"):
        items("tabel3")


def test_recipes_that_name_a_table_are_used_by_one():
    used = {recipe for item in items() if isinstance(item, Table) for recipe in item.recipes}
    told = {name for name, about in list_recipes().items() if re.search(r"Tables? \d|Figure \d", about)}
    told -= {"digits/penalty", "resnet44-cifar10/resnet32"}  # extra recipes that are not in a table
    assert {name for name in told - used if not name.endswith("/authors")} == set()


def test_reads_results_as_written(tmp_path):
    write(tmp_path, "a", accuracy=0.5)
    (log,) = Ledger(tmp_path).logs
    assert ACCURACY.of(log) == 50.0
    assert log.results == json.loads((tmp_path / "runs/a/results.json").read_text())


def test_numbers_before_fine_tuning_count_without_it(tmp_path):
    recipe = "cross-resolution-cifar10/f-magnet-16-28"
    columns = (Column("change", CHANGE), Column("fine-tuned", FINE_TUNED))
    table = replace(TABLE, columns=columns, rows=(Row("A", "1M", ("−3.0", "88.87"), recipe),))
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.write_recipe(replace(load_recipe(recipe), finetune_epochs=0))
    folder.write_results({"source": {"test_accuracy": 0.86, "selected": "last"}, "change_out_of_the_box": -0.02})
    ledger = Ledger(tmp_path)
    assert table.section(ledger).grid.rows[0][2:] == ("−3.0", "−2.00 (n = 1; +1.00)", "88.87", "not run")
    assert [job.seed for job in table.jobs(ledger)] == [0, 1, 2]  # the fine-tuned run is still missing
    assert not ledger.finished(recipe)
    assert len(ledger.finished(recipe, CHANGE)) == 1
    assert not ledger.finished(recipe, FINE_TUNED)
