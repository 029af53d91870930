"""The layer on which the page opens: the one that shows best what was learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def opening(layers: Sequence[Mapping[str, Any]], history: Mapping[str, Any] | None) -> dict[str, Any]:
    """The index of the most telling layer, and the reason: {"layer": 4, "reason": "…"}.

    With a training history, it is the layer whose number of taps changed by the largest factor. Without one, or if no
    size changed, it is the layer with the most taps. The first of several equal layers is chosen.
    """
    changes = {} if history is None else _changes(layers, history)
    if changes:
        index = max(changes, key=lambda each: changes[each][0])
        _, first, last = changes[index]
        grew = "grew" if math.prod(last) > math.prod(first) else "shrank"
        reason = f"Of all kernels, this one {grew} most in training, from {_times(first)} to {_times(last)} taps."
        return {"layer": index, "reason": reason}
    index = max(range(len(layers)), key=lambda each: math.prod(layers[each]["extent"]))
    if len({tuple(layer["extent"]) for layer in layers}) == 1:
        return {"layer": index, "reason": ""}
    return {"layer": index, "reason": f"This is the largest kernel, {_times(layers[index]['extent'])} taps."}


def _changes(
    layers: Sequence[Mapping[str, Any]], history: Mapping[str, Any]
) -> dict[int, tuple[float, list[int], list[int]]]:
    """(|log of the factor|, first size, last size) of the layers whose number of taps changed, by their index."""
    changes = {}
    for index, layer in enumerate(layers):
        sizes = [size for size in history["sizes"].get(layer["name"], []) if size]
        if sizes and math.prod(sizes[0]) != math.prod(sizes[-1]):
            factor = abs(math.log(math.prod(sizes[-1]) / math.prod(sizes[0])))
            changes[index] = (factor, sizes[0], sizes[-1])
    return changes


def _times(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes))
