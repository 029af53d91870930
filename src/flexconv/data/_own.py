"""What the readers of the user's own data share: finding it, and a test part where it brings none."""

from __future__ import annotations

import os
from pathlib import Path

from ._dataset import Source
from ._files import MissingDataError
from ._holdout import stratified_holdout
from ._splits import Samples

PARTS = ("train", "validation", "test")
TEST_SHARE, TEST_SEED = 0.2, 0


def find(path: str | os.PathLike[str], root: Path) -> Path:
    """`path` as it is, or below the data root."""
    places = [Path(path).expanduser(), root / path]
    for place in places:
        if place.exists():
            return place
    raise MissingDataError(f"{path} is neither {places[0].absolute()} nor {places[1].absolute()}")


def assemble(parts: dict[str, Samples], class_names: tuple[str, ...], *, test_share: float, scale: float) -> Source:
    """Parts by name → Source; `test_share` of the training part becomes the test part where there is none."""
    train, test = parts["train"], parts.get("test")
    if test is None:
        kept, held = stratified_holdout(train.labels, test_share, seed=TEST_SEED)
        train, test = train.rows(kept), train.rows(held)
    return Source(train, test, class_names, validation=parts.get("validation"), scale=scale)
