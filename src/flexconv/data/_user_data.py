"""Shared by the readers of the user's own data: find it, and hold out a test set if it has none."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ArgumentTypeError
from ._dataset import Source
from ._files import MissingDataError
from ._holdout import stratified_holdout
from ._splits import Samples

SPLITS = ("train", "validation", "test")
TEST_SHARE, TEST_SEED = 0.2, 0
MAX_LISTED = 8  # entries of a list in messages


def find(path: str | os.PathLike[str], root: Path) -> Path:
    """`path`, or the same path relative to the data root, whichever exists."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path must be a string (in YAML, quote it if it looks like a number); got {path!r}")
    places = [Path(path).expanduser(), root / path]
    for place in places:
        if place.exists():
            return place
    if places[0].is_absolute():
        raise MissingDataError(f"{places[0]} does not exist")
    raise MissingDataError(
        f"{path} does not exist: there is neither {places[0].absolute()} nor {places[1].absolute()}. "
        "Pass the folder that contains it as --root (in Python: root=)"
    )


def assemble(parts: dict[str, Samples], class_names: tuple[str, ...], *, test_share: float, scale: float) -> Source:
    """Combine the splits. If there is no test set, `test_share` of the training set becomes the test set.

    The training set must have samples of every class. Classes without samples in another split are noted.
    """
    train, test = parts["train"], parts.get("test")
    if test is None:
        kept, held = stratified_holdout(train.labels, test_share, seed=TEST_SEED)
        train, test = train.rows(kept), train.rows(held)
    note = "; ".join(
        filter(None, (_missing_classes(part, parts[part], class_names) for part in SPLITS if part in parts))
    )
    return Source(train, test, class_names, validation=parts.get("validation"), scale=scale, note=note)


def _missing_classes(part: str, samples: Samples, class_names: tuple[str, ...]) -> str:
    """A note on the classes that have no samples in a split; empty if there are none."""
    present = set(samples.labels.tolist())
    missing = [name for label, name in enumerate(class_names) if label not in present]
    more = ", …" if len(missing) > MAX_LISTED else ""
    return f"the {part} set has no samples of {', '.join(missing[:MAX_LISTED])}{more}" if missing else ""
