"""A fast parser for lines of plain numbers such as 12 and -0.5. `numpy.loadtxt` gives the same result more slowly.

The bytes of many lines are compared with the delimiter at once. The digits of all fields are then added up, one
position after the other:

    m ← 10 m + digit,      value = ± m / 10^(digits after the point)

Lines with anything else (exponents, white space, quotes around numbers, wrong numbers of fields) are declined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

MOST_CHARACTERS = 18  # of a field, so that its digits fit into an int64
FIELDS_PER_BLOCK = 2_000_000
ZERO, NINE, MINUS, POINT, QUOTE, NEWLINE = b'09-."\n'


def parse_lines(
    lines: Sequence[str], delimiter: str, columns: int, numeric: Sequence[int], texts: Collection[int]
) -> tuple[np.ndarray, dict[int, list[str]]] | None:
    """Parse lines with `columns` fields each.

    Returns the columns `numeric` as [lines, numeric] float32 and the columns `texts` as strings, or None if a line
    needs another parser.
    """
    numbers = np.empty((len(lines), len(numeric)), np.float32)
    strings: dict[int, list[str]] = {column: [] for column in texts}
    step = max(1, FIELDS_PER_BLOCK // columns)
    for first in range(0, len(lines), step):
        raw = ("\n".join(lines[first : first + step]) + "\n").encode()
        block = np.frombuffer(raw, np.uint8)
        fields = _fields(block, ord(delimiter), columns)
        if fields is None:
            return None
        starts, ends = fields
        chosen = list(numeric)
        values = _numbers(block, starts[:, chosen].ravel(), ends[:, chosen].ravel())
        if values is None:
            return None
        numbers[first : first + step] = values.reshape(len(starts), -1)
        for column, found in strings.items():
            strings_here = _strings(raw, starts[:, column], ends[:, column])
            if strings_here is None:
                return None
            found += strings_here
    return numbers, strings


def _fields(block: np.ndarray, delimiter: int, columns: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Where fields start and end, two arrays [lines, columns]; None unless every line has `columns` fields."""
    newline = block == NEWLINE
    ends = np.flatnonzero(newline | (block == delimiter))
    lines = np.count_nonzero(newline)
    if len(ends) != lines * columns or not newline[ends[columns - 1 :: columns]].all():
        return None
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    return starts.reshape(lines, columns), ends.reshape(lines, columns)


def _numbers(block: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """The values of fields [n] as float64; None if a field is not a plain number."""
    negative = block[starts] == MINUS
    starts = starts + negative
    lengths = ends - starts
    if not len(lengths) or lengths.min() < 1 or lengths.max() > MOST_CHARACTERS:
        return None
    total = np.zeros(len(starts), np.int64)
    decimals = np.zeros(len(starts), np.int64)
    points = np.zeros(len(starts), np.int8)
    active = np.arange(len(starts))
    for position in range(int(lengths.max())):
        if position:
            active = active[lengths[active] > position]
        character = block[starts[active] + position]
        point = character == POINT
        if ((character < ZERO) | (character > NINE)).sum() != point.sum():
            return None
        if point.any():
            points[active[point]] += 1
            active_digits, character = active[~point], character[~point]
        else:
            active_digits = active
        total[active_digits] = 10 * total[active_digits] + (character - ZERO)
        decimals[active_digits] += points[active_digits]
    if points.max() > 1 or (lengths == points).any():
        return None
    values = total / 10.0**decimals if decimals.any() else total.astype(np.float64)
    return np.where(negative, -values, values)


def _strings(raw: bytes, starts: np.ndarray, ends: np.ndarray) -> list[str] | None:
    """Fields as strings, without the quotes around them; None if a quote is inside."""
    strings = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        field = raw[start:end]
        if len(field) > 1 and field[0] == field[-1] == QUOTE:
            field = field[1:-1]
        if QUOTE in field:
            return None
        strings.append(field.decode())
    return strings
