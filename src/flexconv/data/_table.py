"""Your own series or flattened images in a table: CSV, TSV or Parquet.

A wide table has one row per sample, a column with the label, and one column per value. A long table has one row per
time step, a column that identifies the series, and one column per channel.

    wide    label,v0,v1,v2          long    id,time,label,x,y
            cat,0.1,0.4,0.2                 a,0,cat,0.1,7.0
            dog,0.3,0.1,0.7                 a,1,cat,0.4,7.5
                                            b,0,dog,0.3,6.1

Labels may be strings or integers. In a long table, series may have different lengths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..errors import ArgumentError
from ._arrange import reshape_rows
from ._dataset import Dataset, Source
from ._files import DamagedDataError
from ._splits import Samples
from ._table_columns import Column, Options, Roles, find_roles
from ._table_file import Content, TableFile, Text, open_table
from ._user_data import SPLIT_NAMES, TEST_SHARE, assemble, find, listed

MISSING_LABELS = frozenset(("", "nan", "na", "n/a", "null", "?"))
TIME_KINDS = ("int64", "float64", "date")  # in this order, because integers may be nanoseconds
UNEQUAL = 1.01  # ratio of time steps that is noted


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
    return _read_part(file, options, labelled=False).table()


@dataclass(frozen=True, eq=False)
class _Part:
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
        inputs = _as_bytes({"": self.inputs})[""]
        names = self.first_rows + 1 if self.ids is None else [self.ids[row] for row in range(len(self))]
        return Table(
            torch.from_numpy(inputs),
            None if self.labels is None else tuple(self.labels[row] for row in range(len(self))),
            None if self.lengths is None else torch.from_numpy(self.lengths),
            tuple(map(str, names)),
            self.note,
        )

    def rows(self, index: np.ndarray) -> _Part:
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


# --- the data set -----------------------------------------------------------------------------------------------------


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    label: Column | None = None,
    id: Column | None = None,  # noqa: A002
    time: Column | None = None,
    columns: Sequence[Column] | None = None,
    ignore: Sequence[Column] = (),
    shape: Sequence[int] | int | None = None,
    layout: str | None = None,
    split: Column | None = None,
    test_path: str | os.PathLike[str] | None = None,
    validation_path: str | os.PathLike[str] | None = None,
    test_share: float = TEST_SHARE,
    delimiter: str | None = None,
    header: bool | None = None,
) -> Source:
    """Read a table of series or flattened images.

    Options:
        path: the file (.csv, .tsv, .txt or .parquet), as a path or relative to the data root. If it is called
            train.csv or ends with _train.csv, a file with test in its place is the test set.
        label: column of the labels, by name or number. Default: a column that is called label, labels, class, target
            or category, or the only column with text.
        id: column that identifies the series, for a long table (one row per time step).
        time: column that orders the rows of a series in a long table. Default: the order in the file.
        columns: list of the columns with values. Default: all other columns.
        ignore: list of columns that are not read.
        shape: shape of a sample in a wide table (one row per sample): [H, W], [C, H, W], or [L].
        layout: meaning of the axes of the shape: L, CL, LC, HW, CHW or HWC.
        split: column that says train, validation or test.
        test_path: file of the test set.
        validation_path: file of the validation set.
        test_share: share of the samples that becomes the test set, if there is no other one.
        delimiter: character between two values of a text file. Default: it is found.
        header: whether the first line names the columns. Default: it is found.

    """
    options = Options(label, id, time, split, columns, ignore, shape, layout)
    files = _find_files(root, path, test_path, validation_path)
    if split is not None and len(files) > 1:
        others = ", ".join(str(file) for part, file in files.items() if part != "train")
        raise ArgumentError(f"data.split={split} and another file ({others}) both say what the test set is: use one")
    opened = {part: open_table(file, delimiter=delimiter, header=header) for part, file in files.items()}
    parts = _read_parts(opened, options)
    if split is not None:
        parts = _by_split(parts["train"])
    names = _class_names(parts["train"])
    padded = _as_bytes(_same_size(parts))
    samples = {
        part: Samples(
            torch.from_numpy(padded[part]),
            torch.from_numpy(_label_numbers(table, names)),
            None if table.lengths is None else torch.from_numpy(table.lengths),
        )
        for part, table in parts.items()
    }
    scale = 1 / 255 if samples["train"].inputs.dtype == torch.uint8 else 1.0
    source = assemble(samples, names, test_share=test_share, scale=scale, place=files["train"])
    return replace(source, note="; ".join(filter(None, (source.note, parts["train"].note))))


def _find_files(
    root: Path,
    path: str | os.PathLike[str],
    test_path: str | os.PathLike[str] | None,
    validation_path: str | os.PathLike[str] | None,
) -> dict[str, Path]:
    """The file of every split."""
    files = {"train": find(path, root)}
    for part, given in (("validation", validation_path), ("test", test_path)):
        if given is not None:
            files[part] = find(given, root, option=f"{part}_path")
        elif found := _beside(files["train"], part):
            files[part] = found
    return files


def _beside(train: Path, part: str) -> Path | None:
    """The file of another split beside train.csv or NAME_train.csv, in any case."""
    stem, dot, suffix = train.name.partition(".")
    match = re.fullmatch(r"(.*[^a-z])?train(?:ing)?", stem, re.IGNORECASE)
    if match is None:
        return None
    spellings = [name for name, kind in SPLIT_NAMES.items() if kind == part]
    wanted = {f"{match[1] or ''}{name}{dot}{suffix}".lower() for name in spellings}
    found = sorted(each for each in train.parent.iterdir() if each.name.lower() in wanted)
    if len(found) > 1:
        raise DamagedDataError(f"{found[0]} and {found[1]} both seem to be the {part} set: set data.{part}_path")
    return found[0] if found else None


def _read_parts(files: Mapping[str, TableFile], options: Options) -> dict[str, _Part]:
    """Read all splits. Columns of other files are those of the training set, by name if they have one."""
    train = _read_part(files["train"], options, labelled=True)
    parts = {"train": train}
    names = [train.file.names[column] for column in train.roles.values]
    assert train.roles.label is not None
    for part, file in files.items():
        if part == "train":
            continue
        if file.has_header != train.file.has_header:
            with_header, without = (file, train.file) if file.has_header else (train.file, file)
            raise DamagedDataError(f"{with_header.path} has a header, but {without.path} has none: set data.header")
        same = replace(options, columns=names, label=train.file.names[train.roles.label])
        parts[part] = _read_part(file, same, labelled=True)
    return parts


def _by_split(whole: _Part) -> dict[str, _Part]:
    assert whole.splits is not None
    assert whole.roles.split is not None
    kinds = [SPLIT_NAMES.get(value.lower()) for value in whole.splits.values]
    for code, (value, kind) in enumerate(zip(whole.splits.values, kinds, strict=True)):
        if kind is None:
            row = int(whole.first_rows[np.argmax(whole.splits.codes == code)])
            raise DamagedDataError(
                f"{whole.file.at(row, whole.roles.split)}: {value!r}, expected train, validation or test"
            )
    of = np.array(kinds)[whole.splits.codes]
    if "train" not in of:
        raise DamagedDataError(f"{whole.file.path}, {whole.file.column(whole.roles.split)}: no row says train")
    return {part: whole.rows(np.flatnonzero(of == part)) for part in ("train", "validation", "test") if part in of}


def _class_names(train: _Part) -> tuple[str, ...]:
    """The labels of the training set, sorted as numbers if they are integers."""
    assert train.labels is not None
    present = {train.labels.values[code] for code in np.unique(train.labels.codes)}
    if all(re.fullmatch(r"[+-]?\d+", name) for name in present):
        return tuple(sorted(present, key=int))
    return tuple(sorted(present))


def _label_numbers(table: _Part, names: tuple[str, ...]) -> np.ndarray:
    assert table.labels is not None
    assert table.roles.label is not None
    numbers = {name: number for number, name in enumerate(names)}
    of_code = np.array([numbers.get(value, -1) for value in table.labels.values], np.int64)
    labels = of_code[table.labels.codes]
    if (labels < 0).any():
        sample = int(np.argmax(labels < 0))
        raise DamagedDataError(
            f"{table.file.at(int(table.first_rows[sample]), table.roles.label)}: the training set has no class "
            f"{table.labels[sample]!r}; it has {listed(names)}"
        )
    return labels


def _same_size(parts: Mapping[str, _Part]) -> dict[str, np.ndarray]:
    """The inputs of all splits, padded to the longest series if their lengths differ."""
    longest = max(part.inputs.shape[-1] for part in parts.values())
    if all(part.lengths is None for part in parts.values()):
        return {name: part.inputs for name, part in parts.items()}
    return {
        name: np.pad(part.inputs, ((0, 0), (0, 0), (0, longest - part.inputs.shape[-1])))
        for name, part in parts.items()
    }


def _as_bytes(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Images with integers from 0 to 255 as uint8, so that they are treated like image files."""
    arrays = list(inputs.values())
    images = all(each.ndim == 4 and each.size for each in arrays)
    if not images or max(each.max() for each in arrays) <= 1:
        return dict(inputs)
    if all(each.min() >= 0 and each.max() <= 255 and np.array_equal(each, np.rint(each)) for each in arrays):
        return {name: each.astype(np.uint8) for name, each in inputs.items()}
    return dict(inputs)


