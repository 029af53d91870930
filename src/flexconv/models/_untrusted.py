"""Checks of networks from files that anybody may have written, before they are built and used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError


def check_sizes(where: str, config: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    """Raise for a network with more layers or channels than its weights have, which could take hours to build."""
    tensors, numbers = len(state), sum(tensor.numel() for tensor in state.values())
    options = config.get("generator_options")
    found = {"depth": config.get("depth"), "layers": options.get("layers") if isinstance(options, dict) else None}
    for name, value in found.items():
        if isinstance(value, int) and value > max(tensors, 8):
            raise ArgumentError(f"{where}: {name} is {value}, but the weights have {tensors} tensors only")
    for name in ("in_channels", "num_classes", "width"):  # every channel and every class has a parameter
        value = config.get(name)
        if isinstance(value, int) and value > numbers:
            raise ArgumentError(f"{where}: {name} is {value}, but the weights have {numbers:,} numbers only")


def check_values(where: str, state: Mapping[str, torch.Tensor]) -> None:
    """Raise for weights with which every result would be NaN."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ArgumentError(f"{where} contains NaN or infinity in {name}: its network cannot be used")
        if name.endswith("running_var") and (tensor < 0).any():
            raise ArgumentError(f"{where} contains a negative variance in {name}: its network cannot be used")
