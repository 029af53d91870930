"""Validation and normalization of arguments, with errors that name the offending value."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from .errors import ArgumentError, ArgumentTypeError


def as_int(value: Any) -> int | None:
    """Convert an integer of any kind, such as numpy's, to an int. Return None for anything else, including bools."""
    if type(value) is int:
        return value
    if isinstance(value, bool | Sequence):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def per_axis(name: str, value: int | Sequence[int], dims: int, *, minimum: int) -> tuple[int, ...]:
    """Return one integer per spatial axis: `3` becomes `(3, 3)`, `(3, 5)` stays."""
    one = as_int(value)
    entries = value if one is None else (one,) * dims
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise ArgumentTypeError(f"{name} must be an int or {dims} ints, one per axis; got {value!r}")
    values = [number for number in map(as_int, entries) if number is not None]
    if len(values) != len(entries):
        raise ArgumentTypeError(f"{name} must be an int or {dims} ints, one per axis; got {value!r}")
    if len(values) != dims:
        raise ArgumentError(f"{name} must have {dims} entries, one per axis; got {len(values)}: {value!r}")
    if any(number < minimum for number in values):
        raise ArgumentError(f"{name} must be at least {minimum}; got {value!r}")
    return tuple(values)


def per_axis_floats(name: str, value: float | Sequence[float], dims: int) -> list[float]:
    """Return one finite number per spatial axis."""
    value = getattr(value, "tolist", lambda: value)()  # for tensors and arrays
    try:
        values = [float(v) for v in value] if isinstance(value, Iterable) else [float(value)] * dims
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name} must be a number or {dims} of them, one per axis; got {value!r}") from None
    if len(values) != dims:
        raise ArgumentError(f"{name} must be a number or have {dims} entries, one per axis; got {value!r}")
    if not all(map(math.isfinite, values)):
        raise ArgumentError(f"{name} must be finite; got {value!r}")
    return values


def positive(name: str, value: float) -> float:
    """Return `value` as a float; it must be finite and greater than 0."""
    try:
        finite = math.isfinite(value)
    except TypeError:
        raise ArgumentTypeError(f"{name} must be a number; got {value!r}") from None
    if not (finite and value > 0):
        raise ArgumentError(f"{name} must be positive; got {value}")
    return float(value)


def positive_int(name: str, value: int) -> int:
    """Return `value` as an int; it must be an integer of at least 1."""
    number = as_int(value)
    if number is None:
        raise ArgumentTypeError(f"{name} must be an int; got {value!r}")
    if number < 1:
        raise ArgumentError(f"{name} must be at least 1; got {value}")
    return number


def as_options(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a mapping of options; None means no options."""
    if not isinstance(value, Mapping | None):
        raise ArgumentTypeError(f"{name} must be a mapping of options to values; got {value!r}")
    return dict(value or {})


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Raise `ArgumentError` unless `name` is one of the known names."""
    known = list(known)
    if name not in known:  # in a list: `name` may come from a recipe and have no hash
        unknown_name(what, name, known)


def unknown_name(what: str, name: object, known: Iterable[str], *, of: str = "") -> NoReturn:
    """Raise `ArgumentError` for an unknown name and suggest the most similar known one.

    `of` says where it is unknown: unknown_name("key", "lrr", keys, of="of optim") → "unknown key 'lrr' of optim: …".
    """
    known = sorted(known)
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), spelled, n=1)
    hint = f"; did you mean {spelled[near[0]]!r}?" if near else ""
    where = f" {of}" if of else ""
    raise ArgumentError(f"unknown {what} {name!r}{where}: choose one of {', '.join(map(repr, known))}{hint}")
