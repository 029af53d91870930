"""Read the samples of one file, which may be a wide or a long table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ._table_columns import Column, Options, find_roles
from ._table_file import TableFile, open_table
from ._table_labels import check_filled, clean_labels
from ._table_long import read_long
from ._table_samples import Part, Table
from ._table_wide import read_wide


def read_table(
    path: str | os.PathLike[str],
    *,
    label: Column | None = None,
    id: Column | None = None,  # noqa: A002
    time: Column | None = None,
    columns: Sequence[Column] | None = None,
    ignore: Sequence[Column] = (),
    shape: Sequence[int] | int | None = None,
    layout: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
) -> Table:
    """Read the samples of a .csv, .tsv, .txt or .parquet file. Labels are optional.

    Arguments:
        path: the file.
        label: the column of the labels, by name or number. By default, a column that is called label, labels, class,
            target or category, or the only column with text.
        id: the column that identifies the series in a long table. Without it, every row is a sample.
        time: the column that orders the rows of a series; by default, they are in order.
        columns: the columns of the values; by default, all other columns.
        ignore: columns that are not read.
        shape: the shape of a sample in a wide table: [L], [H, W] or [C, H, W].
        layout: the meaning of the axes of `shape`: L, CL, LC, HW, CHW or HWC.
        delimiter: the character between two values of a text file; by default, it is found.
        header: whether the first line of a text file names the columns; by default, this is found.

    """
    options = Options(label, id, time, None, columns, ignore, shape, layout)
    file = open_table(Path(path), delimiter=delimiter, header=header)
    return read_part(file, options, labelled=False).table()


def read_part(file: TableFile, options: Options, *, labelled: bool) -> Part:
    """Read a file. If it is `labelled`, it must have a column of labels."""
    roles = find_roles(file, options, labelled=labelled)
    content = file.read(roles.values, roles.texts)
    labels = None if roles.label is None else clean_labels(file, content.texts[roles.label], roles.label)
    if roles.id is None:
        return read_wide(file, roles, content, labels, options)
    ids = content.texts[roles.id]
    check_filled(file, ids, roles.id)
    if len(ids.values) == len(ids.codes):  # one row per id: a wide table with names
        return replace(read_wide(file, roles, content, labels, options), ids=ids)
    return read_long(file, roles, content, labels, options)
