"""Read arrays from .npz files and pickles. A pickle cannot execute code."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ._files import DamagedDataError

# the only objects that a pickle may create: NumPy arrays and what they consist of
_ALLOWED = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    for name in ("_reconstruct", "scalar")
} | {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"the pickle refers to {module}.{name}, which is not allowed in a file of arrays"
            )
        return super().find_class(module.replace("numpy.core", "numpy._core") if _has_numpy_2() else module, name)


def load_arrays(path: Path) -> dict[str, Any]:
    """Read the named arrays of an .npz file, or a pickled dictionary of arrays and plain values."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, ValueError, KeyError, IndexError, OSError) as error:
        raise DamagedDataError(
            f"{path}: cannot be read: {error}; the file is truncated or not the published one"
        ) from error
    if not isinstance(content, dict):
        raise DamagedDataError(f"{path}: contains a {type(content).__name__}, expected a dictionary of arrays")
    return {name.decode() if isinstance(name, bytes) else str(name): value for name, value in content.items()}


def _has_numpy_2() -> bool:
    return int(np.__version__.split(".")[0]) >= 2
