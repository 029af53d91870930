"""The plots of a run: what they show, and that they never fail a run."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import pytest
from torch import nn

from flexconv import FlexConv2d
from flexconv.train import RunFolder
from flexconv.train.plots import draw_plots, size_history, with_test

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")

RECORDS = [
    {
        "epoch": epoch,
        "step": 10 * epoch,
        "train_loss": 1 / epoch,
        "train_accuracy": 0.5,
        "validation_loss": 2 / epoch,
        "validation_accuracy": 0.4 + 0.1 * (epoch == 2),
        "sizes": {"0": [3, 2 + epoch]},
    }
    for epoch in (1, 2, 3)
]


def run_folder(path, results):
    folder = RunFolder(path)
    for record in RECORDS:
        folder.append_metrics(record)
    folder.write_results(results)
    return folder


def model():
    return nn.Sequential(FlexConv2d(1, 1, 5))


def test_draws_four_plots(tmp_path):
    folder = run_folder(tmp_path, {"selected": "last", "test_loss": 0.5, "test_accuracy": 0.6})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_plots(folder, model())
    assert {path.name for path in folder.plots.iterdir()} == {"curves.png", "sizes.png", "masks.png", "kernel.png"}


def test_test_is_shown_at_the_epoch_of_the_final_weights():
    test = {"test_loss": 0.5, "test_accuracy": 0.6}
    assert with_test(RECORDS, {"selected": "last", **test})[-1] == {"epoch": 3, **test}
    selected = {"selected": "validation", "best": {"epoch": 2, "accuracy": 0.5, "loss": 1.0}}
    assert with_test(RECORDS, {**selected, **test})[-1] == {"epoch": 2, **test}
    assert with_test(RECORDS, {"selected": "last"}) == RECORDS


def test_validation_on_test_data_is_called_test():
    results = {"selected": "test", "best": {"epoch": 2}, "test_loss": 1.0, "test_accuracy": 0.5}
    records = with_test(RECORDS, results)
    assert [record["test_accuracy"] for record in records] == [0.4, 0.5, 0.4]
    assert not [key for record in records for key in record if key.startswith("validation")]


def test_size_history_is_by_layer_and_epoch():
    assert size_history(RECORDS) == {"0": [(1, (3, 3)), (2, (3, 4)), (3, (3, 5))]}


def test_an_error_in_drawing_is_a_warning_and_the_other_plots_are_drawn(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no font")

    monkeypatch.setattr("flexconv.viz.plot_masks", fail)
    folder = run_folder(tmp_path, {"selected": "last"})
    with pytest.warns(UserWarning, match=r"masks\.png.*RuntimeError: no font"):
        draw_plots(folder, model())
    assert {path.name for path in folder.plots.iterdir()} == {"curves.png", "sizes.png", "kernel.png"}


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    folder = run_folder(tmp_path, {"selected": "last"})
    folder.plots.write_text("a file in place of the folder")
    with pytest.warns(UserWarning, match="FileExistsError"):
        draw_plots(folder, model())


def test_damaged_results_are_a_warning(tmp_path):
    folder = run_folder(tmp_path, {"selected": "last"})
    folder.results.write_text("{")
    with pytest.warns(UserWarning, match="could not draw plots: RunError"):
        draw_plots(folder, model())
