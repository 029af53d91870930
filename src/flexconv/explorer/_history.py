"""The metrics and kernel sizes of a training run, as series of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._records import Record, counted_in, is_number, metrics_by_split


def history(records: Sequence[Record]) -> dict[str, Any] | None:
    """Convert records of a training run to series. Returns None if the records have neither an epoch nor a step.

    The result has the form
    {"count": "epoch", "at": [1, 2], "metrics": {"loss": {"train": [1.5, 0.9]}}, "sizes": {"stem": [[5, 7], [5, 7]]}}.
    Missing values and values that are not finite are None.
    """
    records = list(records)
    count = counted_in(records) if records else None
    if count is None:
        return None
    metrics: dict[str, dict[str, list[float | None]]] = {}
    for metric, splits in metrics_by_split(records).items():
        series = {split: [_finite(record.get(key)) for record in records] for split, key in splits.items() if split}
        if drawable := {split: values for split, values in series.items() if any(v is not None for v in values)}:
            metrics[metric] = drawable
    sizes = [record.get("sizes") for record in records]
    known = [each if isinstance(each, dict) else {} for each in sizes]
    names = dict.fromkeys(name for each in known for name in each)
    return {
        "count": count,
        "at": [record[count] for record in records],
        "metrics": metrics,
        "sizes": {name: [each.get(name) for each in known] for name in names},
    }


def _finite(value: object) -> float | None:
    return float(f"{value:.6g}") if is_number(value) and math.isfinite(value) else None  # type: ignore[arg-type, str-format]
