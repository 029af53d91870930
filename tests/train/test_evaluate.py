"""Evaluation of every class, and calibration."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flexconv.data import DeviceBatches, Split
from flexconv.train import evaluate, evaluate_classes, evaluate_exactly


class Lookup(nn.Module):
    """Logits that are given as inputs [batch, classes, 1]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, 0]


def batches(probabilities, labels, size=2):
    logits = torch.tensor(probabilities).log()[:, :, None]
    return DeviceBatches(Split(logits, torch.tensor(labels)), size)


def test_counts_confusions_of_classes():
    found = evaluate_classes(
        Lookup(), batches([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]], [0, 0, 1, 1])
    )
    assert found.confusion.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found.counts.tolist() == [2, 2, 0]
    assert found.accuracies[:2].tolist() == found.precisions[:2].tolist() == [0.5, 0.5]
    assert found.accuracies[2].isnan()
    assert found.precisions[2].isnan()
    assert found.score.accuracy == 0.5


def test_calibration_error_is_the_distance_of_confidence_and_accuracy():
    """Ten samples with a confidence of 0.8 of which six are right, and ten with 0.55 of which six are right."""
    probabilities = [[0.8, 0.2]] * 10 + [[0.55, 0.45]] * 10
    found = evaluate_classes(Lookup(), batches(probabilities, ([0] * 6 + [1] * 4) * 2, size=7))
    assert found.calibration_error == pytest.approx((0.2 + 0.05) / 2)
    assert found.overconfidence == pytest.approx((0.2 - 0.05) / 2)
    filled = [each for each in found.bins if each.count]
    assert [each.count for each in filled] == [10, 10]
    assert [each.confidence for each in filled] == pytest.approx([0.55, 0.8])
    assert [each.accuracy for each in filled] == pytest.approx([0.6, 0.6])
    assert all(each.lowest < each.confidence <= each.highest for each in filled)
    assert len(found.bins) == 15


def test_perfect_and_certain_predictions_are_calibrated():
    found = evaluate_classes(Lookup(), batches([[1.0, 0.0], [0.0, 1.0]], [0, 1]))
    assert (found.calibration_error, found.overconfidence, found.bins[-1].count) == (0.0, 0.0, 2)


def test_scores_agree_and_the_mode_is_restored():
    torch.manual_seed(0)
    split = Split(torch.randn(23, 4, 1), torch.randint(0, 7, (23,)))
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 7)).train()
    found = evaluate_classes(model, DeviceBatches(split, 5))
    assert found.score == evaluate(model, DeviceBatches(split, 5)) == evaluate_exactly(model, DeviceBatches(split, 5))
    assert found.score.top5_accuracy is not None
    assert model.training
    assert model[1].training


def test_mode_is_restored_after_an_error():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2)).train()
    with pytest.raises(RuntimeError):
        evaluate(model, batches([[0.5, 0.5]], [0]))
    assert model.training
