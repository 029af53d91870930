"""Refresh the kernel sizes of a whole model at once."""

from __future__ import annotations

from torch import nn

from ._conv import FlexConvNd
from ._extent import refresh


def refresh_extents(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Update the kernel sizes of all FlexConvs of a model, with one copy to the host. Returns sizes by layer name.

    Call it after each optimizer step if the model is compiled. A compiled model computes the whole grid until this is
    called, and then uses these sizes until the next call, so call it whenever the weights have changed. Eager code does
    not need it: every layer notices that its mask has changed and updates its size by itself.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, FlexConvNd)}
    refresh((name or type(m).__name__, m._extent, s) for name, m in layers.items() if (s := m.size_source) is not None)
    return {name: module.extent for name, module in layers.items()}
