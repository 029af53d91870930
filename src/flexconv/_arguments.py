"""Normalising what users write (an int, a tuple per axis) and naming what they got wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import NoReturn


def per_axis(name: str, value: int | Sequence[int], dims: int, *, minimum: int) -> tuple[int, ...]:
    """One integer per spatial axis: `3` → `(3, 3)`, `(3, 5)` → `(3, 5)`."""
    values: Sequence[int] = (value,) * dims if isinstance(value, int) else value
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(_is_int(v) for v in values):
        raise TypeError(f"{name} must be an int or {dims} ints, one per axis; got {value!r}")
    if len(values) != dims:
        raise ValueError(f"{name} must have {dims} entries, one per axis; got {len(values)}: {value!r}")
    for v in values:
        if v < minimum:
            raise ValueError(f"{name} must be at least {minimum}; got {value!r}")
    return tuple(int(v) for v in values)


def per_axis_floats(name: str, value: float | Sequence[float], dims: int) -> list[float]:
    """One finite number per spatial axis."""
    values = [float(v) for v in value] if isinstance(value, Iterable) else [float(value)] * dims
    if len(values) != dims:
        raise ValueError(f"{name} must be a number or have {dims} entries, one per axis; got {value!r}")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{name} must be finite; got {value!r}")
    return values


def positive(name: str, value: float) -> float:
    """`value` as a float where it is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive; got {value}")
    return float(value)


def positive_int(name: str, value: int) -> int:
    """`value` itself where it is an int of at least 1."""
    if not _is_int(value):
        raise TypeError(f"{name} must be an int; got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}")
    return int(value)


def unknown_name(what: str, name: object, known: Iterable[str]) -> NoReturn:
    """Refuse a name that is in no table, and offer the nearest one."""
    known = sorted(known)
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), spelled, n=1)
    hint = f"; did you mean {spelled[near[0]]!r}?" if near else ""
    raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(map(repr, known))}{hint}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
