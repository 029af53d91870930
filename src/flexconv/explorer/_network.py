"""A network of the page: a model and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._multiply_adds import usual_input
from .._records import Record
from ._accuracy import accuracy
from ._channels import BUDGET
from ._field import receptive_field
from ._history import history
from ._model import model_numbers
from ._trial import resized, trial


@dataclass(frozen=True)
class Network:
    """A model, and what is known about it. See `write_page` for the arguments."""

    model: nn.Module
    title: str | None = None
    records: Sequence[Record] = ()
    results: Mapping[str, Any] | None = None
    input_shape: Sequence[int] | None = None
    samples: torch.Tensor | None = None
    labels: Sequence[int] | None = None

    def numbers(self, *, budget: int = BUDGET) -> dict[str, Any]:
        """Everything that the page shows about this network, ready for JSON.

        The numbers of the model (see `model_numbers`), and {"title", "accuracy", "history",
        "field": see `receptive_field`, "trial": see `trial`}.
        """
        return {
            "title": self.title or type(self.model).__name__,
            **model_numbers(self.model, input_shape=self.input_shape, budget=budget),
            "accuracy": accuracy(self.records, self.results),
            "history": history(self.records),
            "field": self._field(),
            "trial": trial(self.model, self._samples(), self.labels),
        }

    def _field(self) -> dict[str, Any] | None:
        shape = self.input_shape or usual_input(self.model)
        samples = self._samples()
        if samples is None:
            return receptive_field(self.model, shape)
        inputs = getattr(self.model, "inputs", None)
        samples = samples if inputs is None else inputs(samples)
        return receptive_field(self.model, samples.shape, samples)

    def _samples(self) -> torch.Tensor | None:
        return None if self.samples is None else resized(self.model, self.samples)
