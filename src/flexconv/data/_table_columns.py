"""Which column of a table is what: labels, ids, times, splits and values, as options name them or as found."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .._arguments import as_int
from ..errors import ArgumentError, ArgumentTypeError
from ._arrange import check_layout, check_shape
from ._files import DamagedDataError
from ._table_file import TableFile
from ._user_data import listed

Column = str | int

LABEL_NAMES = ("label", "labels", "class", "target", "category")
#: Columns that are no values, although they may be numbers: name → the option that they need
OTHER_NAMES = {
    **dict.fromkeys(("id", "idx", "index", "row", "sample", "sample_id", "series_id", "series"), "id"),
    **dict.fromkeys(("time", "t", "timestamp", "date", "datetime", "step", "timestep", "time_step"), "time"),
    **dict.fromkeys(("split", "subset", "fold", "part"), "split"),
}
UNNAMED = ("", "Unnamed: 0")  # the row numbers that pandas and R write into the first column


@dataclass(frozen=True)
class Options:
    """Arguments of `read_table`, and the column of the split."""

    label: Column | None
    id: Column | None
    time: Column | None
    split: Column | None
    columns: Sequence[Column] | None
    ignore: Sequence[Column]
    shape: Sequence[int] | int | None
    layout: str | None

    def __post_init__(self) -> None:
        if self.time is not None and self.id is None:
            raise ArgumentError(f"data.time={self.time} needs data.id, the column that identifies the series")
        check_layout(self.layout)
        if self.shape is not None:
            check_shape(self.shape)


@dataclass(frozen=True)
class Roles:
    """The numbers of the columns of a table."""

    values: tuple[int, ...]
    label: int | None
    id: int | None
    time: int | None
    split: int | None

    @property
    def texts(self) -> list[int]:
        return [column for column in (self.label, self.id, self.time, self.split) if column is not None]


def find_roles(file: TableFile, options: Options, *, labelled: bool) -> Roles:
    """Find the columns that the options name, the label, and the values."""
    ignored = {_column(file, column, "ignore") for column in _list(options.ignore, "ignore")}
    if file.has_header and file.names[0] in UNNAMED:
        ignored.add(0)
    named = {
        role: _column(file, column, role)
        for role in ("label", "id", "time", "split")
        if (column := getattr(options, role)) is not None
    }
    for role, column in named.items():
        same = [other for other in named if named[other] == column and other != role]
        if same:
            raise ArgumentError(f"data.{role} and data.{same[0]} are both {file.column(column)} of {file.path}")
    chosen = None
    if options.columns is not None:
        chosen = tuple(_column(file, column, "columns") for column in _list(options.columns, "columns"))
        if not chosen or len(set(chosen)) < len(chosen) or set(chosen) & set(named.values()):
            raise ArgumentError(
                f"data.columns must name different columns, without label, id, time and split; got {options.columns!r}"
            )
    taken = {*ignored, *named.values(), *(chosen or ())}
    rest = [column for column in range(len(file.names)) if column not in taken]
    if "label" not in named:
        found = _find_label(file, rest, labelled=labelled)
        if found is not None:
            named["label"] = found
            rest.remove(found)
    if chosen is None:
        _check_values(file, rest, named)
        chosen = tuple(rest)
    return Roles(chosen, *(named.get(role) for role in ("label", "id", "time", "split")))


def _find_label(file: TableFile, candidates: Collection[int], *, labelled: bool) -> int | None:
    """The column of the labels by its name, or because no other column has text."""
    called = [column for column in candidates if file.has_header and file.names[column].lower() in LABEL_NAMES]
    text = [column for column in candidates if file.is_text(column)]
    for found in (called, text):
        if len(found) == 1:
            return found[0]
    if not labelled:
        return None
    for column in text:
        if "decimal comma" in (problem := file.problem(column)):  # then most columns look like text
            raise DamagedDataError(f"{file.at(0, column)}: {problem}")
    possible = f"the columns are {listed(file.names)}" if file.has_header else "0 is the first column, -1 the last"
    if text:
        possible += f"; text in {listed(file.names[column] for column in text)}"
    raise DamagedDataError(f"{file.path}: which column has the labels? Set data.label; {possible}")


def _check_values(file: TableFile, values: Sequence[int], named: Mapping[str, int]) -> None:
    if not values:
        raise DamagedDataError(f"{file.path}: no column is left for the values; the columns are {listed(file.names)}")
    for column in values:
        name = file.names[column]
        role = OTHER_NAMES.get(name.lower()) if file.has_header else None
        if role is not None and role not in named:
            raise DamagedDataError(
                f"{file.path}: {file.column(column)} does not seem to be a value; set data.{role}={name}, or "
                f"data.ignore=[{name}], or list the columns with values in data.columns"
            )
        problem = file.problem(column)
        if problem:
            raise DamagedDataError(f"{file.at(0, column)}: {problem}")


def _column(file: TableFile, column: object, option: str) -> int:
    """The number of a column that an option names or numbers."""
    if str(column) in file.numbers:
        return file.numbers[str(column)]
    if isinstance(column, str):
        if not file.has_header:
            raise ArgumentError(
                f"data.{option}={column}: {file.path} has no header, so columns have numbers from 0 to "
                f"{len(file.names) - 1}; set data.header=true if its first line names them"
            )
        near = difflib.get_close_matches(str(column), file.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(
            f"data.{option}={column}: {file.path} has no such column; it has {listed(file.names)}{hint}"
        )
    number = as_int(column)
    if number is None:
        raise ArgumentTypeError(f"data.{option} must be the name or the number of a column; got {column!r}")
    if not -len(file.names) <= number < len(file.names):
        raise ArgumentError(f"data.{option}={number}: {file.path} has the columns 0 to {len(file.names) - 1}")
    return number % len(file.names)


def _list(columns: object, option: str) -> Sequence[object]:
    if isinstance(columns, str | int):
        return [columns]
    if not isinstance(columns, Sequence):
        raise ArgumentTypeError(f"data.{option} must be a list of columns; got {columns!r}")
    return columns
