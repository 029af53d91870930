"""Loss and accuracy of a model on a part of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ..data import Batch, DeviceBatches


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
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    many_classes = False
    totals = torch.zeros(4, dtype=torch.float64, device=batches.device)
    for batch in batches:
        labels = batch[1]
        if not len(labels):
            continue
        logits = forward(model, batch)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        right = (logits.argmax(1) == labels).sum()
        totals[0] += loss
        totals[1] += right
        totals[2] += len(labels)
        many_classes = logits.shape[1] > 5
        if many_classes:
            totals[3] += (logits.topk(5, dim=1).indices == labels[:, None]).sum()
    for module, mode in training:
        module.training = mode
    if batches.world_size > 1:
        torch.distributed.all_reduce(totals)
    loss, right, count, among_5 = totals.tolist()
    return Score(loss / count, right / count, int(count), among_5 / count if many_classes else None)


def evaluate_exactly(model: nn.Module, batches: DeviceBatches) -> Score:
    """Score a model in the precision of its parameters, without autocast and TF32.

    The result is then the same on all devices up to float32 rounding. Accuracies in bf16 differ from it by up to five
    of ten thousand samples (`first_test` in results/runs).
    """
    backends = torch.backends.cudnn.conv, torch.backends.cuda.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        with torch.autocast(batches.device.type, enabled=False):
            return evaluate(model, batches)
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
