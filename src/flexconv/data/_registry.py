"""All data sets by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from .._arguments import unknown_name
from . import (
    _character_trajectories,
    _cifar10,
    _digits,
    _folder,
    _idx_pair,
    _imagenet,
    _kodak,
    _mnist,
    _npz,
    _speech_commands,
    _stl10,
    _table,
)
from ._dataset import Dataset
from ._files import DamagedDataError, MissingDataError, find_damage, missing_files

_READERS = (
    _digits,
    _mnist,
    _cifar10,
    _character_trajectories,
    _speech_commands,
    _stl10,
    _imagenet,
    _kodak,
    _folder,
    _npz,
    _table,
    _idx_pair,
)
_DATASETS: dict[str, Dataset] = {dataset.name: dataset for reader in _READERS for dataset in reader.DATASETS}
_COMMON = ("protocol", "seed", "verify")  # arguments of every reader


def list_datasets() -> list[str]:
    """The names that `load` accepts."""
    return list(_DATASETS)


def dataset(name: str) -> Dataset:
    """The description of a data set: title, kind, licence, citation, files, downloads."""
    if name not in _DATASETS:
        unknown_name("data set", name, _DATASETS)
    return _DATASETS[name]


def options(name: str) -> dict[str, Any]:
    """The options of a data set in addition to the arguments of `load`: name → default.

    The default of a required option is `inspect.Parameter.empty`.
    """
    parameters = inspect.signature(dataset(name).read).parameters
    return {k: p.default for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY and k not in _COMMON}


def check_files(chosen: Dataset, folder: Path, described: str, *, verify: bool) -> None:
    """Raise an error if files of a data set are missing or damaged."""
    files = chosen.files_in(folder)
    remedy = f"Run: flexconv data fetch {chosen.name}" if chosen.downloads else chosen.instructions
    absent = missing_files(folder, files)
    if absent:
        listed = ", ".join(absent[:6]) + (f" and {len(absent) - 6} more" if len(absent) > 6 else "")
        raise MissingDataError(f"{chosen.name} is not in {described}: there is no {listed}. {remedy}")
    problems = find_damage(folder, files) if verify else []
    if problems:
        raise DamagedDataError(
            f"{chosen.name} is damaged: {'; '.join(problems)}. Delete these files and get them again. {remedy}"
        )
