"""The masked features of a layer's kernel on a GPU, in two launches forward and two back.

    features     h_0 = g_0(x),   h_l = g_l(x) ⊙ (A_l h_{l−1} + a_l),   g = e · sin(W x + b)
                 e = exp(−½ Σ_d (γ_d (x_d − μ_d))²)                    [taps, rank]: h_n, then 1
    basis        features × mask                                       [taps, rank]
    backward     ∂u = ∂h ⊙ g,   ∂A = ∂uᵀ h_{l−1},   ∂a = Σ ∂u,   ∂h_{l−1} = ∂u A,   ∂g = ∂h ⊙ u,   u = A h + a
                 angles  ∂g e cos   exponents  ∂g g

The inputs h_{l−1} of the hidden maps are kept for the backward pass, everything else is computed again. Sums over taps
have a fixed order, so results are reproducible. Kernels with other generators, precisions or masks are left to the
plain version, as are function transforms (`torch.func`) and forward-mode derivatives. A second derivative is computed
by the plain version.
"""

# pyright: reportIndexIssue=false, reportMissingImports=false
from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.autograd import forward_ad

from .._matmul import matmul
from ..nn import FlexConvNd, GaussianMask, RotatedGaussianMask, TapRange
from ..nn._crop import smallest_intervals
from ..nn._extent import Versions
from ..nn._grid import Axis, filled, was_resampled
from ..nn.kernels import GaborNet, KernelGenerator, MultiplicativeFilterNetwork
from .sampler_launches import (
    Grid,
    MaskSettings,
    launch_features,
    launch_features_backward,
    launch_mask,
    launch_mask_backward,
)
from .triton_support import capturing, has_triton

MAX_HIDDEN = 128
MAX_TAPS = 1 << 16  # every program writes sums of all gradients
GRIDS = 256  # windows whose coordinates are kept

Optional = torch.Tensor | None


# --- the basis of a layer's kernel ------------------------------------------------------------------------------------


def fused_basis(layer: FlexConvNd, window: Sequence[TapRange]) -> torch.Tensor | None:
    """The features of a layer under its mask → [*sizes, rank], with the basis of the output map applied.

    None if this layer is not supported. The kernel is the output map's own weight and bias times this.
    """
    found = plan_of(layer, window)
    if found is None:
        return None
    tensors, settings = found
    present = [t for t in tensors if t is not None]
    parameters = () if layer.mask is None else layer.mask.size_parameters()
    if not supported([*present, *parameters]):
        return None
    grid = grid_of(layer, window, present[0].device)
    features = _features_of(layer.generator, grid, tensors, present)
    if layer.mask is not None:
        features = _Masked.apply(features, grid, settings, weakref.ref(layer.mask), *parameters)
    return features.view(*grid.sizes, -1)


def plan_of(
    layer: FlexConvNd, window: Sequence[TapRange]
) -> tuple[tuple[torch.Tensor | None, ...], MaskSettings | None] | None:
    """The tensors of the features and the settings of the mask, if there is one. None if they are not supported."""
    tensors, settings = feature_tensors(layer.generator), None
    if tensors is None or tensors[0] is None or not supports_device(tensors[0]) or tensors[0].dtype != torch.float32:
        return None
    if layer.mask is not None:
        settings = mask_settings(layer.mask, layer.axes)
        if settings is None or (settings.form == "scaled" and layer.mask.start.requires_grad):
            return None
    few = math.prod([stop - start for start, stop in window]) <= MAX_TAPS
    return (tensors, settings) if few else None


