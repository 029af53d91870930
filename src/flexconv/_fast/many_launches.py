"""The launches of `fused_many_triton.py`: features and masks of many layers on the same taps."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from ..nn._scaled_mask import RATE
from .launches import Launch
from .sampler_launches import LAUNCHES, FeatureKind, Grid, MaskSettings, feature_options, mask_constants


@functools.lru_cache(maxsize=LAUNCHES)
def _features_launch(sizes: tuple[int, ...], kind: FeatureKind, layers: int, numbers: int, backward: bool) -> Launch:
    from .fused_many_triton import many_features_backward, many_features_forward

    constants, options = feature_options(kind, sizes[0])
    grid = -(-sizes[0] // constants["BLOCK"]), layers
    kernel = many_features_backward if backward else many_features_forward
    return Launch(kernel, grid, sizes, {**constants, "NUMBERS": numbers}, **options)


def launch_features(grid: Grid, packed: torch.Tensor, kind: FeatureKind) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [layers, taps, rank], and what their gradients need, from packed parameters [layers, numbers]."""
    layers, numbers = packed.shape
    features = packed.new_empty(layers, grid.taps, kind.hidden + 1)
    kept = packed.new_empty(layers, kind.layers, grid.taps, kind.hidden)
    launch = _features_launch(grid.arguments, kind, layers, numbers, backward=False)
    launch(grid.lines, packed, kept, features)
    return features, kept


def launch_features_backward(
    grid: Grid, packed: torch.Tensor, kind: FeatureKind, kept: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    """The gradient of the packed parameters."""
    layers, numbers = packed.shape
    launch = _features_launch(grid.arguments, kind, layers, numbers, backward=True)
    sums = packed.new_empty(layers, launch.grid[0], numbers)
    launch(grid.lines, packed, kept, grad, sums)
    return sums.sum(1)


class _MaskLaunches(NamedTuple):
    forward: Launch
    backward: Launch
    finish: Launch


@functools.lru_cache(maxsize=LAUNCHES)
def _mask_launches(
    sizes: tuple[int, ...], settings: MaskSettings, dims: int, rank: int, layers: int, numbers: int
) -> _MaskLaunches:
    from triton import next_power_of_2

    from .fused_many_triton import many_masks_backward, many_masks_finish, many_masks_forward
    from .fused_mask_triton import COLUMNS, MASK_TAPS

    taps, *others = sizes
    programs = -(-taps // MASK_TAPS)
    constants = {**mask_constants(settings, dims, rank), "NUMBERS": numbers}
    given = taps, rank, *others, settings.reach or 0.0, RATE
    grid = programs, layers
    shared = {name: constants[name] for name in ("D", "SCALED", "AUTHORS", "NUMBERS")}
    shared |= {"COLUMNS": COLUMNS, "PROGRAMS": next_power_of_2(programs)}
    return _MaskLaunches(
        Launch(many_masks_forward, grid, given, constants, enable_fp_fusion=False),
        Launch(many_masks_backward, grid, given, {**constants, "COLUMNS": COLUMNS}, enable_fp_fusion=False),
        Launch(many_masks_finish, (layers,), (programs, RATE), shared),
    )


def launch_masks(features: torch.Tensor, grid: Grid, settings: MaskSettings, packed: torch.Tensor) -> torch.Tensor:
    """Features [layers, taps, rank] times the masks with packed parameters [layers, numbers]."""
    basis = torch.empty_like(features)
    layers, numbers = packed.shape
    launches = _mask_launches(grid.arguments, settings, grid.dims, features.shape[2], layers, numbers)
    launches.forward(features, grid.lines, packed, grid.limits, basis)
    return basis


def launch_masks_backward(
    features: torch.Tensor,
    grid: Grid,
    settings: MaskSettings,
    packed: torch.Tensor,
    damping: torch.Tensor,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the features and of the packed parameters. `damping` [layers] is that of scaled masks."""
    from .fused_mask_triton import COLUMNS

    layers, numbers = packed.shape
    launches = _mask_launches(grid.arguments, settings, grid.dims, features.shape[2], layers, numbers)
    d_features = torch.empty_like(features)
    sums = features.new_empty(layers, launches.backward.grid[0], COLUMNS)
    out = features.new_empty(layers, COLUMNS)
    launches.backward(grad, features, grid.lines, packed, grid.limits, d_features, sums)
    launches.finish(sums, packed, damping, grid.limits, out)
    return d_features, pack_mask_sums(out, grid.dims, settings)


def pack_mask_sums(out: torch.Tensor, dims: int, settings: MaskSettings) -> torch.Tensor:
    """Gradients [layers, 8] of two numbers per axis and the angle, in the order of packed parameters."""
    parts = [out[:, :dims], out[:, 3 : 3 + dims]]
    if settings.form == "scaled":
        parts.insert(0, out.new_zeros(len(out), 2 * dims))  # the start is a constant
    if settings.rotated:
        parts.append(out[:, 6:7])
    return torch.cat(parts, 1)
