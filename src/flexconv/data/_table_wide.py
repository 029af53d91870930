"""Wide tables: one row per sample, and one column per value."""

from __future__ import annotations

import numpy as np

from ..errors import ArgumentError
from ._arrange import reshape_rows
from ._files import DamagedDataError
from ._table_columns import Options, Roles
from ._table_file import Content, TableFile, Text
from ._table_samples import Part


def read_wide(file: TableFile, roles: Roles, content: Content, labels: Text | None, options: Options) -> Part:
    """Reshape every row to a sample. A row may also consist of lists, one per channel."""
    if roles.time is not None:
        raise DamagedDataError(
            f"{file.path}: every id has only one row, so the table has one row per sample: leave out data.time"
        )
    numbers, lengths = content.numbers, content.lengths
    if numbers.ndim == 3 and (lengths is not None or numbers.shape[1] > 1):  # lists
        if options.shape is not None or options.layout is not None:
            raise ArgumentError(f"{file.path}: data.shape and data.layout need one list of equal length per sample")
        inputs = numbers
    else:
        inputs = reshape_rows(numbers.reshape(len(numbers), -1), options.shape, options.layout, str(file.path))
    splits = None if roles.split is None else content.texts[roles.split]
    return Part(file, roles, inputs, lengths, np.arange(len(inputs)), labels, splits, None, "")
