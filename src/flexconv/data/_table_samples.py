"""The samples of a table: `Table` as users get it, and `Part`, which also knows where in the file they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from ._table_columns import Roles
from ._table_file import TableFile, Text


@dataclass(frozen=True, eq=False)
class Table:
    """The samples of a table.

    Attributes:
        inputs: series [N, C, L] or images [N, C, H, W], float32, or uint8 if an image has integers from 0 to 255 only.
        labels: the label of every sample; None if the table has no labels.
        lengths: [N] int64 if series of different lengths are padded, otherwise None.
        names: the id of every sample, or its row, counted from 1.
        note: a remark on the data; empty if there is none.

    """

    inputs: torch.Tensor
    labels: tuple[str, ...] | None
    lengths: torch.Tensor | None
    names: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, eq=False)
class Part:
    """Samples with the rows at which they start, for messages about their labels."""

    file: TableFile
    roles: Roles
    inputs: np.ndarray  # [N, C, L] or [N, C, H, W] float32
    lengths: np.ndarray | None
    first_rows: np.ndarray
    labels: Text | None
    splits: Text | None
    ids: Text | None
    note: str

    def __len__(self) -> int:
        return len(self.inputs)

    def table(self) -> Table:
        inputs = as_bytes({"": self.inputs})[""]
        names = self.first_rows + 1 if self.ids is None else [self.ids[row] for row in range(len(self))]
        return Table(
            torch.from_numpy(inputs),
            None if self.labels is None else tuple(self.labels[row] for row in range(len(self))),
            None if self.lengths is None else torch.from_numpy(self.lengths),
            tuple(map(str, names)),
            self.note,
        )

    def rows(self, index: np.ndarray) -> Part:
        """The samples with these numbers."""

        def take(text: Text | None) -> Text | None:
            return None if text is None else Text(text.codes[index], text.values)

        return replace(
            self,
            inputs=self.inputs[index],
            lengths=None if self.lengths is None else self.lengths[index],
            first_rows=self.first_rows[index],
            labels=take(self.labels),
            splits=take(self.splits),
            ids=take(self.ids),
        )


def as_bytes(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Images with integers from 0 to 255 as uint8, so that they are treated like image files."""
    arrays = list(inputs.values())
    images = all(each.ndim == 4 and each.size for each in arrays)
    if not images or max(each.max() for each in arrays) <= 1:
        return dict(inputs)
    if all(each.min() >= 0 and each.max() <= 255 and np.array_equal(each, np.rint(each)) for each in arrays):
        return {name: each.astype(np.uint8) for name, each in inputs.items()}
    return dict(inputs)
