"""The accuracy of a network, from the results or the records of its run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .._records import Record, is_number


def accuracy(records: Sequence[Record], results: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The accuracy that the heading states, or None if it is not known.

    {"value": 0.986, "split": "test", "samples": 360 or None, "epoch": 14 or None, "chosen": see `_chosen`}. The test
    accuracy of a finished run comes first. Without one, it is {"text": the accuracy as a model card states it}, the
    accuracy of the epoch that was selected, or the last test or validation accuracy of the records.
    """
    if results is not None and _is_share(results.get("test_accuracy")):
        return {
            "value": results["test_accuracy"],
            "split": "test",
            "samples": results.get("test_count"),
            **_chosen(results),
        }
    if results is not None and isinstance(results.get("accuracy"), str):
        return {"text": results["accuracy"]}
    best = {} if results is None else _best(results)
    if results is not None and _is_share(best.get("accuracy")):
        return {"value": best["accuracy"], "split": results["selected"], "samples": None, **_chosen(results)}
    for record in reversed(records):
        for split in ("test", "validation", "val", "valid"):
            if _is_share(value := record.get(f"{split}_accuracy")):
                name = "test" if split == "test" else "validation"
                epoch = record.get("epoch")
                return {"value": value, "split": name, "samples": None, "epoch": epoch, "chosen": "so far"}
    return None


def _chosen(results: Mapping[str, Any]) -> dict[str, Any]:
    """The epoch of the weights, and how it was chosen: "last", or the split on which it was the best."""
    selected = results.get("selected")
    if best := _best(results):
        return {"epoch": best.get("epoch"), "chosen": selected}
    return {"epoch": results.get("epochs"), "chosen": "last" if selected == "last" else None}


def _best(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """The epoch that was selected on the validation or the test set, with its accuracy; empty if none was."""
    best = results.get("best")
    return best if results.get("selected") in ("validation", "test") and isinstance(best, Mapping) else {}


def _is_share(value: object) -> bool:
    return is_number(value) and math.isfinite(value) and 0 <= value <= 1  # type: ignore[arg-type, operator]
