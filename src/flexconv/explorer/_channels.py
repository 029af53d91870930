"""Select the channels of each layer that the page shows, within a budget for the size of the file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..nn import FlexConvNd
from ..sampling import spread

Channels = tuple[list[int], list[int]]  # output channels; input channels, counted within a group

MAX_CHANNELS = 8  # of inputs and of outputs, because more than 8 × 8 thumbnails would be too small to see
BUDGET = 1_600_000  # numbers in the whole page; each takes 8/3 characters


def choose_channels(layers: Sequence[FlexConvNd], costs: Sequence[int], *, budget: int = BUDGET) -> list[Channels]:
    """The channels to show for each layer, spread evenly. Every layer shows at least one pair of channels.

    `costs` gives, for each layer, how many numbers one pair of channels takes. All layers have an equal share of the
    budget. If a small layer needs less than its share, larger layers use the rest.
    """
    chosen: dict[int, Channels] = {}
    by_cost = sorted(range(len(layers)), key=costs.__getitem__)
    for remaining, index in zip(range(len(layers), 0, -1), by_cost, strict=True):
        layer, cost = layers[index], max(costs[index], 1)
        chosen[index] = _channels(layer, budget // remaining // cost)
        budget -= cost * math.prod(map(len, chosen[index]))
    return [chosen[index] for index in range(len(layers))]


def _channels(layer: FlexConvNd, pairs: int) -> Channels:
    """At most `pairs` pairs of channels, but at least one; about as many inputs as outputs."""
    ins = min(MAX_CHANNELS, layer.in_channels // layer.groups, max(1, math.isqrt(max(pairs, 0))))
    outs = min(MAX_CHANNELS, layer.out_channels, max(1, pairs // ins))
    return spread(outs, layer.out_channels), spread(ins, layer.in_channels // layer.groups)