def _features_of(
    generator: KernelGenerator, grid: Grid, tensors: Sequence[Optional], present: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Features with the basis of the output map. They are kept for the next forward pass if they are constant."""
    output = generator.output_map
    assert output is not None
    basis = output.basis
    used = present if basis is None else [*present, basis]
    temporary = capturing(grid.lines.device) or torch.is_inference_mode_enabled()  # cannot be used elsewhere
    constant = not temporary and not any(t.requires_grad for t in used)
    if constant:
        kept = _constant_features.get(generator)
        if kept is not None and kept.grid is grid and kept.versions.unchanged(used):
            return kept.features
        versions = Versions(used)  # before sampling, so that a change in between is noticed
    features = _Features.apply(grid, *tensors)
    if basis is not None:
        features = matmul(features, basis.t())
    if constant:
        _constant_features[generator] = _ConstantFeatures(grid, versions, features)  # pyright: ignore[reportPossiblyUnboundVariable]
    return features


class _ConstantFeatures(NamedTuple):
    """Features on the window of the last forward pass, and the parameters that they were made from."""

    grid: Grid
    versions: Versions
    features: torch.Tensor


_constant_features: weakref.WeakKeyDictionary[KernelGenerator, _ConstantFeatures] = weakref.WeakKeyDictionary()


# --- what can be computed here ----------------------------------------------------------------------------------------


def supports_device(tensor: torch.Tensor) -> bool:
    """Whether Triton can run where this tensor is."""
    return tensor.is_cuda and has_triton()


def supported(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are ordinary float32 tensors on one device, and no transform or derivative mode is active."""
    device = tensors[0].device
    kinds = torch.Tensor, torch.nn.Parameter
    same = all(type(t) in kinds and t.dtype == torch.float32 and t.device == device for t in tensors)
    return same and peek_interpreter_stack() is None and forward_ad._current_level < 0


def feature_tensors(generator: KernelGenerator) -> tuple[torch.Tensor | None, ...] | None:
    """The parameters of the features, in the order of `plain_features`; None if they are computed otherwise."""
    if not isinstance(generator, MultiplicativeFilterNetwork) or generator.hidden > MAX_HIDDEN or generator.dims > 3:
        return None
    cls = type(generator)
    if cls.features is not MultiplicativeFilterNetwork.features:
        return None
    plain = generator.frequency, generator.phase, generator.mix_weight, generator.mix_bias
    if cls.filter_values is MultiplicativeFilterNetwork.filter_values:
        return *plain, None, None, None
    if not isinstance(generator, GaborNet) or cls.filter_values is not GaborNet.filter_values:
        return None
    if type(generator).envelopes is not GaborNet.envelopes:
        return None
    return *plain, generator.mu, generator.gamma, generator.theta


def mask_settings(mask: GaussianMask, axes: Sequence[Axis]) -> MaskSettings | None:
    """Settings of the kernels, or None if the mask is computed otherwise."""
    cls = type(mask)
    if cls not in (GaussianMask, RotatedGaussianMask) or was_resampled(axes):
        return None
    reach = None if mask.threshold is None else math.sqrt(-2.0 * math.log(mask.threshold))
    return MaskSettings(mask.form, cls is RotatedGaussianMask, reach, mask.damping)


# --- coordinates ------------------------------------------------------------------------------------------------------

_grids: dict[object, Grid] = {}


def grid_of(layer: FlexConvNd, window: Sequence[TapRange], device: torch.device) -> Grid:
    """The taps of a window. They are kept, but not for a CUDA graph, which must own what it reads."""
    if capturing(device):
        return make_grid(layer, window)
    key = layer.axes, tuple(window), type(layer.mask), device
    grid = _grids.get(key)
    if grid is None:
        if len(_grids) >= GRIDS:
            _grids.clear()
        with torch.inference_mode(False):  # may be used for training later
            grid = _grids[key] = make_grid(layer, window)
    return grid


@torch.no_grad()
def make_grid(layer: FlexConvNd, window: Sequence[TapRange]) -> Grid:
    lines = torch.cat(layer.coordinates(window))
    floors = [0.0] * len(layer.axes) if layer.mask is None else layer.mask.sigma_floor(layer.axes)
    halves, inner = smallest_intervals(layer.axes, lines.dtype)
    causal = [float(axis.causal) for axis in layer.axes]
    numbers = [n for each in zip(floors, halves, inner, causal, strict=True) for n in each]
    limits = filled(numbers, like=lines).view(-1, 4)
    return Grid(lines, limits, tuple(stop - start for start, stop in window), layer.axes)


# --- features ---------------------------------------------------------------------------------------------------------


def plain_features(
    points: torch.Tensor,
    frequency: torch.Tensor,
    phase: torch.Tensor,
    mix_weight: torch.Tensor,
    mix_bias: torch.Tensor,
    mu: Optional,
    gamma: Optional,
    theta: Optional,
) -> torch.Tensor:
    """The same from points [taps, D], in operations that can be differentiated any number of times."""
    filters = torch.sin(torch.einsum("nd,fhd->fnh", points, frequency) + phase.unsqueeze(1))
    if mu is not None and gamma is not None:
        offset = points[:, None, :] - mu[:, None]
        if theta is not None:
            angle = 2 * math.pi * theta[:, None]
            cos, sin, (x, y) = angle.cos(), angle.sin(), offset.unbind(-1)
            offset = torch.stack([cos * x + sin * y, cos * y - sin * x], -1)
        filters = filters * torch.exp(-0.5 * (gamma[:, None] * offset).square().sum(-1))
    h = filters[0]
    for layer in range(len(mix_weight)):
        h = filters[layer + 1] * (matmul(h, mix_weight[layer].t()) + mix_bias[layer])
    return torch.cat([h, h.new_ones(len(h), 1)], 1)


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Grid, *tensors: torch.Tensor | None) -> torch.Tensor:
        differentiable = any(ctx.needs_input_grad)
        features, kept = launch_features(grid, tensors, keep=differentiable)
        if differentiable:
            ctx.grid, ctx.kept = grid, kept
            ctx.save_for_backward(*tensors)
        return features

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative
            found = plain_gradients(lambda *given: plain_features(ctx.grid.points(), *given), tensors, grads[0])
        else:
            found = launch_features_backward(ctx.grid, tensors, ctx.kept, grads[0])
        return None, *_needed(found, ctx.needs_input_grad[1:])


