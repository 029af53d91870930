"""The result for one sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Prediction:
    """The probabilities of all classes for one sample.

    Attributes:
        file: the file of the sample.
        probabilities: [classes], on the CPU. For a recording in several chunks, the mean over its chunks.
        classes: names of the classes.
        row: the number of the sample in a file of several samples, counted from 1, or its id in a long table.
        start: where a recording or a chunk of it begins, in seconds; None for other files.
        stop: where it ends, in seconds.
        chunks: the predictions for the chunks of a recording that is longer than the training samples.

    """

    file: str
    probabilities: torch.Tensor
    classes: tuple[str, ...]
    row: str | None = None
    start: float | None = None
    stop: float | None = None
    chunks: tuple[Prediction, ...] = ()

    @property
    def label(self) -> str:
        """The name of the most probable class."""
        return self.top(1)[0][0]

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.top(1)[0][1]

    def top(self, count: int) -> list[tuple[str, float]]:
        """The `count` most probable classes with their probabilities, the most probable first."""
        values, indices = self.probabilities.topk(min(count, len(self.classes)))
        return [(self.classes[index], value) for index, value in zip(indices.tolist(), values.tolist(), strict=True)]

    def __repr__(self) -> str:
        where = self.file if self.row is None else f"{self.file}, row {self.row}"
        return f"Prediction({where}: {self.label}, {100 * self.probability:.1f} %)"
