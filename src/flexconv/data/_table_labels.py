"""Labels of a table: strings or integers as the names and numbers of classes."""

from __future__ import annotations

import re

import numpy as np

from ._files import DamagedDataError
from ._table_file import TableFile, Text
from ._table_samples import Part
from ._user_data import listed

MISSING_LABELS = frozenset(("", "nan", "na", "n/a", "null", "?"))
INTEGER = re.compile(r"[+-]?\d+")


def clean_labels(file: TableFile, text: Text, column: int) -> Text:
    """Labels as class names: 1.0 and 1.000e+00 become 1. Fractions and missing labels are errors."""
    check_filled(file, text, column)
    numbers = [_number(value) for value in text.values]
    if None in numbers:
        return text
    for code, number in enumerate(numbers):
        if isinstance(number, float) and not number.is_integer():
            row = int(np.argmax(text.codes == code))
            raise DamagedDataError(
                f"{file.at(row, column)}: the label {text.values[code]} is not an integer; classes are integers or "
                "strings (regression needs your own loop)"
            )
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(str(int(number or 0)), len(known)) for number in numbers], np.int64)
    return Text(codes[text.codes], tuple(known))


def check_filled(file: TableFile, text: Text, column: int) -> None:
    """Raise an error if a value of a text column is missing."""
    for code, value in enumerate(text.values):
        if value.lower() in MISSING_LABELS:
            row = int(np.argmax(text.codes == code))
            raise DamagedDataError(f"{file.at(row, column)}: the value is missing ({value!r}); fill it in")


def class_names(train: Part) -> tuple[str, ...]:
    """The labels of the training set, sorted as numbers if they are integers."""
    assert train.labels is not None
    present = {train.labels.values[code] for code in np.unique(train.labels.codes)}
    if all(INTEGER.fullmatch(name) for name in present):
        return tuple(sorted(present, key=int))
    return tuple(sorted(present))


def label_numbers(table: Part, names: tuple[str, ...]) -> np.ndarray:
    """The number of every label among the classes of the training set."""
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


def _number(value: str) -> int | float | None:
    """The number that a label is, if it is one. Integers may be larger than a float can distinguish."""
    try:
        return int(value) if INTEGER.fullmatch(value) else float(value)
    except ValueError:
        return None
