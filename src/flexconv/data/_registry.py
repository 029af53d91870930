"""The data sets by name."""

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
    _imagenet,
    _kodak,
    _mnist,
    _npz,
    _speech_commands,
    _stl10,
)
from ._dataset import Dataset
from ._files import DamagedDataError, MissingDataError, damage, missing

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
)
_DATASETS: dict[str, Dataset] = {dataset.name: dataset for reader in _READERS for dataset in reader.DATASETS}
_ALWAYS = ("protocol", "seed", "verify")  # what every reader is told


def list_datasets() -> list[str]:
    """Names that `load` takes."""
    return list(_DATASETS)


def dataset(name: str) -> Dataset:
    """What the registry knows about a set: title, kind, licence, citation, files, downloads."""
    if name not in _DATASETS:
        unknown_name("data set", name, _DATASETS)
    return _DATASETS[name]


def options(name: str) -> dict[str, Any]:
    """The options of a data set beyond those of `load`, with their defaults; `inspect.Parameter.empty`: required."""
    parameters = inspect.signature(dataset(name).read).parameters
    return {k: p.default for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY and k not in _ALWAYS}


def require(chosen: Dataset, folder: Path, described: str, *, verify: bool) -> None:
    """Refuse to go on without all files, whole."""
    files = chosen.files_in(folder)
    way = f"Run: flexconv data fetch {chosen.name}" if chosen.downloads else chosen.instructions
    absent = missing(folder, files)
    if absent:
        listed = ", ".join(absent[:6]) + (f" and {len(absent) - 6} more" if len(absent) > 6 else "")
        raise MissingDataError(f"{chosen.name} is not in {described}: no {listed}. {way}")
    problems = damage(folder, files) if verify else []
    if problems:
        raise DamagedDataError(
            f"{chosen.name} is damaged: {'; '.join(problems)}. Delete what is named, then get it again. {way}"
        )
