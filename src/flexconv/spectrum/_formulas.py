"""The formulas of `flexconv.spectrum`, evaluated for G layers of the same shape at once. Results in cycles per unit.

Shapes: G layers, L filters, C channels, D axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..nn import FlexConvNd, RotatedGaussianMask, effective_sigma, filled
from ..nn.kernels import GaborNet, NJet

_TWO_PI = 2 * math.pi


class FilterTerms(NamedTuple):
    """The parameters of the generators' filters that the formulas need, in radians per unit."""

    frequency: torch.Tensor  # W [G, L, C, D]
    gamma: torch.Tensor  # γ [G, L, C, D or 1]
    precision: torch.Tensor  # p [G, L, C, D], along the axes of the grid


class MaskTerms(NamedTuple):
    """The widths of the masks."""

    sigma: torch.Tensor  # [G, D], along the mask's own axes
    precision: torch.Tensor  # m [G, D], along the axes of the grid


def filter_terms(layers: Sequence[FlexConvNd]) -> FilterTerms:
    dtype, generators = layers[0].generator.compute_dtype, [layer.generator for layer in layers]
    frequency = torch.stack([g.frequency for g in generators]).to(dtype)  # type: ignore[arg-type]
    gabors = [g for g in generators if isinstance(g, GaborNet)]
    if not gabors:  # Fourier networks have no envelope
        zero = torch.zeros_like(frequency)
        return FilterTerms(frequency, zero, zero)
    gamma = torch.stack([g.gamma for g in gabors]).to(dtype)
    precision = gamma.square().expand_as(frequency)
    thetas: list[torch.Tensor] = [g.theta for g in gabors if g.theta is not None]
    if thetas:
        precision = _rotate_precision(precision, _TWO_PI * torch.stack(thetas).to(dtype).unsqueeze(-1))
    return FilterTerms(frequency, gamma, precision)


def mask_terms(layers: Sequence[FlexConvNd]) -> MaskTerms | None:
    """None if the layers have no mask."""
    masks = [layer.mask for layer in layers if layer.mask is not None]
    if not masks:
        return None
    sigma = torch.stack([mask.narrowest() for mask in masks]).to(layers[0].generator.compute_dtype)
    floors = [mask.sigma_floor(layer.axes) for mask, layer in zip(masks, layers, strict=True)]
    sigma = effective_sigma(sigma, stack_rows(floors, like=sigma))
    precision = sigma.square().reciprocal()
    angles: list[torch.Tensor] = [mask.angle for mask in masks if isinstance(mask, RotatedGaussianMask)]
    if angles:
        precision = _rotate_precision(precision, torch.stack(angles).to(sigma.dtype))
    return MaskTerms(sigma, precision)


