"""What the readers of the user's own data share: finding it, and a test part where it brings none."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ArgumentTypeError
from ._dataset import Source
from ._files import MissingDataError
from ._holdout import stratified_holdout
from ._splits import Samples

PARTS = ("train", "validation", "test")
TEST_SHARE, TEST_SEED = 0.2, 0
SHOWN = 8  # of a long list, in messages


def find(path: str | os.PathLike[str], root: Path) -> Path:
    """`path` as it is, or below the data root."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"path must be text (in YAML, in quotes where it looks like a number); got {path!r}")
    places = [Path(path).expanduser(), root / path]
    for place in places:
        if place.exists():
            return place
    if places[0].is_absolute():
        raise MissingDataError(f"there is no {places[0]}")
    raise MissingDataError(
        f"{path} is neither {places[0].absolute()} nor {places[1].absolute()}: "
        "give the folder that it lies in as --root (in Python, root=)"
    )


def assemble(parts: dict[str, Samples], class_names: tuple[str, ...], *, test_share: float, scale: float) -> Source:
    """Parts by name → Source; `test_share` of the training part becomes the test part where there is none.

    The training part has samples of every class; classes that another part lacks are noted.
    """
    train, test = parts["train"], parts.get("test")
    if test is None:
        kept, held = stratified_holdout(train.labels, test_share, seed=TEST_SEED)
        train, test = train.rows(kept), train.rows(held)
    note = "; ".join(filter(None, (_lacking(part, parts[part], class_names) for part in PARTS if part in parts)))
    return Source(train, test, class_names, validation=parts.get("validation"), scale=scale, note=note)


def _lacking(part: str, samples: Samples, class_names: tuple[str, ...]) -> str:
    there = set(samples.labels.tolist())
    lacking = [name for label, name in enumerate(class_names) if label not in there]
    more = ", …" if len(lacking) > SHOWN else ""
    return f"the {part} part has no samples of {', '.join(lacking[:SHOWN])}{more}" if lacking else ""
