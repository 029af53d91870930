"""Parquet files, read with pyarrow or pandas.

A column may contain lists: one list per sample is a series, and several such columns are its channels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingPackageError
from ._files import DamagedDataError
from ._table_file import Content, TableFile, Text, encode

PANDAS_INDEX = "__index_level_"  # how names of columns begin that pandas adds


class ParquetFile(TableFile):
    """A Parquet file, which always names its columns."""

    has_header = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns = _load(path)
        self.names = tuple(self._columns)
        if not self.names or not len(self._array(0)):
            raise DamagedDataError(f"{path}: the file has no rows")

    def is_text(self, column: int) -> bool:
        values = self._array(column)
        return values.dtype.kind not in "biuf" and not _is_list(values)

    def problem(self, column: int) -> str:
        return (
            f"{self._array(column)[0]!r} is not a number; set data.ignore=[{self.names[column]}]"
            if self.is_text(column)
            else ""
        )

    def read(self, numeric: Sequence[int], texts: Collection[int]) -> Content:
        strings = {column: self._text(column) for column in texts}
        lists = [column for column in numeric if _is_list(self._array(column))]
        if lists:
            if len(lists) < len(numeric):
                other = next(column for column in numeric if column not in lists)
                raise DamagedDataError(
                    f"{self.path}: {self.column(lists[0])} has lists, but {self.column(other)} has single numbers; set "
                    "data.columns"
                )
            numbers, lengths = self._lists(lists)
            return Content(numbers, strings, lengths)
        numbers = np.stack([self._numbers(column) for column in numeric], axis=1)
        return Content(numbers, strings)

    def place(self, row: int) -> str:
        return f"row {row + 1}"

    def _array(self, column: int) -> np.ndarray:
        return self._columns[self.names[column]]

    def _numbers(self, column: int) -> np.ndarray:
        values = self._array(column)
        try:
            numbers = values.astype(np.float32)
        except (TypeError, ValueError):
            row = next(row for row, value in enumerate(values) if not isinstance(value, int | float))
            raise DamagedDataError(f"{self.at(row, column)}: {values[row]!r} is not a number") from None
        self._check_finite(np.isfinite(numbers), column)
        return numbers

    def _check_finite(self, finite: np.ndarray, column: int) -> None:
        if not finite.all():
            row = int(np.argmin(finite))
            raise DamagedDataError(
                f"{self.at(row, column)}: the value is missing or not finite; fill it in, or remove the row"
            )

    def _lists(self, columns: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Columns of lists as channels [rows, columns, longest], and the lengths if they differ."""
        lengths = np.array([0 if value is None else len(value) for value in self._array(columns[0])])
        if lengths.min() < 1:
            raise DamagedDataError(f"{self.at(int(lengths.argmin()), columns[0])}: the list is empty or missing")
        padded = np.zeros((len(lengths), len(columns), lengths.max()), np.float32)
        for channel, column in enumerate(columns):
            for row, value in enumerate(self._array(column)):
                if value is None or len(value) != lengths[row]:
                    count = 0 if value is None else len(value)
                    raise DamagedDataError(
                        f"{self.at(row, column)}: {count} values, but {self.column(columns[0])} has {lengths[row]}"
                    )
                try:
                    padded[row, channel, : lengths[row]] = value
                except (TypeError, ValueError):
                    raise DamagedDataError(f"{self.at(row, column)}: the list must contain numbers only") from None
            self._check_finite(np.asarray(np.isfinite(padded[:, channel]).all(1)), column)
        return padded, lengths if lengths.min() < lengths.max() else None

    def _text(self, column: int) -> Text:
        return encode(map(_string, self._array(column).tolist()))  # dates become integers


def _string(value: object) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_list(values: np.ndarray) -> bool:
    first = next((value for value in values if value is not None), None) if values.dtype == object else None
    return isinstance(first, list | tuple | np.ndarray)


def _load(path: Path) -> Mapping[str, np.ndarray]:
    """All columns of a file by name, without the index of pandas."""
    read = _reader()
    try:
        columns = read(path)
    except OSError as error:
        raise DamagedDataError(f"{path}: is not a Parquet file: {error}") from error
    except ValueError as error:  # of pyarrow and fastparquet, for damaged files
        raise DamagedDataError(f"{path}: cannot be read: {error}") from error
    return {name: values for name, values in columns.items() if not name.startswith(PANDAS_INDEX)}


def _reader() -> Any:
    """A function that reads a file with pyarrow or, if that is not installed, with pandas."""
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        pass
    else:
        return lambda path: _from_arrow(parquet.read_table(path), path)
    try:
        import fastparquet  # noqa: F401  # pyright: ignore[reportMissingImports]
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackageError("reading Parquet files needs pyarrow", extra="parquet") from error
    return lambda path: {str(name): column.to_numpy() for name, column in pandas.read_parquet(path).items()}


def _from_arrow(table: Any, path: Path) -> dict[str, np.ndarray]:
    names = table.column_names
    for number, name in enumerate(names):
        if name in names[:number]:
            raise DamagedDataError(f"{path}: two columns are called {name!r}; rename one of them")
    arrays = {}
    for name, column in zip(names, table.columns, strict=True):
        if str(column.type).startswith("dictionary"):
            column = column.cast(column.type.value_type)
        arrays[name] = column.to_numpy()
    return arrays
