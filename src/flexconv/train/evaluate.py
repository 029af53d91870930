"""Loss and accuracy of a model on a part of a data set, also for every class, and how reliable its confidence is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ..data import Batch, DeviceBatches

BINS = 15  # of confidence, as in Guo et al. 2017


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy and accuracy over `count` samples.

    `top5_accuracy` is the fraction of samples whose class is among the five largest logits. It is None if the network
    has no more than five classes.
    """

    loss: float
    accuracy: float
    count: int
    top5_accuracy: float | None = None


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return logits [batch, classes] in at least float32. Padded series are passed with their lengths."""
    inputs, _, lengths = batch
    logits = model(inputs) if lengths is None else model(inputs, lengths)
    return logits.float() if logits.itemsize < 4 else logits


@torch.no_grad()
def evaluate(model: nn.Module, batches: DeviceBatches) -> Score:
    """Score a model in eval mode, then restore its mode. The result covers the samples of all processes."""
    totals = _Totals(batches.device)
    for logits, labels in _outputs(model, batches):
        totals.add(logits, labels)
    _sum_over_processes(batches, totals.sums)
    return totals.score()


def evaluate_exactly(model: nn.Module, batches: DeviceBatches) -> Score:
    """Score a model in the precision of its parameters, without autocast and TF32.

    The result is then the same on all devices up to float32 rounding. Accuracies in bf16 differ from it by up to five
    of ten thousand samples (`first_test` in results/runs).
    """
    with _exact(batches.device):
        return evaluate(model, batches)


# --- classes and calibration ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfidenceBin:
    """The samples whose most probable class has a probability in (lowest, highest].

    `confidence` is their mean probability and `accuracy` the fraction that is right; both are 0 if there are none.
    """

    lowest: float
    highest: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class ClassReport:
    """How a model does on every class.

    Attributes:
        score: loss and accuracy over all samples.
        confusion: [classes, classes] int64. Entry [i, j] is the number of samples of class i that are taken for j.
        bins: the samples by the confidence of the model, in 15 bins of equal width.

    """

    score: Score
    confusion: torch.Tensor
    bins: tuple[ConfidenceBin, ...]

    @property
    def counts(self) -> torch.Tensor:
        """The number of samples of every class, [classes]."""
        return self.confusion.sum(1)

    @property
    def accuracies(self) -> torch.Tensor:
        """The fraction of the samples of each class that is recognized (recall), [classes]; NaN without samples."""
        return self.confusion.diag() / self.counts

    @property
    def precisions(self) -> torch.Tensor:
        """The fraction of the predictions of each class that is right, [classes]; NaN if it is never predicted."""
        return self.confusion.diag() / self.confusion.sum(0)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error: the mean of |confidence − accuracy| over the bins, weighted by their counts.

        Confidence is the probability of the most probable class. 0 means that of all predictions with a confidence of
        80 %, 80 % are right.
        """
        total = sum(each.count for each in self.bins)
        return sum(each.count * abs(each.confidence - each.accuracy) for each in self.bins) / total

    @property
    def overconfidence(self) -> float:
        """The mean confidence minus the accuracy. Negative if the model is too cautious."""
        total = sum(each.count for each in self.bins)
        return sum(each.count * (each.confidence - each.accuracy) for each in self.bins) / total


@torch.no_grad()
def evaluate_classes(model: nn.Module, batches: DeviceBatches) -> ClassReport:
    """Score a model on every class, in the precision of `evaluate_exactly`."""
    totals = _Totals(batches.device)
    confusion = torch.zeros(0, device=batches.device)
    bins = torch.zeros(BINS, 3, dtype=torch.float64, device=batches.device)  # count, Σ confidence, Σ right
    with _exact(batches.device):
        for logits, labels in _outputs(model, batches):
            totals.add(logits, labels)
            classes = logits.shape[1]
            if not confusion.numel():
                confusion = torch.zeros(classes * classes, dtype=torch.float64, device=batches.device)
            confidence, predicted = logits.double().softmax(1).max(1)
            confusion += torch.bincount(labels * classes + predicted, minlength=classes * classes)
            number = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
            rows = torch.stack([torch.ones_like(confidence), confidence, (predicted == labels).double()], dim=1)
            bins.index_add_(0, number, rows)
    _sum_over_processes(batches, totals.sums, confusion, bins)
    side = round(confusion.numel() ** 0.5)
    return ClassReport(totals.score(), confusion.long().view(side, side).cpu(), _make_bins(bins.tolist()))


def _make_bins(rows: list[list[float]]) -> tuple[ConfidenceBin, ...]:
    return tuple(
        ConfidenceBin(number / BINS, (number + 1) / BINS, int(count), confidence / max(count, 1), right / max(count, 1))
        for number, (count, confidence, right) in enumerate(rows)
    )


# --- passes over the data ---------------------------------------------------------------------------------------------


class _Totals:
    """Sums over samples: loss, right, count, and right among the five largest logits."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.many_classes = False

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self.sums[0] += F.cross_entropy(logits, labels, reduction="sum")
        self.sums[1] += (logits.argmax(1) == labels).sum()
        self.sums[2] += len(labels)
        self.many_classes = logits.shape[1] > 5
        if self.many_classes:
            self.sums[3] += (logits.topk(5, dim=1).indices == labels[:, None]).sum()

    def score(self) -> Score:
        loss, right, count, among_5 = self.sums.tolist()
        return Score(loss / count, right / count, int(count), among_5 / count if self.many_classes else None)


def _outputs(model: nn.Module, batches: DeviceBatches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and labels of all batches that are not empty. The model is in eval mode meanwhile."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for batch in batches:
            if len(batch[1]):
                yield forward(model, batch), batch[1]
    finally:
        for module, mode in training:
            module.training = mode


def _sum_over_processes(batches: DeviceBatches, *tensors: torch.Tensor) -> None:
    if batches.world_size > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """Compute in the precision of the parameters, without autocast and TF32."""
    backends = torch.backends.cudnn.conv, torch.backends.cuda.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
