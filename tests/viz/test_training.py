"""Plots of kernel sizes and metrics during training."""

from __future__ import annotations

import math

import pytest

from flexconv import FlexConv2d, refresh_extents
from flexconv.viz import plot_curves, plot_sizes

from .conftest import marked, title_of


def test_sizes_are_step_curves_per_layer_and_axis(draw):
    history = {"a": [(0, (3, 5)), (10, (5, 7)), (20, (5, 9))], "b": [(0, (3, 3)), (20, (11, 13))]}
    figure = draw(plot_sizes(history))
    assert [panel.get_title() for panel in figure.axes] == ["height", "width"]
    for d, panel in enumerate(figure.axes):
        for line, points in zip(panel.lines, history.values(), strict=True):
            assert list(line.get_xdata()) == [step for step, _ in points]
            assert list(line.get_ydata()) == [size[d] for _, size in points]
            assert line.get_drawstyle() == "steps-post"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_sizes_leave_room_above_the_largest_kernel(draw):
    (panel,) = draw(plot_sizes({"a": [(1, 76), (2, 82)], "b": [(1, 77), (2, 80)]})).axes
    assert panel.get_ylim()[1] > 85  # a curve on the frame looks cut off


def test_sizes_accept_results_of_refresh_extents_and_ints(draw):
    model = FlexConv2d(1, 1, 9)
    history = {name or "layer": [(0, size)] for name, size in refresh_extents(model).items()}
    draw(plot_sizes(history))
    (panel,) = draw(plot_sizes({"a": [(0, 3), (1, 5)]})).axes
    assert list(panel.lines[0].get_ydata()) == [3, 5]


def test_sizes_accept_layers_of_different_dimensions_and_empty_lists(draw):
    figure = draw(plot_sizes({"a": [(0, 3)], "b": [(0, (5, 7, 9))], "c": []}))
    assert len(figure.axes) == 3
    assert [len(panel.lines[0].get_xdata()) for panel in figure.axes] == [1, 0, 0]


def test_sizes_select_layers_of_deep_models_evenly():
    figure = plot_sizes({f"layer{i}": [(0, 3), (1, 3 + i)] for i in range(50)}, most=5)
    assert "5 of 50 layers" in title_of(figure)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["layer0", "layer12", "layer24", "layer37", "layer49"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 5
    assert len(plot_sizes({"a": [], "b": [(0, (3, 5))]}, most=1).axes) == 2


@pytest.mark.parametrize(
    ("history", "error", "message"),
    [
        ({}, ValueError, "history is empty"),
        ({"a": []}, ValueError, "history is empty"),
        ({"a": [3, 5]}, TypeError, r"layer 'a' must be a list.* \[3, 5\]"),
        ({"a": [(0, (1, 2, 3, 4))]}, ValueError, r"layer 'a' must have 1 to 3 axes.* \(1, 2, 3, 4\)"),
    ],
)
def test_sizes_reject_an_invalid_history(history, error, message):
    with pytest.raises(error, match=message):
        plot_sizes(history)


RECORDS = [
    {"epoch": 0, "train_loss": 2.0, "validation_loss": 2.1, "validation_accuracy": 0.3, "seconds": 4.0},
    {"epoch": 1, "train_loss": 1.0, "seconds": 4.0},
    {"epoch": 2, "train_loss": 0.5, "validation_loss": 1.2, "validation_accuracy": 0.6, "seconds": 4.0},
    {"epoch": 3, "train_loss": 0.4, "validation_loss": 1.4, "validation_accuracy": 0.5, "seconds": 4.0},
]


def legend(panel):
    return [text.get_text() for text in panel.get_legend().get_texts()]


def curve(panel, label):
    (line,) = [line for line in panel.lines if line.get_label() == label]
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_curves_have_one_panel_per_metric(draw):
    loss, accuracy = draw(plot_curves(RECORDS)).axes
    assert (loss.get_title(), accuracy.get_title()) == ("loss", "accuracy")
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "accuracy, %")
    (top5,) = plot_curves([{"epoch": 1, "validation_top5_accuracy": 0.9}]).axes
    assert top5.get_ylabel() == "top-5 accuracy, %"
    assert curve(loss, "train") == [(0, 2.0), (1, 1.0), (2, 0.5), (3, 0.4)]
    assert curve(loss, "validation") == [(0, 2.1), (2, 1.2), (3, 1.4)]
    assert curve(accuracy, "validation") == [(0, 0.3), (2, 0.6), (3, 0.5)]
    assert loss.get_xlabel() == "epoch"


