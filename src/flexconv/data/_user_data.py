"""Shared by the readers of the user's own data: find it, and hold out a test set if it has none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from numbers import Real
from pathlib import Path

import torch

from .._files import expand_home
from .._text import printable
from ..errors import ArgumentError, ArgumentTypeError
from ._dataset import Source
from ._files import DamagedDataError, MissingDataError
from ._holdout import stratified_holdout
from ._idx import is_idx
from ._splits import Samples
from ._table_file import is_table

SPLITS = ("train", "validation", "test")
#: How users call the splits, in lower case → split
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
TEST_SHARE, TEST_SEED = 0.2, 0
MAX_LISTED = 8  # entries of a list in messages


def dataset_for(path: str | os.PathLike[str]) -> str:
    """The name of the data set that reads a path: "table", "npz", "idx" or, for any other name, "folder"."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path must be a string (in YAML, quote it if it looks like a number); got {path!r}")
    file = Path(path)
    if is_table(file):
        return "table"
    if is_idx(file):
        return "idx"
    return "npz" if file.suffix.lower() == ".npz" else "folder"


def find(path: str | os.PathLike[str], root: Path, *, option: str = "path") -> Path:
    """`path`, or the same path relative to the data root, whichever exists. `option` names it in messages."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            f"{option} must be a string (in YAML, quote it if it looks like a number); got {path!r}"
        )
    places = [expand_home(path), root / path]
    for place in places:
        if place.exists():
            if not (place.is_file() or place.is_dir()):
                raise DamagedDataError(f"{place} is a device or a pipe, expected a file or a folder")
            return place
    if places[0].is_absolute():
        raise MissingDataError(f"{places[0]} does not exist")
    raise MissingDataError(
        f"{path} does not exist: there is neither {places[0].absolute()} nor {places[1].absolute()}. "
        "Pass the folder that contains it as --root (in Python: root=)"
    )


def assemble(
    parts: dict[str, Samples], class_names: tuple[str, ...], *, test_share: float, scale: float, place: Path
) -> Source:
    """Combine the splits. If there is no test set, `test_share` of the training set becomes the test set.

    The training set must have samples of every class. Classes without samples in another split are noted. `place` is
    the file or the folder of the training set.
    """
    if isinstance(test_share, bool) or not isinstance(test_share, Real) or not 0 < test_share < 1:
        raise ArgumentError(f"data.test_share is the share to hold out, between 0 and 1; got {test_share!r}")
    if len(class_names) < 2:
        raise DamagedDataError(
            f"{place}: the only class is {listed(class_names)}; a classifier needs at least two classes"
        )
    train, test = parts["train"], parts.get("test")
    if test is None:
        _check_two_of_each(train, class_names, place)
        kept, held = stratified_holdout(train.labels, test_share, seed=TEST_SEED)
        train, test = train.rows(kept), train.rows(held)
    note = "; ".join(
        filter(None, (_missing_classes(part, parts[part], class_names) for part in SPLITS if part in parts))
    )
    return Source(train, test, class_names, validation=parts.get("validation"), scale=scale, note=note)


def _check_two_of_each(train: Samples, class_names: tuple[str, ...], place: Path) -> None:
    """Raise an error if a test set cannot be held out because a class has one sample only."""
    counts = torch.bincount(train.labels, minlength=len(class_names))
    if int(counts.min()) < 2:
        raise DamagedDataError(
            f"{place}: class {class_names[int(counts.argmin())]!r} ({len(class_names):,} classes in all) has one "
            "sample, so no test set can be held out; add samples, remove the class, or provide a test set"
        )


def listed(names: Iterable[object]) -> str:
    """Names for a message in one line, at most `MAX_LISTED` of them."""
    first = [printable(str(name), one_line=True) for name in islice(names, MAX_LISTED + 1)]
    return ", ".join(first[:MAX_LISTED]) + (", …" if len(first) > MAX_LISTED else "")


def _missing_classes(part: str, samples: Samples, class_names: tuple[str, ...]) -> str:
    """A note on the classes that have no samples in a split; empty if there are none."""
    present = set(samples.labels.tolist())
    missing = [name for label, name in enumerate(class_names) if label not in present]
    return f"the {part} set has no samples of {listed(missing)}" if missing else ""
