"""The formulas at the top of `spectrum.py`, for G layers of the same shape at once. Results are in cycles per unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..nn import FlexConvNd, RotatedGaussianMask, effective_sigma, filled
from ..nn.kernels import GaborNet, NJet

_TURN = 2 * math.pi


class _Terms(NamedTuple):
    """What the formulas are made of, in rad per unit: G layers of L filters with C channels on D axes."""

    frequency: torch.Tensor  # [G, L, C, D]
    gamma: torch.Tensor  # [G, L, C, D or 1]
    precision: torch.Tensor  # [G, L, C, D]


class _Window(NamedTuple):
    """The masks of G layers."""

    sigma: torch.Tensor  # [G, D], of the mask's own axes
    precision: torch.Tensor  # [G, D], along the grid's axes


def _terms(layers: Sequence[FlexConvNd]) -> _Terms:
    dtype, generators = layers[0].generator.compute_dtype, [layer.generator for layer in layers]
    frequency = torch.stack([g.frequency for g in generators]).to(dtype)  # type: ignore[arg-type]
    gabors = [g for g in generators if isinstance(g, GaborNet)]
    if not gabors:
        none = torch.zeros_like(frequency)
        return _Terms(frequency, none, none)
    gamma = torch.stack([g.gamma for g in gabors]).to(dtype)
    precision = gamma.square().expand_as(frequency)
    thetas: list[torch.Tensor] = [g.theta for g in gabors if g.theta is not None]
    if thetas:
        precision = _turned(precision, _TURN * torch.stack(thetas).to(dtype).unsqueeze(-1))
    return _Terms(frequency, gamma, precision)


def window_of(layers: Sequence[FlexConvNd]) -> _Window | None:
    masks = [layer.mask for layer in layers if layer.mask is not None]
    if not masks:
        return None
    sigma = torch.stack([mask.sigma for mask in masks]).to(layers[0].generator.compute_dtype)
    floors = [mask.sigma_floor(layer.axes) for mask, layer in zip(masks, layers, strict=True)]
    sigma = effective_sigma(sigma, _filled(floors, like=sigma))
    precision = sigma.square().reciprocal()
    angles: list[torch.Tensor] = [mask.angle for mask in masks if isinstance(mask, RotatedGaussianMask)]
    if angles:
        precision = _turned(precision, torch.stack(angles).to(sigma.dtype))
    return _Window(sigma, precision)


def _turned(precision: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Diagonal of Rᵀ diag(p) R, R = [[cos, sin], [−sin, cos]]: p [..., 2], angle [..., 1] → [..., 2]."""
    share = angle.cos().square()
    return share * precision + (1 - share) * precision.flip(-1)


def _root(x: torch.Tensor) -> torch.Tensor:
    """√x, with the gradient 0 at 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny).sqrt()


def _exact_filters(terms: _Terms, extra: torch.Tensor | float, cutoff: float) -> torch.Tensor:
    """max_c( |W| + h √(p + extra) ) / 2π → [G, L, D]."""
    return (terms.frequency.abs() + cutoff * _root(terms.precision + extra)).amax(2) / _TURN


def _path_frequencies(terms: _Terms, extra: torch.Tensor, cutoff: float) -> torch.Tensor:
    """A bound on max over c_1 … c_L of ( Σ_l |W| + h √( Σ_l p + extra ) ) / 2π → [G, D].

    A root is the least of many sums, √s = min_t ½ (s/t + t), and for a given t each filter has its largest channel by
    itself. Every t gives a bound; those tried go down in steps of 2^¼ from the root with every filter's largest p. They
    have no gradient: at the best t it would be 0.
    """
    highest = _root(terms.precision.amax(2).sum(1) + extra).detach()
    steps = torch.arange(24, dtype=highest.dtype, device=highest.device)
    t = highest * torch.exp2(-steps / 4)[:, None, None]  # [tried, G, D]
    channels = terms.frequency.abs() + cutoff / 2 * terms.precision / t[:, :, None, None]  # [tried, G, L, C, D]
    return (channels.amax(3).sum(2) + cutoff / 2 * (extra / t + t)).amin(0) / _TURN


def _authors_filters(terms: _Terms, cutoff: float) -> torch.Tensor:
    """( max_cd |W| + h max_cd |γ| ) / 2π → [G, L, 1]."""
    total = terms.frequency.abs().amax((2, 3)) + cutoff * terms.gamma.abs().amax((2, 3))
    return total.unsqueeze(-1) / _TURN


def _paper_filters(terms: _Terms, cutoff: float) -> torch.Tensor:
    """max_c( max_d W + h min_d γ ) / 2π → [G, L, 1]."""
    total = (terms.frequency.amax(3) + cutoff * terms.gamma.abs().amin(3)).amax(2)
    return total.unsqueeze(-1) / _TURN


_FILTERS: dict[str, Callable[[_Terms, float], torch.Tensor]] = {"authors": _authors_filters, "paper": _paper_filters}


def window_frequency(window: _Window, cutoff: float, formula: str) -> torch.Tensor:
    """h / 2π σ of the narrowest axis ("authors") or the widest ("paper") → [G, 1]."""
    sigma = window.sigma.amin(1, keepdim=True) if formula == "authors" else window.sigma.amax(1, keepdim=True)
    return cutoff / (_TURN * sigma)


def filter_frequencies(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    """Frequencies filter by filter, each with an equal share of the mask's → [G, L, D], or [G, L, 1] if not exact."""
    terms, window = _terms(layers), window_of(layers) if mask else None
    count = terms.frequency.shape[1]
    if formula == "exact":
        return _exact_filters(terms, 0.0 if window is None else window.precision[:, None, None] / count, cutoff)
    values = _FILTERS[formula](terms, cutoff)
    return values if window is None else values + window_frequency(window, cutoff, formula).unsqueeze(1) / count


