"""A table in a file: CSV or TSV, read with the standard library and NumPy, or Parquet."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from ..errors import ArgumentError
from ._files import DamagedDataError, read_contents
from ._plain_numbers import parse_lines

DELIMITERS = ("\t", ";", ",", "|")  # in the order of preference
DELIMITER_NAMES = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars", " ": "spaces"}
MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "?", "-"))
UNICODE_MARKS = (b"\xff\xfe", b"\xfe\xff")
BLOCK = 1000  # lines
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", *PARQUET_SUFFIXES)


@dataclass(frozen=True, eq=False)
class Text:
    """A column of strings: the string of row i is `values[codes[i]]`."""

    codes: np.ndarray
    values: tuple[str, ...]

    def __getitem__(self, row: int) -> str:
        return self.values[self.codes[row]]


@dataclass(frozen=True, eq=False)
class Content:
    """The rows of a table.

    Attributes:
        numbers: values of the numeric columns [rows, columns] float32, or of list columns [rows, columns, longest].
        texts: columns that were read as text, by their number.
        lengths: lengths of the lists in every row [rows], if they differ; None otherwise.

    """

    numbers: np.ndarray
    texts: dict[int, Text]
    lengths: np.ndarray | None = None


class TableFile(ABC):
    """A table whose column names are known and whose rows have not been read yet.

    Attributes:
        path: the file.
        names: names of the columns; "0", "1", … without a header.
        has_header: whether the file names its columns.

    """

    path: Path
    names: tuple[str, ...]
    has_header: bool

    @abstractmethod
    def is_text(self, column: int) -> bool:
        """Whether the first rows of a column contain anything but numbers."""

    @abstractmethod
    def problem(self, column: int) -> str:
        """Why a column cannot contain values, judged by the first row; empty if it can."""

    @abstractmethod
    def read(self, numeric: Sequence[int], texts: Collection[int]) -> Content:
        """Read the columns `numeric` as numbers and the columns `texts` as strings. Other columns are ignored."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Where a row is, for messages: "line 7" or "row 7"."""

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of every column by its name."""
        return {name: number for number, name in enumerate(self.names)}

    def column(self, number: int) -> str:
        """A column in messages: its name, or its number if the columns have no names."""
        return f"column {self.names[number]!r}" if self.has_header else f"column {number}"

    def at(self, row: int, column: int | None = None) -> str:
        """File, line and column, for messages."""
        return f"{self.path}, {self.place(row)}" + ("" if column is None else f", {self.column(column)}")


def open_table(path: Path, *, delimiter: str | None = None, header: bool | None = None) -> TableFile:
    """Open a .csv, .tsv, .txt or .parquet file. Text files may be compressed (.gz)."""
    if path.is_dir():
        raise DamagedDataError(f"{path}: is a folder, expected a table such as train.csv")
    if path.suffix.lower() in PARQUET_SUFFIXES:
        if delimiter is not None or header is not None:
            raise ArgumentError(f"delimiter and header are options of text files, but {path} is a Parquet file")
        from ._parquet import ParquetFile

        return ParquetFile(path)
    return DelimitedFile(path, delimiter=delimiter, header=header)


def is_table(path: Path) -> bool:
    """Whether the name of a file ends like that of a table: .csv, .tsv, .tab, .txt, also with .gz, or .parquet."""
    return path.name.lower().removesuffix(".gz").endswith(TABLE_SUFFIXES)


class DelimitedFile(TableFile):
    """A text file with one row per line."""

    def __init__(self, path: Path, *, delimiter: str | None, header: bool | None) -> None:
        self.path = path
        self._lines = _lines(path)
        self._check_no_empty_line()
        self._delimiter = _checked_delimiter(delimiter) or _find_delimiter(self._lines)
        first, second = self._first_rows()
        if len(first) == 1:
            self._check_one_column(first)
        self.has_header = _is_header(first, second) if header is None else header
        self.names = tuple(name.strip() for name in first) if self.has_header else tuple(map(str, range(len(first))))
        self._sample = second if self.has_header else first
        if self.has_header:
            self._check_header(second)

    def is_text(self, column: int) -> bool:
        value = self._sample[column].strip() if column < len(self._sample) else ""
        return value.lower() not in MISSING and not _is_number(value)

    def problem(self, column: int) -> str:
        return _problem(self._sample[column].strip(), self.names[column]) if self.is_text(column) else ""

    def read(self, numeric: Sequence[int], texts: Collection[int]) -> Content:
        lines = self._lines[self._header_lines :] if self.has_header else self._lines
        parsed = parse_lines(lines, self._delimiter, len(self.names), numeric, texts)
        if parsed is not None:
            numbers, strings = parsed
            return Content(numbers, {column: encode(values) for column, values in strings.items()})
        return self._read_any(lines, numeric, texts)

    def _read_any(self, lines: list[str], numeric: Sequence[int], texts: Collection[int]) -> Content:
        """Read lines that may have exponents, quotes and white space, or raise an error that names a wrong one."""
        strings: dict[int, list[str]] = {column: [] for column in texts}
        others = dict.fromkeys(set(range(len(self.names))) - set(numeric), _ignore)
        converters = others | {column: _collect(found) for column, found in strings.items()}
        try:
            numbers = np.loadtxt(
                (f"{line}\n" for line in lines),  # a line break may be part of a quoted field
                np.float32,
                delimiter=None if self._delimiter == " " else self._delimiter,
                comments=None,
                quotechar='"',
                converters=converters,  # type: ignore[arg-type]
                ndmin=2,
                encoding="utf-8",
            )
        except ValueError as error:
            self._explain(numeric)
            raise DamagedDataError(f"{self.path}: cannot be read: {error}") from error
        if numbers.shape[1] != len(self.names) or not np.isfinite(numbers).all():
            self._explain(numeric)
            raise DamagedDataError(f"{self.path}: cannot be read: it does not have {len(self.names):,} finite columns")
        return Content(numbers[:, list(numeric)], {column: encode(found) for column, found in strings.items()})

    def place(self, row: int) -> str:
        return f"line {next(line for number, line, _ in self._rows() if number == row)}"

    def _rows(self, skip: int = 0) -> Iterator[tuple[int, int, list[str]]]:
        """The number, the line and the fields of every row below the header, after `skip` lines. Slow, for messages."""
        lines = self._lines[skip:]
        if self._delimiter == " ":
            parsed = ((line, text.split()) for line, text in enumerate(lines, start=1))
        else:
            reader = csv.reader((f"{line}\n" for line in lines), delimiter=self._delimiter)
            parsed = ((reader.line_num, fields) for fields in reader)
        try:
            for number, (line, fields) in enumerate(parsed, skip - self._header_lines if skip else -self.has_header):
                if number >= 0:
                    yield number, skip + line, fields
        except csv.Error as error:  # a field that never ends
            raise DamagedDataError(f"{self.path}: cannot be read: {error}") from error

    def _first_rows(self) -> tuple[list[str], list[str]]:
        self.has_header = False
        rows = list(islice(self._rows(), 2))
        self._header_lines = rows[0][1]  # more than 1 if a quoted name contains a line break
        return rows[0][2], rows[1][2] if len(rows) > 1 else []

    def _check_one_column(self, first: list[str]) -> None:
        used = [each for each in DELIMITERS if each in self._lines[0]]
        ours = DELIMITER_NAMES.get(self._delimiter, repr(self._delimiter))
        hint = f"; it seems to be separated by {DELIMITER_NAMES[used[0]]}: leave out data.delimiter" if used else ""
        raise DamagedDataError(f"{self.path}, line 1: {first[0][:40]!r} is one column, separated by {ours}{hint}")

    def _check_header(self, second: list[str]) -> None:
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise DamagedDataError(f"{self.path}, line 1: two columns are called {twice[0]!r}; rename one of them")
        if not second:
            raise DamagedDataError(f"{self.path}: there are no rows below the header")
        for number, name in enumerate(self.names):
            if not name and number > 0:
                raise DamagedDataError(f"{self.path}, line 1: column {number + 1} has no name; every column needs one")

    def _check_no_empty_line(self) -> None:
        for number, line in enumerate(self._lines, start=1):
            if not line.strip(" ,;|\t"):
                what = "is empty" if not line.strip() else "has no values"
                raise DamagedDataError(f"{self.path}, line {number}: the row {what}; remove it")

    def _count_plain(self, numeric: Sequence[int]) -> int:
        """The number of lines at the beginning that are certainly right, so that a search may skip them."""
        texts = set(range(len(self.names))) - set(numeric)
        for first in range(self._header_lines if self.has_header else 0, len(self._lines), BLOCK):
            block = self._lines[first : first + BLOCK]
            if parse_lines(block, self._delimiter, len(self.names), numeric, texts) is None:
                return first
        return len(self._lines)

    def _explain(self, numeric: Sequence[int]) -> None:
        """Raise an error that names the first row with a wrong number of fields or a field that is no number."""
        for _, line, fields in self._rows(self._count_plain(numeric)):
            where = f"{self.path}, line {line}"
            if len(fields) != len(self.names):
                raise DamagedDataError(
                    f"{where}: {len(fields):,} values, but {'the header' if self.has_header else 'line 1'} has "
                    f"{len(self.names):,}; series of different lengths need one row per time step, see data.id"
                )
            for column in numeric:
                value = fields[column].strip()
                if _is_finite(value):
                    continue
                raise DamagedDataError(f"{where}, {self.column(column)}: {_problem(value, self.names[column])}")


def encode(values: Iterable[str]) -> Text:
    """Strings as a column, without white space around them."""
    known: dict[str, int] = {}
    codes = np.fromiter((known.setdefault(value.strip(), len(known)) for value in values), np.int64)
    return Text(codes, tuple(known))


def _collect(values: list[str]) -> Callable[[str], float]:
    """A converter for `numpy.loadtxt` that appends the fields of a column to `values`."""

    def convert(field: str) -> float:
        values.append(field)
        return 0.0

    return convert


def _ignore(_: str) -> float:
    return 0.0


def _lines(path: Path) -> list[str]:
    """The lines of a text file without empty ones at its end."""
    raw = read_contents(path)
    if raw[:2] in UNICODE_MARKS:
        raise DamagedDataError(f"{path}: the file is UTF-16 text; save it as UTF-8")
    try:
        text = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig").read()  # with "\n" at the end of every line
    except UnicodeDecodeError as error:
        line, byte = raw.count(b"\n", 0, error.start) + 1, raw[error.start]
        raise DamagedDataError(f"{path}, line {line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise DamagedDataError(f"{path}: the file is not text; expected CSV or TSV")
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DamagedDataError(f"{path}: the file is empty")
    return lines


def _checked_delimiter(delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    delimiter = {"tab": "\t", "\\t": "\t", "space": " "}.get(delimiter, delimiter)
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ArgumentError(f"data.delimiter must be one character, or tab; got {delimiter!r}")
    return delimiter


def _find_delimiter(lines: list[str]) -> str:
    """The delimiter that occurs equally often in the first lines, or else most often in the first one."""
    first = [_without_quotes(line) for line in lines[:5]]
    for delimiter in DELIMITERS:
        if len({line.count(delimiter) for line in first}) == 1 and delimiter in first[0]:
            return delimiter
    most = max(DELIMITERS, key=first[0].count)
    return most if most in first[0] else " " if len(first[0].split()) > 1 else ","


def _without_quotes(line: str) -> str:
    return "".join(line.split('"')[::2])


def _is_header(first: list[str], second: list[str]) -> bool:
    """Whether the first row names the columns.

    It does if it has no numbers, has text above a number, or counts: `label,0,1,2` above `cat,0.3,0.1,0.7`.
    """
    numbers = [field for field in first if _is_number(field)]
    if not numbers:
        return True
    if any(not _is_number(name) and _is_number(field) for name, field in zip(first, second, strict=False)):
        return True
    counted = [numbers == [str(start + i) for i in range(len(numbers))] for start in (0, 1)]
    return any(counted) and 2 < len(numbers) < len(first)


def _is_number(field: str) -> bool:
    """Whether NumPy reads a field as a number. Python would also read 1_000 and digits of other scripts."""
    try:
        float(field)
    except ValueError:
        return False
    return field.strip().isascii() and "_" not in field


def _is_finite(field: str) -> bool:
    return _is_number(field) and abs(float(field)) <= float(np.finfo(np.float32).max)


def _problem(value: str, name: str) -> str:
    """Why a field is not a finite number."""
    if value.lower() in MISSING:
        return f"the value is missing ({value!r}); fill it in, or remove the row"
    if _is_number(value):
        return f"{value} is not a finite float32 number"
    if "\n" in value:
        return f"a quote opens before {value.partition(chr(10))[0][:40]!r} and is not closed in that line"
    value = value if len(value) <= 40 else f"{value[:40]}…"
    if "," in value and _is_number(value.replace(",", ".")):
        return f"{value!r} has a decimal comma; write numbers with a point"
    return (
        f"{value!r} is not a number; if this column has no values, set data.ignore=[{name}], or data.label={name} if "
        f"it has the labels, or data.id={name} if it says which series a row belongs to"
    )
