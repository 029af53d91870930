"""Long tables: one row per time step, a column that identifies the series, and one column per channel."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from ..errors import ArgumentError
from ._files import DamagedDataError
from ._table_columns import Options, Roles
from ._table_file import Content, TableFile, Text
from ._table_labels import check_filled
from ._table_samples import Part

TIME_KINDS = ("int64", "float64", "date")  # in this order, because integers may be nanoseconds
UNEQUAL = 1.01  # ratio of time steps that is noted


def read_long(file: TableFile, roles: Roles, content: Content, labels: Text | None, options: Options) -> Part:
    """Group the rows of a long table by their id, in the order in which the ids occur first."""
    if options.shape is not None or options.layout is not None:
        raise ArgumentError(f"{file.path}: data.shape and data.layout are for tables with one row per sample")
    assert roles.id is not None
    ids, note = content.texts[roles.id], ""
    if roles.time is None:
        order = np.argsort(ids.codes, kind="stable")
    else:
        times = _times(file, content.texts[roles.time], roles.time)
        order = np.lexsort((times, ids.codes))
        note = _check_times(file, roles.time, ids, times, order)
    series = _Series(file, ids, order)
    splits = None if roles.split is None else content.texts[roles.split]
    return Part(
        file,
        roles,
        series.pad(content.numbers),
        series.lengths if series.lengths.min() < series.lengths.max() else None,
        series.first_rows,
        series.one_of_each(labels, roles.label),
        series.one_of_each(splits, roles.split),
        Text(np.arange(len(series.lengths)), ids.values),
        note,
    )


class _Series:
    """Rows that are grouped by series: `order` sorts the rows by the codes of their ids, which count from 0."""

    def __init__(self, file: TableFile, ids: Text, order: np.ndarray) -> None:
        self._file, self._ids, self._order = file, ids, order
        self.lengths = np.bincount(ids.codes)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self.first_rows = order[self._starts]

    def pad(self, numbers: np.ndarray) -> np.ndarray:
        """Rows [rows, C] as series [N, C, longest], padded with zeros."""
        padded = np.zeros((len(self.lengths), numbers.shape[1], self.lengths.max()), np.float32)
        step = np.arange(len(self._order)) - np.repeat(self._starts, self.lengths)
        padded[self._ids.codes[self._order], :, step] = numbers[self._order]
        return padded

    def one_of_each(self, text: Text | None, column: int | None) -> Text | None:
        """The text of every series, which must be the same in all its rows."""
        if text is None:
            return None
        codes = text.codes[self.first_rows]
        different = np.flatnonzero(text.codes != codes[self._ids.codes])
        if len(different):
            row = int(different[0])
            first = int(self.first_rows[self._ids.codes[row]])
            raise DamagedDataError(
                f"{self._file.at(row, column)}: {text[row]!r}, but the series {self._ids[row]!r} has {text[first]!r} "
                f"in {self._file.place(first)}"
            )
        return Text(codes, text.values)


def _times(file: TableFile, text: Text, column: int) -> np.ndarray:
    """Times as floats: numbers, or dates in ISO 8601 as seconds."""
    check_filled(file, text, column)
    values = next((found for kind in TIME_KINDS if (found := _parse_times(text.values, kind)) is not None), None)
    if values is None:
        kind = next((kind for kind in TIME_KINDS[1:] if _parse_times(text.values[:1], kind) is not None), TIME_KINDS[1])
        wrong = [code for code, value in enumerate(text.values) if _parse_times([value], kind) is None]
        row = int(np.argmax(text.codes == wrong[0]))
        raise DamagedDataError(
            f"{file.at(row, column)}: {text[row]!r}, expected numbers, or dates such as 2026-01-31T12:00:00"
        )
    return values[text.codes]


def _parse_times(values: Sequence[str], kind: str) -> np.ndarray | None:
    """Strings as numbers or as seconds after the first date; None if a string is something else."""
    try:
        if kind == "date":
            dates = _parse_dates(values)
            unit, _ = np.datetime_data(dates.dtype)
            per_second = np.timedelta64(1, "s") / np.timedelta64(1, unit)
            return None if np.isnat(dates).any() else _after_first(dates.view(np.int64)) / per_second
        numbers = np.array(values, kind)
    except (ValueError, OverflowError):
        return None
    return _after_first(numbers) if np.isfinite(numbers).all() else None


def _after_first(numbers: np.ndarray) -> np.ndarray:
    """How much larger numbers are than the smallest one, as floats."""
    first = numbers.min()
    if numbers.dtype == np.int64:  # differences can exceed 2⁶³, but not 2⁶⁴
        return (numbers.view(np.uint64) - first.view(np.uint64)).astype(np.float64)
    return numbers - first


def _parse_dates(values: Sequence[str]) -> np.ndarray:
    """Dates in nanoseconds, or in microseconds if some lie outside of the years 1678 to 2261."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no explicit representation of timezones")  # NumPy converts them to UTC
        values = [value.removesuffix("Z") for value in values]
        dates = np.array(values, "datetime64[ns]")
        overflows = np.datetime_as_string(dates, "s") != np.datetime_as_string(np.array(values, "datetime64[s]"))
        return np.array(values, "datetime64[us]") if overflows.any() else dates


def _check_times(file: TableFile, column: int, ids: Text, times: np.ndarray, order: np.ndarray) -> str:
    """Raise an error if a series has two rows of the same time. Returns a note if its steps are unequal."""
    steps = np.diff(times[order])[np.diff(ids.codes[order]) == 0]
    if (steps == 0).any():
        same = np.flatnonzero((np.diff(times[order]) == 0) & (np.diff(ids.codes[order]) == 0))[0]
        first, second = sorted(map(int, order[same : same + 2]))
        raise DamagedDataError(
            f"{file.at(second, column)}: the series {ids[second]!r} has the same time in {file.place(first)}; "
            "every step needs a time of its own"
        )
    if len(steps) and steps.max() > UNEQUAL * steps.min():
        return f"the time steps are between {steps.min():g} and {steps.max():g}, but are taken as equal"
    return ""
