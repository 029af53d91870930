"""Read arrays from .npz files and pickles. A pickle can neither execute code nor refer to memory."""

from __future__ import annotations

import math
import pickle
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ._files import DamagedDataError

_DTYPE = re.compile(r"([|<>=]?)(b1|[iu][1248]|f[248])")  # no objects, whose values are addresses in memory


class _ArraysOnly(pickle._Unpickler):
    """Reads arrays, numbers of NumPy and plain values.

    This is the reader of the standard library that is written in Python. The other one makes room for as many objects
    as a file announces: twelve bytes could use all memory.

    NumPy's own constructors are never called, because they trust their arguments: they would take addresses from the
    file. The classes and functions below replace them and check everything.
    """

    def find_class(self, module: str, name: str) -> Any:
        replacement = _REPLACEMENTS.get((module.replace("numpy._core", "numpy.core"), name))
        if replacement is None:
            raise pickle.UnpicklingError(
                f"the pickle refers to {module}.{name}, which is not allowed in a file of arrays"
            )
        return _Constructor(replacement)


class _Constructor:
    """A function that a pickle may call but not change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the pickle changes a constructor")


class _DType:
    """A dtype of numbers: its name, then its byte order as a state."""

    def __init__(self, name: str, *_: object) -> None:
        match = _DTYPE.fullmatch(_text(name))
        if match is None:
            raise pickle.UnpicklingError(f"arrays of dtype {name!r:.40} are not allowed: only numbers are")
        self.order, self.name = match.groups()

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) > 1 and _text(state[1]) in ("<", ">", "|", "=")):
            raise pickle.UnpicklingError("the byte order of an array is undefined")
        self.order = _text(state[1])


class _Array:
    """An array that is filled by its state: version, shape, dtype, whether it is in Fortran order, values."""

    def __init__(self, *_: object) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("the state of an array must have 5 entries")
        _, shape, dtype, fortran, values = state
        self.value = _array(values, dtype, shape, "F" if fortran else "C")


def _array(values: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(dtype, _DType):
        raise pickle.UnpicklingError(f"the dtype of an array is a {type(dtype).__name__}")
    if isinstance(values, str):  # bytes of Python 2
        values = values.encode("latin1")
    if not isinstance(values, bytes | bytearray):
        raise pickle.UnpicklingError(f"the values of an array are a {type(values).__name__}, expected bytes")
    if not (isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)) or order not in ("C", "F"):
        raise pickle.UnpicklingError(f"the shape of an array is {shape!r:.40} in the order {order!r:.40}")
    plain = np.dtype(dtype.order + dtype.name)
    if math.prod(shape) * plain.itemsize != len(values):
        raise pickle.UnpicklingError(f"an array of shape {shape} and {plain} cannot consist of {len(values)} bytes")
    return np.frombuffer(values, plain).reshape(shape, order=order)


def _scalar(dtype: Any, value: Any) -> Any:
    return _array(value, dtype, ())[()]


def _encode(text: Any, encoding: Any = "utf-8") -> bytes:
    if not (isinstance(text, str) and encoding in ("latin1", "utf-8")):
        raise pickle.UnpicklingError("only text in latin1 and UTF-8 can be encoded")
    return text.encode(encoding)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _no_call(*_: object) -> None:
    raise pickle.UnpicklingError("the pickle creates an array without its values")


_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy", "ndarray"): _no_call,  # only an argument of _reconstruct
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # empty bytes in protocol 2
}


# what reading a file can raise that is not an archive or a pickle, or not a complete one
DAMAGE = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, KeyError, IndexError),
    *(OSError, TypeError, AttributeError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError),
    RuntimeError,  # an encrypted archive, or one with features that zipfile does not implement
)


def load_arrays(path: Path) -> dict[str, Any]:
    """Read the named arrays of an .npz file, or a pickled dictionary of arrays and plain values."""
    if path.suffix.lower() == ".npz":
        return _load_archive(path)
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
    except DAMAGE as error:
        raise DamagedDataError(
            f"{path}: cannot be read: {error}; the file is truncated or not the published one"
        ) from error
    if not isinstance(content, dict):
        raise DamagedDataError(f"{path}: contains a {type(content).__name__}, expected a dictionary of arrays")
    return {_text(name): value.value if isinstance(value, _Array) else value for name, value in content.items()}


def _load_archive(path: Path) -> dict[str, Any]:
    """Read the named arrays of an .npz file. Arrays of Python objects, which are pickles, are rejected."""
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and advise to load that
        raise DamagedDataError(
            f"{path}: cannot be read: it is truncated, or not an .npz file; numpy.savez writes such files"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DAMAGE as error:
        raise DamagedDataError(
            f"{path}: cannot be read: {error}; expected arrays of numbers or strings, as numpy.savez writes them"
        ) from error
