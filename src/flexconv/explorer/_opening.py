"""The layer on which the page opens: the one that shows best what was learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def opening(networks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The name of the most telling layer of the first network, and the reason: {"layer": "stem", "reason": "…"}.

    With a training history, it is the layer whose number of taps changed by the largest factor. Without one, or if no
    size changed, it is the layer with the most taps. The first of several equal layers is chosen. Of two networks, only
    the layers that both have are considered, if there are any.
    """
    first, *others = networks
    shared = {layer["name"] for other in others for layer in other["layers"]}
    layers = [layer for layer in first["layers"] if layer["name"] in shared] or first["layers"]
    where = " in A" if others else ""
    if changes := _changes(layers, first["history"] or {"sizes": {}}):
        name = max(changes, key=lambda each: changes[each][0])
        _, start, end = changes[name]
        grew = "grew" if math.prod(end) > math.prod(start) else "shrank"
        which = "the kernels that both networks have" if others and shared else "all kernels"
        reason = f"Of {which}, this one {grew} most in training{where}, from {_times(start)} to {_times(end)} taps."
        return {"layer": name, "reason": reason}
    largest = max(layers, key=lambda layer: math.prod(layer["extent"]))
    if len({tuple(layer["extent"]) for layer in layers}) == 1:
        return {"layer": largest["name"], "reason": ""}
    return {"layer": largest["name"], "reason": f"This is the largest kernel{where}, {_times(largest['extent'])} taps."}


def _changes(
    layers: Sequence[Mapping[str, Any]], history: Mapping[str, Any]
) -> dict[str, tuple[float, list[int], list[int]]]:
    """(|log of the factor|, first size, last size) of the layers whose number of taps changed, by their name."""
    changes = {}
    for layer in layers:
        sizes = [size for size in history["sizes"].get(layer["name"], []) if size]
        if sizes and math.prod(sizes[0]) != math.prod(sizes[-1]):
            factor = abs(math.log(math.prod(sizes[-1]) / math.prod(sizes[0])))
            changes[layer["name"]] = (factor, sizes[0], sizes[-1])
    return changes


def _times(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes))
