"""Records of a training run: dictionaries with a count and numbers, which are named metric or split_metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Record = Mapping[str, object]

COUNTS = ("epoch", "step")  # the keys that number the records
SPLITS = ("train", "validation", "val", "valid", "test")
FIRST = ("loss", "accuracy")  # metrics that are listed first


def counted_in(records: Sequence[Record]) -> str | None:
    """The count that every record has; None if there is none."""
    return next((name for name in COUNTS if all(name in record for record in records)), None)


def metrics_by_split(records: Sequence[Record]) -> dict[str, dict[str, str]]:
    """The key of every metric and split: {"loss": {"train": "train_loss"}}. Loss and accuracy come first.

    A metric whose key names no split has the split "".
    """
    found: dict[str, dict[str, str]] = {}
    for key in dict.fromkeys(key for record in records for key in record if key not in COUNTS):
        if any(is_number(record.get(key)) for record in records):
            split, _, metric = key.partition("_")
            split, metric = (split, metric) if split in SPLITS and metric else ("", key)
            found.setdefault(metric, {})[split] = key
    return dict(sorted(found.items(), key=lambda item: FIRST.index(item[0]) if item[0] in FIRST else len(FIRST)))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
