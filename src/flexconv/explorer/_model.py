"""The numbers that the page shows about a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .. import sampling
from .._multiply_adds import usual_input
from ..resolution import at_resolution
from ..summary import summarize
from ._channels import BUDGET, choose_channels
from ._layer import layer_numbers, numbers_per_pair

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # resolutions, relative to that of the model


@torch.no_grad()
def model_numbers(
    model: nn.Module, *, input_shape: Sequence[int] | None = None, budget: int = BUDGET
) -> dict[str, Any]:
    """The numbers of a model, ready for JSON.

    {"architecture", "parameters", "input": [sizes] or None, "scales", "layers": [see `layer_numbers`]}
    """
    sampling.flexconv_layers(model, "write_page")  # raises an error for models that cannot be shown
    shape = usual_input(model) if input_shape is None else input_shape
    summaries = summarize(model, input_shape=shape)
    versions = [list(sampling.flexconv_layers(_at(model, scale), "write_page").values()) for scale in SCALES]
    per_layer = list(zip(*versions, strict=True))
    own = versions[SCALES.index(1.0)]
    costs = [sum(map(numbers_per_pair, each)) for each in per_layer]
    return {
        "architecture": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "input": None if shape is None else list(shape[2:]),
        "scales": SCALES,
        "layers": [
            layer_numbers(summary, layer, each, channels)
            for summary, layer, each, channels in zip(
                summaries, own, per_layer, choose_channels(own, costs, budget=budget), strict=True
            )
        ],
    }


def _at(model: nn.Module, scale: float) -> nn.Module:
    return model if scale == 1.0 else at_resolution(model, scale, copy=False)
