"""Which layers have a kernel that is one basis for all channels times an output map."""

from __future__ import annotations

from torch import nn

from .._hooks import hooks_of
from ..nn import FlexConvNd


def has_shared_factors(layer: FlexConvNd) -> bool:
    """Whether the kernel has factors that all its channels share, and no subclass or hook computes it otherwise."""
    return has_factors(layer) and not has_hooks(layer.mask)


def has_factors(layer: FlexConvNd) -> bool:
    """The same, apart from hooks of the mask."""
    per_channel = layer.mask is not None and layer.mask.per_channel  # then channels have no basis in common
    generator = layer.generator
    return generator.output_map is not None and generator.has_factors and not _overrides(layer) and not per_channel


def has_hooks(module: nn.Module | None) -> bool:
    """Whether a module has hooks."""
    return module is not None and bool(hooks_of(module))


def _overrides(layer: FlexConvNd) -> bool:
    """Whether a subclass samples its kernel in another way."""
    cls = type(layer)
    return cls.sample is not FlexConvNd.sample or cls.coordinates is not FlexConvNd.coordinates
