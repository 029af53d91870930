"""The launches of the Triton kernels for `fused_sampler.py`: what they need besides tensors, and what they fill."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..nn import mesh
from ..nn._grid import Axis
from ..nn._scaled_mask import RATE
from .launches import Launch

LAUNCHES = 4096  # that are kept, of each kernel

Optional = torch.Tensor | None


class Grid:
    """The taps of a window: coordinates of all axes, one after the other, and constants for the mask [D, 4]."""

    def __init__(self, lines: torch.Tensor, limits: torch.Tensor, sizes: tuple[int, ...], axes: Sequence[Axis]) -> None:
        self.lines, self.limits, self.sizes, self.axes = lines, limits, sizes, tuple(axes)
        self.taps, self.dims = math.prod(sizes), len(sizes)
        first, second, third = (1,) * (3 - self.dims) + sizes
        offset = first if self.dims == 3 else 0
        #: the number of taps, and sizes and offsets of the last two axes, as the Triton kernels take them
        self.arguments = self.taps, second, third, offset, offset + (second if self.dims > 1 else 0)

    def points(self) -> torch.Tensor:
        """All taps → [taps, D]."""
        return mesh(self.lines.split(self.sizes)).flatten(1).t()


class MaskSettings(NamedTuple):
    """What a mask is, besides its tensors."""

    form: str
    rotated: bool
    reach: float | None  # distance from the center to the threshold, in σ; None: nothing is cropped
    damping: float


# --- features ---------------------------------------------------------------------------------------------------------


class FeatureKind(NamedTuple):
    """The constants of the kernels for features."""

    dims: int
    hidden: int
    layers: int
    gammas: int
    steerable: bool


def feature_kind(grid: Grid, tensors: Sequence[Optional]) -> FeatureKind:
    mix_weight, gamma = tensors[2], tensors[5]
    assert mix_weight is not None
    layers, hidden, _ = mix_weight.shape
    return FeatureKind(grid.dims, hidden, layers, 0 if gamma is None else gamma.shape[-1], tensors[6] is not None)


def feature_options(kind: FeatureKind, taps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants and options of a launch."""
    from .fused_sampler_triton import padded_width, taps_per_program

    block = taps_per_program(kind.hidden, taps)
    constants = {
        "D": kind.dims,
        "HIDDEN": kind.hidden,
        "RANK": kind.hidden + 1,
        "LAYERS": kind.layers,
        "GAMMAS": kind.gammas,
        "STEERABLE": kind.steerable,
        "TILE": padded_width(kind.hidden),
        "BLOCK": block,
    }
    options = {
        "num_warps": 8 if kind.hidden > 32 else 2 if block == 16 else 4,
        "num_stages": 1,  # more would need more shared memory than there is for wide networks
        "enable_fp_fusion": False,
    }
    return constants, options