def test_curves_mark_the_best_validation_value():
    loss, accuracy = plot_curves(RECORDS).axes
    (lowest,), (highest,) = marked(loss, "best"), marked(accuracy, "best")
    assert (lowest.get_xdata()[0], lowest.get_ydata()[0]) == (2, 1.2)
    assert (highest.get_xdata()[0], highest.get_ydata()[0]) == (2, 0.6)
    assert "best validation epoch 2: 60.00 %" in legend(accuracy)
    assert legend(loss) == ["train: last 0.4", "validation: last 1.4", "best validation epoch 2: 1.2"]


def test_curves_mark_the_lowest_loss_among_equal_accuracies():
    """A run selects the same epoch, at which its test is drawn."""
    values = [(1, 0.5, 2.0), (2, 1.0, 0.3), (3, 1.0, math.nan), (4, 1.0, 0.1), (5, 1.0, 0.2)]
    records = [{"epoch": i, "validation_accuracy": a, "validation_loss": loss} for i, a, loss in values]
    loss, accuracy = plot_curves(records).axes
    assert [marked(panel, "best")[0].get_xdata()[0] for panel in (loss, accuracy)] == [4, 4]
    assert "best validation epoch 4: 100.00 %" in legend(accuracy)


def test_best_test_epoch_is_called_so_and_a_single_test_is_not_the_best():
    several = [{"epoch": i, "test_accuracy": value} for i, value in enumerate((0.5, 0.9, 0.8))]
    (panel,) = plot_curves(several).axes
    assert legend(panel) == ["test: last 80.00 %", "best test epoch 1: 90.00 %"]
    (panel,) = plot_curves([{"epoch": 0, "train_accuracy": 0.4}, {"epoch": 3, "test_accuracy": 0.7}]).axes
    assert legend(panel)[-1] == "test: 70.00 %"
    assert not marked(panel, "best")
    (mark,) = [line for line in panel.lines if line.get_label() == "test"]
    assert (mark.get_marker(), mark.get_linestyle()) == ("D", "None")


@pytest.mark.parametrize("epochs", [1, 2, 5, 10, 15, 23, 100, 350])
def test_ticks_are_whole_epochs(epochs):
    records = [{"epoch": i, "train_loss": 1 / i} for i in range(1, epochs + 1)]
    figures = plot_curves(records), plot_sizes({"a": [(i, 3 + i % 2) for i in range(epochs)]}, count="epoch")
    for figure in figures:
        ticks = figure.axes[0].get_xticks()
        assert all(tick == round(tick) for tick in ticks)
        assert 1 <= len(ticks) <= 10
        assert figure.axes[0].get_xlabel() == "epoch"


def test_curves_have_legends_outside_the_panels(draw):
    figure = draw(plot_curves(RECORDS))
    for panel in figure.axes:
        assert panel.get_legend().get_window_extent().y1 <= panel.get_window_extent().y0


def test_curves_of_chosen_metrics(draw):
    (panel,) = draw(plot_curves(RECORDS, metrics=["seconds"])).axes
    assert curve(panel, "seconds") == [(epoch, 4.0) for epoch in range(4)]


def test_curves_over_steps_with_a_logarithmic_loss(draw):
    records = [{"step": 100 * i, "train_loss": math.exp(-i)} for i in range(20)]
    (panel,) = draw(plot_curves(records)).axes
    assert panel.get_xlabel() == "step"
    assert panel.get_yscale() == "log"
    assert plot_curves(RECORDS).axes[0].get_yscale() == "linear"


def test_curves_accept_nan_and_ignore_text(draw):
    records = [{"epoch": i, "train_loss": math.nan if i == 1 else 1.0, "train_note": "x"} for i in range(3)]
    records += [{"epoch": 3, "validation_loss": math.nan}]
    (panel,) = draw(plot_curves(records)).axes
    assert len(curve(panel, "train")) == 3


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        ([], {}, "there are no records"),
        ([{"train_loss": 1.0}], {}, r"'epoch' or 'step'.* \['train_loss'\]"),
        ([{"epoch": 1, "lr": 1.0}], {}, r"no record has a metric.* \['epoch', 'lr'\]"),
        ([{"epoch": 1, "train_loss": 1.0}], {"metrics": ["auc"]}, "no record has the metric 'auc'.* 'loss'"),
    ],
)
def test_curves_reject_invalid_records(records, options, message):
    with pytest.raises(ValueError, match=message):
        plot_curves(records, **options)
