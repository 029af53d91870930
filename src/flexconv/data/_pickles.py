"""Arrays out of .npz files and of pickles, without letting a pickle run anything."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ._files import DamagedDataError

# All that a pickle of numpy arrays needs: it may build arrays, and nothing else.
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
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no file of arrays needs")
        return super().find_class(module.replace("numpy.core", "numpy._core") if _new_numpy() else module, name)


def load_arrays(path: Path) -> dict[str, Any]:
    """Named arrays of an .npz file, or a pickled dictionary of arrays and plain values."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, ValueError, KeyError, IndexError, OSError) as error:
        raise DamagedDataError(f"{path}: cannot be read: {error}; truncated, or not the published file") from error
    if not isinstance(content, dict):
        raise DamagedDataError(f"{path}: holds a {type(content).__name__}, expected a dictionary of arrays")
    return {name.decode() if isinstance(name, bytes) else str(name): value for name, value in content.items()}


def _new_numpy() -> bool:
    return int(np.__version__.split(".")[0]) >= 2