@functools.lru_cache(maxsize=LAUNCHES)
def _features_launch(sizes: tuple[int, ...], kind: FeatureKind, keep: bool) -> Launch:
    from .fused_sampler_triton import features_forward

    constants, options = feature_options(kind, sizes[0])
    grid = (-(-sizes[0] // constants["BLOCK"]),)
    return Launch(features_forward, grid, sizes, {**constants, "KEEP": keep}, **options)


@functools.lru_cache(maxsize=LAUNCHES)
def _features_backward_launch(sizes: tuple[int, ...], kind: FeatureKind, numbers: int) -> Launch:
    from .fused_sampler_triton import features_backward

    constants, options = feature_options(kind, sizes[0])
    grid = (-(-sizes[0] // constants["BLOCK"]),)
    return Launch(features_backward, grid, sizes, {**constants, "NUMBERS": numbers}, **options)


def launch_features(grid: Grid, tensors: Sequence[Optional], *, keep: bool) -> tuple[torch.Tensor, Optional]:
    """Features [taps, rank], and the inputs of the hidden maps [layers, taps, hidden] if they are kept."""
    kind = feature_kind(grid, tensors)
    features = grid.lines.new_empty(grid.taps, kind.hidden + 1)
    kept = grid.lines.new_empty(kind.layers, grid.taps, kind.hidden) if keep else None
    _features_launch(grid.arguments, kind, keep)(grid.lines, *_contiguous(tensors), kept, features)
    return features, kept


def launch_features_backward(
    grid: Grid, tensors: Sequence[Optional], kept: torch.Tensor, grad: torch.Tensor
) -> list[Optional]:
    """Gradients of all tensors from that of the features."""
    return split_sums(launch_feature_sums(grid, tensors, kept, grad), tensors)


def launch_feature_sums(
    grid: Grid, tensors: Sequence[Optional], kept: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    """The same gradients, one after the other in one tensor."""
    numbers = sum([t.numel() for t in tensors if t is not None])
    launch = _features_backward_launch(grid.arguments, feature_kind(grid, tensors), numbers)
    programs = launch.grid[0]
    sums = grad.new_empty(programs, numbers)
    launch(grid.lines, *_contiguous(tensors), kept, grad.contiguous(), sums)
    return sums.view(-1) if programs == 1 else sums.sum(0)


def split_sums(sums: torch.Tensor, tensors: Sequence[Optional]) -> list[Optional]:
    """Gradients of tensors from one tensor that contains all of them."""
    pieces = sums.split([0 if t is None else t.numel() for t in tensors])
    return [None if t is None else piece.view(t.shape) for t, piece in zip(tensors, pieces, strict=True)]


# --- masks ------------------------------------------------------------------------------------------------------------


def mask_constants(settings: MaskSettings, dims: int, rank: int) -> dict[str, Any]:
    from .fused_mask_triton import MASK_TAPS
    from .fused_sampler_triton import padded_width

    return {
        "D": dims,
        "SCALED": settings.form == "scaled",
        "AUTHORS": settings.form == "authors",
        "CROPPED": settings.reach is not None,
        "ROTATED": settings.rotated,
        "TILE": padded_width(rank),
        "BLOCK": MASK_TAPS,
    }


@functools.lru_cache(maxsize=LAUNCHES)
def _mask_launch(sizes: tuple[int, ...], settings: MaskSettings, dims: int, rank: int) -> Launch:
    from .fused_mask_triton import MASK_TAPS, mask_forward

    taps, *others = sizes
    numbers = taps, rank, *others, settings.reach or 0.0, RATE
    constants = mask_constants(settings, dims, rank)
    return Launch(mask_forward, (-(-taps // MASK_TAPS),), numbers, constants, enable_fp_fusion=False)


@functools.lru_cache(maxsize=LAUNCHES)
def _mask_backward_launch(
    sizes: tuple[int, ...], settings: MaskSettings, dims: int, rank: int, of_features: bool, of_mask: bool
) -> tuple[Launch, Launch | None]:
    """The launch, and a second one that adds the sums of several programs."""
    from triton import next_power_of_2

    from .fused_mask_triton import COLUMNS, MASK_TAPS, TAPS_OF_ONE_PROGRAM, mask_backward, mask_finish

    taps, *others = sizes
    programs, blocks = -(-taps // MASK_TAPS), 1
    if of_mask and taps <= TAPS_OF_ONE_PROGRAM:
        programs, blocks = 1, next_power_of_2(programs)  # few different numbers, each is compiled
    alone = of_mask and programs == 1
    constants = mask_constants(settings, dims, rank)
    flags = {"OF_FEATURES": of_features, "OF_MASK": of_mask, "FINISH": alone, "COLUMNS": COLUMNS, "BLOCKS": blocks}
    numbers = taps, rank, *others, settings.reach or 0.0, RATE, settings.damping
    launch = Launch(mask_backward, (programs,), numbers, {**constants, **flags}, enable_fp_fusion=False)
    if alone or not of_mask:
        return launch, None
    shared = {name: constants[name] for name in ("D", "SCALED", "AUTHORS")}
    shared |= {"COLUMNS": COLUMNS, "PROGRAMS": next_power_of_2(programs)}
    return launch, Launch(mask_finish, (1,), (programs, RATE, settings.damping), shared)


def launch_mask(
    features: torch.Tensor, grid: Grid, settings: MaskSettings, parameters: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Features [taps, rank] times the mask with these `size_parameters`."""
    basis = torch.empty_like(features)
    launch = _mask_launch(grid.arguments, settings, grid.dims, features.shape[1])
    launch(features, grid.lines, *_mask_tensors(settings, parameters), grid.limits, basis)
    return basis


def launch_mask_backward(
    features: torch.Tensor,
    grid: Grid,
    settings: MaskSettings,
    parameters: Sequence[torch.Tensor],
    grad: torch.Tensor,
    *,
    of_features: bool,
    of_mask: bool,
) -> tuple[Optional, list[Optional]]:
    """The gradient of the features, and those of the parameters of the mask."""
    d_features, sums = launch_mask_sums(
        features, grid, settings, parameters, grad, of_features=of_features, of_mask=of_mask
    )
    if sums is None:
        return d_features, [None] * len(parameters)
    dims = grid.dims
    found: list[Optional] = [sums[:dims], sums[3 : 3 + dims]]
    if settings.form == "scaled":
        found.insert(0, None)  # the start is a constant
    if settings.rotated:
        found.append(sums[6:7])
    return d_features, found


def launch_mask_sums(
    features: torch.Tensor,
    grid: Grid,
    settings: MaskSettings,
    parameters: Sequence[torch.Tensor],
    grad: torch.Tensor,
    *,
    of_features: bool,
    of_mask: bool,
) -> tuple[Optional, Optional]:
    """The gradient of the features, and [8] with those of the mask: 3 numbers, 3 numbers, and the angle."""
    from .fused_mask_triton import COLUMNS

    launch, finish = _mask_backward_launch(grid.arguments, settings, grid.dims, features.shape[1], of_features, of_mask)
    first, second, third, angle = _mask_tensors(settings, parameters)
    d_features = torch.empty_like(features) if of_features else None
    sums = None if finish is None else features.new_empty(launch.grid[0], COLUMNS)
    out = features.new_empty(COLUMNS) if of_mask else None
    launch(grad.contiguous(), features, grid.lines, first, second, third, angle, grid.limits, d_features, sums, out)
    if finish is not None:
        finish(sums, first, second, third, grid.limits, out)
    return d_features, out


def _mask_tensors(settings: MaskSettings, parameters: Sequence[torch.Tensor]) -> tuple[Optional, ...]:
    """Three tensors, and the angle or None."""
    given: list[Optional] = [p.contiguous() for p in parameters]
    angle = given.pop() if settings.rotated else None
    return *given, *(None,) * (3 - len(given)), angle


def _contiguous(tensors: Sequence[Optional]) -> list[Optional]:
    return [None if t is None else t.contiguous() for t in tensors]