def _rotate_precision(precision: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Diagonal of Rᵀ diag(p) R, R = [[cos, sin], [−sin, cos]]: p [..., 2], angle [..., 1] → [..., 2]."""
    cos_squared = angle.cos().square()
    return cos_squared * precision + (1 - cos_squared) * precision.flip(-1)


# --- one formula per function -----------------------------------------------------------------------------------------


def _exact_filters(terms: FilterTerms, extra: torch.Tensor | float, cutoff: float) -> torch.Tensor:
    """max_c( |W| + h √(p + extra) ) / 2π → [G, L, D]."""
    return (terms.frequency.abs() + cutoff * _safe_sqrt(terms.precision + extra)).amax(2) / _TWO_PI


def _exact_products(terms: FilterTerms, extra: torch.Tensor, cutoff: float) -> torch.Tensor:
    """A bound on max over c_1 … c_L of ( Σ_l |W| + h √( Σ_l p + extra ) ) / 2π → [G, D].

    The maximum runs over C^L products. It separates into one maximum per filter once the root is replaced by a sum:
    √s = min_t ½ (s/t + t), so every t > 0 gives an upper bound. The least bound over 24 values of t is returned. They
    start at the root with the largest p of every filter and decrease by factors of 2^¼. They are detached, because the
    derivative with respect to t is 0 at the best t.
    """
    highest = _safe_sqrt(terms.precision.amax(2).sum(1) + extra).detach()
    steps = torch.arange(24, dtype=highest.dtype, device=highest.device)
    t = highest * torch.exp2(-steps / 4)[:, None, None]  # [24, G, D]
    channels = terms.frequency.abs() + cutoff / 2 * terms.precision / t[:, :, None, None]  # [24, G, L, C, D]
    return (channels.amax(3).sum(2) + cutoff / 2 * (extra / t + t)).amin(0) / _TWO_PI


def _authors_filters(terms: FilterTerms, cutoff: float) -> torch.Tensor:
    """( max_cd |W| + h max_cd |γ| ) / 2π → [G, L, 1]."""
    total = terms.frequency.abs().amax((2, 3)) + cutoff * terms.gamma.abs().amax((2, 3))
    return total.unsqueeze(-1) / _TWO_PI


def _paper_filters(terms: FilterTerms, cutoff: float) -> torch.Tensor:
    """max_c( max_d W + h min_d γ ) / 2π → [G, L, 1]."""
    total = (terms.frequency.amax(3) + cutoff * terms.gamma.abs().amin(3)).amax(2)
    return total.unsqueeze(-1) / _TWO_PI


_FILTERS: dict[str, Callable[[FilterTerms, float], torch.Tensor]] = {
    "authors": _authors_filters,
    "paper": _paper_filters,
}


def mask_frequency(mask: MaskTerms, cutoff: float, formula: str) -> torch.Tensor:
    """h / 2πσ with the smallest σ of the axes ("authors") or the largest ("paper") → [G, 1]."""
    sigma = mask.sigma.amin(1, keepdim=True) if formula == "authors" else mask.sigma.amax(1, keepdim=True)
    return cutoff / (_TWO_PI * sigma)


def _njet_frequencies(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float) -> torch.Tensor:
    """(√N + h) √(1/σ² + m) / 2π with σ = unit · 2^scale → [G, D]."""
    njets = [layer.generator for layer in layers if isinstance(layer.generator, NJet)]
    scale = torch.stack([njet.scale for njet in njets]).to(njets[0].compute_dtype)
    units = [njet.unit or [axis.spacing for axis in layer.axes] for njet, layer in zip(njets, layers, strict=True)]
    precision = (torch.exp2(scale) * stack_rows(units, like=scale)).square().reciprocal()
    if mask and (masks := mask_terms(layers)) is not None:
        precision = precision + masks.precision
    deviations = stack_rows([[math.sqrt(njet.order) + cutoff] for njet in njets], like=scale)
    return deviations * precision.sqrt() / _TWO_PI


# --- filters and kernels ----------------------------------------------------------------------------------------------


def filter_frequencies(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    """The highest frequency of each filter of G layers of the same shape.

    Returns [G, L, D] for the exact formula and [G, L, 1] for the others, which do not distinguish axes. If the mask is
    counted, every filter gets an equal share of it.
    """
    terms, masks = filter_terms(layers), mask_terms(layers) if mask else None
    count = terms.frequency.shape[1]
    if formula == "exact":
        return _exact_filters(terms, 0.0 if masks is None else masks.precision[:, None, None] / count, cutoff)
    values = _FILTERS[formula](terms, cutoff)
    return values if masks is None else values + mask_frequency(masks, cutoff, formula).unsqueeze(1) / count


def kernel_frequencies(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    """The highest frequency of each kernel → [G, D], or [G, 1] for the formulas that do not distinguish axes."""
    if isinstance(layers[0].generator, NJet):
        return _njet_frequencies(layers, mask=mask, cutoff=cutoff)
    if formula != "exact":
        return filter_frequencies(layers, mask=mask, cutoff=cutoff, formula=formula).sum(1)
    terms, masks = filter_terms(layers), mask_terms(layers) if mask else None
    extra = torch.zeros_like(terms.precision[:, 0, 0]) if masks is None else masks.precision
    filters = _exact_filters(terms, extra[:, None, None] / terms.frequency.shape[1], cutoff).sum(1)
    # both are upper bounds, the first because √(p + q) ≤ √p + √q
    return torch.minimum(filters, _exact_products(terms, extra, cutoff))


def _safe_sqrt(x: torch.Tensor) -> torch.Tensor:
    """√x, with gradient 0 at 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def stack_rows(rows: Sequence[Sequence[float]], *, like: torch.Tensor) -> torch.Tensor:
    """Numbers [G][D] as a tensor [G, D], created on the device of `like` without a copy from the host."""
    shape = (len(rows), len(rows[0]))
    if all(list(row) == list(rows[0]) for row in rows):
        rows = rows[:1]
    return filled([number for row in rows for number in row], like=like).view(len(rows), -1).expand(shape)