# --- masks ------------------------------------------------------------------------------------------------------------


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        grid: Grid,
        settings: MaskSettings,
        mask: weakref.ref[GaussianMask],
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        if any(ctx.needs_input_grad):
            ctx.grid, ctx.settings, ctx.mask = grid, settings, mask
            ctx.save_for_backward(features, *parameters)
        return launch_mask(features, grid, settings, parameters)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features, *parameters = ctx.saved_tensors
        needed = ctx.needs_input_grad[0], *ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # for a second derivative
            plain = plain_gradients(
                lambda features, *given: features * plain_mask(ctx.mask(), ctx.grid, given).unsqueeze(1),
                (features, *parameters),
                grads[0],
            )
            found, of_parameters = plain[0], plain[1:]
        else:
            found, of_parameters = launch_mask_backward(
                features, ctx.grid, ctx.settings, parameters, grads[0], of_features=needed[0], of_mask=any(needed[1:])
            )
        first, *others = _needed([found, *of_parameters], needed)
        return first, None, None, None, *others


def plain_mask(mask: GaussianMask, grid: Grid, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of a mask with other parameters, by its own method → [taps]."""
    given = dict(zip(mask.size_names, parameters, strict=True))
    return torch.func.functional_call(mask, given, (grid.lines.split(grid.sizes), grid.axes)).flatten()


# --- helpers ----------------------------------------------------------------------------------------------------------


def _needed(gradients: Sequence[torch.Tensor | None], needed: Sequence[bool]) -> list[torch.Tensor | None]:
    return [gradient if wanted else None for gradient, wanted in zip(gradients, needed, strict=True)]


def plain_gradients(function: Any, tensors: Sequence[torch.Tensor | None], grad: torch.Tensor) -> list[Any]:
    """Gradients of a function of these tensors, with a graph for further derivatives."""
    given = [None if t is None else t.view_as(t) for t in tensors]  # one of them may depend on another
    wanted = [t for t in given if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(function(*given), wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in given]
