"""A network of the page: a model and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .._records import Record
from ._accuracy import accuracy
from ._channels import BUDGET
from ._history import history
from ._model import model_numbers
from ._opening import opening


@dataclass(frozen=True)
class Network:
    """A model, and what is known about it. See `write_page` for the arguments."""

    model: nn.Module
    title: str | None = None
    records: Sequence[Record] = ()
    results: Mapping[str, Any] | None = None
    input_shape: Sequence[int] | None = None

    def numbers(self, *, budget: int = BUDGET) -> dict[str, Any]:
        """Everything that the page shows about this network, ready for JSON.

        The numbers of the model (see `model_numbers`), and {"title", "accuracy", "opening", "history"}.
        """
        numbers = model_numbers(self.model, input_shape=self.input_shape, budget=budget)
        past = history(self.records)
        return {
            "title": self.title or type(self.model).__name__,
            **numbers,
            "accuracy": accuracy(self.records, self.results),
            "opening": opening(numbers["layers"], past),
            "history": past,
        }
