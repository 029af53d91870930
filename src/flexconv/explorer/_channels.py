"""Which channels of which layer go into the page: as many as a budget of numbers allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..nn import FlexConvNd
from ..sampling import spread

Channels = tuple[list[int], list[int]]  # of the output; of the input, counted within a group

MOST = 8  # channels per side: more thumbnails than 8 × 8 are too small to see
BUDGET = 1_600_000  # numbers in all; 8/3 characters each


def choose_channels(layers: Sequence[FlexConvNd], costs: Sequence[int], *, budget: int = BUDGET) -> list[Channels]:
    """Channels per layer, spread evenly; costs are the numbers that one pair of channels of each layer takes.

    What small layers leave of their share goes to the larger ones. Every layer shows at least one pair.
    """
    chosen: dict[int, Channels] = {}
    for left, index in zip(range(len(layers), 0, -1), sorted(range(len(layers)), key=costs.__getitem__), strict=True):
        layer, cost = layers[index], max(costs[index], 1)
        chosen[index] = _spread(layer, budget // left // cost)
        budget -= cost * math.prod(map(len, chosen[index]))
    return [chosen[index] for index in range(len(layers))]


def _spread(layer: FlexConvNd, pairs: int) -> Channels:
    """At most so many pairs, as many rows as columns where possible; at least one."""
    ins = min(MOST, layer.in_channels // layer.groups, max(1, math.isqrt(max(pairs, 0))))
    outs = min(MOST, layer.out_channels, max(1, pairs // ins))
    return spread(outs, layer.out_channels), spread(ins, layer.in_channels // layer.groups)
