"""The plot of a confusion matrix."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_rgb

from flexconv.viz import plot_confusion, use_theme


def test_shows_counts_and_names():
    figure = plot_confusion(torch.tensor([[5, 1], [0, 1200]]), ("ant", "bee"), title="animals")
    panel = figure.axes[0]
    assert sorted(text.get_text() for text in panel.texts) == ["1", "1,200", "5"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["ant", "bee"]
    shares = panel.images[0].get_array()
    assert shares is not None
    assert shares[0].tolist() == pytest.approx([5 / 6, 1 / 6])


def test_many_classes_have_no_numbers():
    figure = plot_confusion(torch.eye(80, dtype=torch.int64), [f"class {number}" for number in range(80)])
    assert not figure.axes[0].texts


def test_class_without_samples_is_empty():
    figure = plot_confusion(torch.tensor([[3, 0], [0, 0]]), ("ant", "bee"))
    assert figure.axes[0].images[0].get_array()[1].tolist() == [0.0, 0.0]  # type: ignore[index]


def test_rejects_a_matrix_of_another_size():
    with pytest.raises(ValueError, match=r"2 classes.*\(3, 3\)"):
        plot_confusion(torch.eye(3), ("ant", "bee"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_are_legible_in_both_themes(theme):
    with use_theme(theme):
        panel = plot_confusion(torch.tensor([[100, 1], [40, 60]]), ("ant", "bee")).axes[0]
    colours = panel.images[0].cmap(panel.images[0].get_array())
    for text in panel.texts:
        column, row = text.get_position()
        assert abs(sum(to_rgb(text.get_color())) - sum(colours[int(row), int(column)][:3])) > 1