# --- from columns to samples ------------------------------------------------------------------------------------------


def _read_part(file: TableFile, options: Options, *, labelled: bool) -> _Part:
    roles = find_roles(file, options, labelled=labelled)
    content = file.read(roles.values, roles.texts)
    labels = None if roles.label is None else _clean_labels(file, content.texts[roles.label], roles.label)
    if roles.id is None:
        return _wide(file, roles, content, labels, options)
    ids = content.texts[roles.id]
    _check_filled(file, ids, roles.id)
    if len(ids.values) == len(ids.codes):  # one row per id: a wide table with names
        return replace(_wide(file, roles, content, labels, options), ids=ids)
    return _long(file, roles, content, labels, options)


def _wide(file: TableFile, roles: Roles, content: Content, labels: Text | None, options: Options) -> _Part:
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
    return _Part(file, roles, inputs, lengths, np.arange(len(inputs)), labels, splits, None, "")


def _long(file: TableFile, roles: Roles, content: Content, labels: Text | None, options: Options) -> _Part:
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
    return _Part(
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
    _check_filled(file, text, column)
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
            dates = np.array([value.removesuffix("Z") for value in values], "datetime64[ns]").astype(np.int64)
            return (dates - dates.min()) / 1e9
        numbers = np.array(values, kind)
    except (ValueError, OverflowError):
        return None
    return (numbers - numbers.min()).astype(np.float64)


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


def _clean_labels(file: TableFile, text: Text, column: int) -> Text:
    """Labels as class names: 1.0 and 1.000e+00 become 1. Fractions and missing labels are errors."""
    _check_filled(file, text, column)
    numbers = [_number(value) for value in text.values]
    if None in numbers:
        return text
    for code, number in enumerate(numbers):
        assert number is not None
        if not number.is_integer():
            row = int(np.argmax(text.codes == code))
            raise DamagedDataError(
                f"{file.at(row, column)}: the label {text.values[code]} is not an integer; classes are integers or "
                "strings (regression needs your own loop)"
            )
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(str(int(number or 0)), len(known)) for number in numbers], np.int64)
    return Text(codes[text.codes], tuple(known))


def _check_filled(file: TableFile, text: Text, column: int) -> None:
    for code, value in enumerate(text.values):
        if value.lower() in MISSING_LABELS:
            row = int(np.argmax(text.codes == code))
            raise DamagedDataError(f"{file.at(row, column)}: the value is missing ({value!r}); fill it in")


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


DATASETS = (
    Dataset(
        "table",
        "Your own series or flattened images in a CSV, TSV or Parquet file",
        _read,
        "own",
        licence="",
        citation="",
        protocols=("honest",),
        needs_files=False,
    ),
)
