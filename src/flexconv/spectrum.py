"""How high the frequencies of a learned kernel reach, and a penalty on those its grid cannot hold.

A Gabor filter exp(−½ Σ_d (γ_d (x_d − μ_d))²) sin(W x + b) has two Gaussians for a spectrum, of width γ around ±W.
In a product of filters the sines' frequencies add, and so do the squares of the envelopes' widths, the mask's among
them. Along axis d of a network of filters l with channels c, up to h standard deviations (`cutoff`):

    f_d = ( Σ_l max_c |W_lcd| + h √( Σ_l max_c p_lcd + m_d ) ) / 2π,      m_d = 1/σ_d² of the mask

with p the precision of an envelope along the axis: γ_d², turned where it is steerable, 0 for Fourier networks.
An N-Jet of order N is a polynomial of degree N times a Gaussian: f_d = (√N + h) √(1/σ_d² + m_d) / 2π.

All in cycles per unit of the grid on [−1, 1], on which k taps hold frequencies up to (k − 1)/4. Cropping, the edge of
the domain and causal cuts add frequencies that no formula here counts; `measured_bandwidth` sees the last two.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from ._arguments import positive, positive_int, unknown_name
from .nn._conv import FlexConvNd
from .nn._grid import Axis, coordinate_grid
from .nn._mask import GaussianMask, RotatedGaussianMask, effective_sigma
from .nn.kernels import FourierNet, GaborNet, NJet
from .ops._fft import fast_length

FORMULAS = ("exact", "authors", "paper")
METHODS = ("together", "summed")
MISSING = ("error", "skip")

_TURN = 2 * math.pi
_FINER_BINS = 4  # zero-padding of the measured spectrum
_CHUNK = 1 << 24  # values transformed at a time


# --- what users call --------------------------------------------------------------------------------------------------


def nyquist(kernel_size: int | Sequence[int]) -> float | list[float]:
    """The highest frequency that k taps on [−1, 1] hold, (k − 1)/4 cycles per unit; a list for a size per axis."""
    if isinstance(kernel_size, Sequence):
        return [(positive_int("kernel_size", size) - 1) / 4 for size in kernel_size]
    return (positive_int("kernel_size", kernel_size) - 1) / 4


def max_frequency(layer: FlexConvNd, *, mask: bool = True, cutoff: float = 2.0, formula: str = "exact") -> torch.Tensor:
    """The frequency that the kernel of a layer stays below along each axis → [D]. Differentiable, nothing sampled.

    Arguments:
        mask: count the window of the layer's mask.
        cutoff: how many standard deviations of an envelope's spectrum count, h. Of the energy of a Gabor filter,
            erfc(h)/2 lies beyond, 0.2 % for 2; more, up to 5 %, where W is far below γ and the sine crosses 0 at the
            centre, so that its two Gaussians all but cancel.
        formula: "exact", as at the top of this module. "authors" is what the published code computes, a number that
            all axes share: Σ_l max_cd |W| + h max_cd |γ|, plus h / min_d σ_d for the mask, over 2π; above the exact
            one. "paper" is the printed formula, Σ_l max_c (max_d W + h min_d γ) plus h / max_d σ_d, over 2π: no
            bound, because a negative W is as high a frequency and a narrow envelope has a wide spectrum.

    """
    if not isinstance(layer, FlexConvNd):
        raise TypeError(f"max_frequency wants a FlexConv layer; got {type(layer).__name__}")
    _check_formula(formula)
    cutoff = positive("cutoff", cutoff)
    if problem := _no_spectrum(layer, formula):
        raise ValueError(problem)
    return _total([layer], mask=mask, cutoff=cutoff, formula=formula)[0].expand(layer.dims)


@torch.no_grad()
def measured_bandwidth(
    layer: FlexConvNd, *, energy: float = 0.99, mask: bool = True, oversample: int = 8
) -> list[float]:
    """The frequency per axis below which that share of the kernel's energy lies, channels pooled. For any generator.

    The kernel is sampled on the whole grid, `oversample` times as densely as the layer does and uncropped, and
    transformed. What the layer's own grid would fold back therefore shows at its true frequency.
    """
    if not isinstance(layer, FlexConvNd):
        raise TypeError(f"measured_bandwidth wants a FlexConv layer; got {type(layer).__name__}")
    if not 0 < energy < 1:
        raise ValueError(f"energy must lie between 0 and 1, a share of the whole; got {energy}")
    axes = [_denser(axis, positive_int("oversample", oversample)) for axis in layer.axes]
    values = _dense_kernel(layer, axes, mask=mask)
    return [_bandwidth(_energy_spectrum(values, d + 1), axis.spacing, energy) for d, axis in enumerate(axes)]


def alias_penalty(
    model: nn.Module,
    *,
    weight: float = 0.1,
    cutoff: float = 2.0,
    method: str = "together",
    mask: bool = False,
    formula: str = "exact",
    missing: str = "error",
) -> torch.Tensor:
    """Penalty on kernels above the Nyquist frequency of their grid, summed over all FlexConvs of a model → scalar.

        "together":  weight · Σ_layers Σ_l Σ_d relu( f_ld − nyq_d / L )²,      f_ld = max_c( |W| + h √(p + m_d/L) ) / 2π
        "summed":    weight · Σ_layers Σ_d relu( f_d − nyq_d )²,               f_d from `max_frequency`

    for L filters: each filter stays within its share of the limit, or all of them together do. An N-Jet is one filter.
    With the other formulas there is no axis d but one number against the lowest limit, and the mask's share m/L is
    added to it. Layers of the same shape are evaluated at once, and nothing waits for the device.

    Arguments:
        weight: factor in front; 0.1 in the paper's runs.
        cutoff: how many standard deviations of an envelope's spectrum count.
        mask: count the mask (the paper's "f_FlexConv"), or the generator alone ("f_MAGNet", what it used most).
            Counted, it is also made wider, and a mask wider than the domain leaves a step at ±1 that nobody counts.
        formula: as in `max_frequency`; "authors" gives the published penalty.
        missing: what to do with generators whose spectrum has no formula: "error", or "skip" them.

    """
    _check_formula(formula)
    if method not in METHODS:
        unknown_name("method", method, METHODS)
    if missing not in MISSING:
        unknown_name("value of missing", missing, MISSING)
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be a finite number of at least 0; got {weight}")
    cutoff = positive("cutoff", cutoff)
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no FlexConv layer: there is nothing to penalise")
    total = layers[0][1]._like().new_zeros(())
    for group in _groups(layers, mask, formula, missing):
        total = total + _penalty(group, method, mask=mask, cutoff=cutoff, formula=formula).to(total.device)
    return weight * total


# --- which layers have a formula, and which share one evaluation ------------------------------------------------------


def _check_formula(formula: str) -> None:
    if formula not in FORMULAS:
        unknown_name("formula", formula, FORMULAS)


def _no_spectrum(layer: FlexConvNd, formula: str, name: str = "") -> str | None:
    """Why the formula says nothing about a layer; None where it does."""
    generator, where = layer.generator, f" of layer {name!r}" if name else ""
    if isinstance(generator, NJet):
        if formula == "exact":
            return None
        return f"formula={formula!r} is for Gabor and Fourier networks; the generator{where} is NJet: use 'exact'"
    if isinstance(generator, GaborNet | FourierNet):
        return None
    return (
        f"the generator{where} is {type(generator).__name__}, whose spectrum has no formula: nested non-linearities "
        "make harmonics of every order. MAGNet, GaborNet, FourierNet and NJet have one; "
        "`measured_bandwidth` works for all"
    )


def _groups(layers: Sequence[tuple[str, FlexConvNd]], mask: bool, formula: str, missing: str) -> list[list[FlexConvNd]]:
    """Layers whose parameters can be stacked, together."""
    groups: dict[tuple[object, ...], list[FlexConvNd]] = {}
    for name, layer in layers:
        problem = _no_spectrum(layer, formula, name)
        if problem is None:
            groups.setdefault(_signature(layer, mask), []).append(layer)
        elif missing == "error":
            raise ValueError(f"{problem} (missing='skip' leaves such layers out)")
    return list(groups.values())


def _signature(layer: FlexConvNd, mask: bool) -> tuple[object, ...]:
    generator, like = layer.generator, layer._like()
    shape: tuple[object, ...] = (layer.dims, str(like.dtype), str(like.device))
    if isinstance(generator, NJet):
        shape += ("jet",)
    elif isinstance(generator, FourierNet):
        shape += ("fourier", generator.filters, generator.hidden)
    elif isinstance(generator, GaborNet):
        shape += ("gabor", generator.filters, generator.hidden, generator.gamma.shape[-1], generator.theta is None)
    if not mask or layer.mask is None:
        return (*shape, "no mask")
    return (*shape, isinstance(layer.mask, RotatedGaussianMask), str(layer.mask.sigma.dtype))


# --- the formulas, for G layers at once -------------------------------------------------------------------------------


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


def _window(layers: Sequence[FlexConvNd]) -> _Window | None:
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


def _authors_filters(terms: _Terms, cutoff: float) -> torch.Tensor:
    """( max_cd |W| + h max_cd |γ| ) / 2π → [G, L, 1]."""
    total = terms.frequency.abs().amax((2, 3)) + cutoff * terms.gamma.abs().amax((2, 3))
    return total.unsqueeze(-1) / _TURN


def _paper_filters(terms: _Terms, cutoff: float) -> torch.Tensor:
    """max_c( max_d W + h min_d γ ) / 2π → [G, L, 1]."""
    total = (terms.frequency.amax(3) + cutoff * terms.gamma.abs().amin(3)).amax(2)
    return total.unsqueeze(-1) / _TURN


_FILTERS: dict[str, Callable[[_Terms, float], torch.Tensor]] = {"authors": _authors_filters, "paper": _paper_filters}


def _window_frequency(window: _Window, cutoff: float, formula: str) -> torch.Tensor:
    """h / 2π σ of the narrowest axis ("authors") or the widest ("paper") → [G, 1]."""
    sigma = window.sigma.amin(1, keepdim=True) if formula == "authors" else window.sigma.amax(1, keepdim=True)
    return cutoff / (_TURN * sigma)


def _filters(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    """Frequencies filter by filter, each with an equal share of the mask's → [G, L, D], or [G, L, 1] if not exact."""
    terms, window = _terms(layers), _window(layers) if mask else None
    count = terms.frequency.shape[1]
    if formula == "exact":
        return _exact_filters(terms, 0.0 if window is None else window.precision[:, None, None] / count, cutoff)
    values = _FILTERS[formula](terms, cutoff)
    return values if window is None else values + _window_frequency(window, cutoff, formula).unsqueeze(1) / count


def _total(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    """Frequency of whole kernels → [G, D], or [G, 1] for the formulas that do not tell axes apart."""
    if isinstance(layers[0].generator, NJet):
        return _jets(layers, mask=mask, cutoff=cutoff)
    if formula != "exact":
        return _filters(layers, mask=mask, cutoff=cutoff, formula=formula).sum(1)
    terms, window = _terms(layers), _window(layers) if mask else None
    precision = terms.precision.amax(2).sum(1)
    if window is not None:
        precision = precision + window.precision
    return (terms.frequency.abs().amax(2).sum(1) + cutoff * _root(precision)) / _TURN


def _jets(layers: Sequence[FlexConvNd], *, mask: bool, cutoff: float) -> torch.Tensor:
    """(√N + h) √(1/σ² + m) / 2π → [G, D]; σ = unit · 2^s."""
    jets = [layer.generator for layer in layers if isinstance(layer.generator, NJet)]
    scale = torch.stack([jet.scale for jet in jets]).to(jets[0].compute_dtype)
    units = [jet.unit or [axis.spacing for axis in layer.axes] for jet, layer in zip(jets, layers, strict=True)]
    precision = (torch.exp2(scale) * _filled(units, like=scale)).square().reciprocal()
    if mask and (window := _window(layers)) is not None:
        precision = precision + window.precision
    reach = _filled([[math.sqrt(jet.order) + cutoff] for jet in jets], like=scale)
    return reach * precision.sqrt() / _TURN


def _penalty(layers: Sequence[FlexConvNd], method: str, *, mask: bool, cutoff: float, formula: str) -> torch.Tensor:
    limits = [[1 / (2 * axis.spacing) for axis in layer.axes] for layer in layers]
    if formula != "exact":
        limits = [[min(each)] for each in limits]
    if method == "summed" or isinstance(layers[0].generator, NJet):
        values = _total(layers, mask=mask, cutoff=cutoff, formula=formula)
        return torch.relu(values - _filled(limits, like=values)).square().sum()
    values = _filters(layers, mask=mask, cutoff=cutoff, formula=formula)
    limit = _filled(limits, like=values).unsqueeze(1) / values.shape[1]
    return torch.relu(values - limit).square().sum()


def _filled(rows: Sequence[Sequence[float]], *, like: torch.Tensor) -> torch.Tensor:
    """Numbers [G][D] as a tensor [G, D], filled on the device (a copy from the host would stop a GPU)."""
    shape = (len(rows), len(rows[0]))
    if all(list(row) == list(rows[0]) for row in rows):
        rows = rows[:1]
    runs: list[tuple[float, int]] = []
    for value in [number for row in rows for number in row]:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return torch.cat([like.new_full((count,), value) for value, count in runs]).view(len(rows), -1).expand(shape)


# --- measuring --------------------------------------------------------------------------------------------------------


def _denser(axis: Axis, factor: int) -> Axis:
    """The same stretch of the axis, with `factor` times as many taps."""
    return Axis(max(axis.size - 1, 1) * factor + 1, axis.causal, axis.spacing / factor)


def _dense_kernel(layer: FlexConvNd, axes: Sequence[Axis], *, mask: bool) -> torch.Tensor:
    """The layer's kernel on another grid, uncropped → [channels, *sizes]."""
    dtype, device = layer.generator.compute_dtype, layer._like().device
    windows = [axis.whole for axis in axes]
    values = layer.generator(coordinate_grid(axes, windows, device=device, dtype=dtype))
    if mask and layer.mask is not None:
        lines = [axis.coordinates(axis.whole, device=device, dtype=dtype) for axis in axes]
        values = values * _uncropped(layer.mask)(lines, layer.axes)
    return values


def _uncropped(mask: GaussianMask) -> GaussianMask:
    """The same window without its threshold; shares the parameters."""
    mask = copy.copy(mask)
    mask.threshold = None
    return mask


def _energy_spectrum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Energy per frequency ≥ 0 along one axis, summed over everything else (Parseval) → [bins]."""
    size = fast_length(_FINER_BINS * values.shape[dim])
    lines = values.movedim(dim, -1).flatten(0, -2)
    energy = values.new_zeros(size // 2 + 1)
    for chunk in lines.split(max(1, _CHUNK // size)):
        energy += torch.view_as_real(torch.fft.rfft(chunk, size)).square().sum((0, 2))
    energy[1:-1] *= 2  # and their negatives; size is even
    return energy


def _bandwidth(energy: torch.Tensor, spacing: float, share: float) -> float:
    """The frequency that `share` of the energy lies at or below; NaN where it is not finite."""
    below = energy.double().cpu().cumsum(0)
    if not math.isfinite(below[-1]):
        return math.nan
    first = int((below >= share * below[-1]).int().argmax())
    return first / (2 * (len(energy) - 1) * spacing)