def kernel_frequencies(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    """Frequency of whole kernels → [G, D], or [G, 1] for the formulas that do not tell axes apart."""
    if isinstance(layers[0].generator, NJet):
        return _jets(layers, mask=mask, cutoff=cutoff)
    if formula != "exact":
        return filter_frequencies(layers, mask=mask, cutoff=cutoff, formula=formula).sum(1)
    terms, window = _terms(layers), window_of(layers) if mask else None
    extra = torch.zeros_like(terms.precision[:, 0, 0]) if window is None else window.precision
    filters = _exact_filters(terms, extra[:, None, None] / terms.frequency.shape[1], cutoff).sum(1)
    return torch.minimum(filters, _path_frequencies(terms, extra, cutoff))  # both are bounds: √(p + q) ≤ √p + √q


def _jets(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float) -> torch.Tensor:
    """(√N + h) √(1/σ² + m) / 2π → [G, D]; σ = unit · 2^s."""
    jets = [layer.generator for layer in layers if isinstance(layer.generator, NJet)]
    scale = torch.stack([jet.scale for jet in jets]).to(jets[0].compute_dtype)
    units = [jet.unit or [axis.spacing for axis in layer.axes] for jet, layer in zip(jets, layers, strict=True)]
    precision = (torch.exp2(scale) * _filled(units, like=scale)).square().reciprocal()
    if mask and (window := window_of(layers)) is not None:
        precision = precision + window.precision
    reach = _filled([[math.sqrt(jet.order) + cutoff] for jet in jets], like=scale)
    return reach * precision.sqrt() / _TURN


def group_penalty(
    layers: Sequence[FlexConvNd], method: str, *, mask: bool, cutoff: float, formula: str
) -> torch.Tensor:
    limits = [[1 / (2 * axis.spacing) for axis in layer.axes] for layer in layers]
    jets = isinstance(layers[0].generator, NJet)
    if formula != "exact" and not jets:
        limits = [[min(each)] for each in limits]
    if method == "summed" or jets:
        values = kernel_frequencies(layers, mask=mask, cutoff=cutoff, formula=formula)
        return torch.relu(values - _filled(limits, like=values)).square().sum()
    values = filter_frequencies(layers, mask=mask, cutoff=cutoff, formula=formula)
    limit = _filled(limits, like=values).unsqueeze(1) / values.shape[1]
    return torch.relu(values - limit).square().sum()


def _filled(rows: Sequence[Sequence[float]], *, like: torch.Tensor) -> torch.Tensor:
    """Numbers [G][D] as a tensor [G, D]."""
    shape = (len(rows), len(rows[0]))
    if all(list(row) == list(rows[0]) for row in rows):
        rows = rows[:1]
    return filled([number for row in rows for number in row], like=like).view(len(rows), -1).expand(shape)
