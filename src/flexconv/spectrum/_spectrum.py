"""How high the frequencies of a learned kernel reach, and a penalty on those its grid cannot hold.

A Gabor filter exp(−½ Σ_d (γ_d (x_d − μ_d))²) sin(W x + b) has two Gaussians for a spectrum, of width γ around ±W.
In a product of filters the sines' frequencies add, and so do the squares of the envelopes' widths, the mask's among
them. A network of filters l is a sum of such products, each with one channel c_l of every filter. Along axis d the
highest of them reaches, up to h standard deviations (`cutoff`),

    f_d = max over c_1, c_2, … of ( Σ_l |W_lcd| + h √( Σ_l p_lcd + m_d ) ) / 2π,      m_d = 1/σ_d² of the mask

with p the precision of an envelope along the axis: γ_d², turned where it is steerable, 0 for Fourier networks.
An N-Jet of order N is a polynomial of degree N times a Gaussian: f_d = (√N + h) √(1/σ_d² + m_d) / 2π.

All in cycles per unit of the grid on [−1, 1], on which k taps hold frequencies up to (k − 1)/4. Cropping, the edge of
the domain and causal cuts add frequencies that no formula here counts; `measured_bandwidth` sees the last two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from .._arguments import positive, positive_int, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import FlexConvNd, RotatedGaussianMask
from ..nn.kernels import FourierNet, GaborNet, NJet
from ._bandwidth import bandwidth, dense_kernel, denser, energy_spectrum
from ._frequency import group_penalty, kernel_frequencies

FORMULAS = ("exact", "authors", "paper")
METHODS = ("together", "summed")
MISSING = ("error", "skip")


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
        formula: "exact", as at the top of this module; the highest product is not looked for but bounded from above,
            by less than 1 % in the networks that come with flexconv. "authors" is what the published code computes, a
            number that all axes share: Σ_l max_cd |W| + h max_cd |γ|, plus h / min_d σ_d for the mask, over 2π; above
            the exact one. "paper" is the printed formula, Σ_l max_c (max_d W + h min_d γ) plus h / max_d σ_d, over 2π:
            no bound, because a negative W is as high a frequency and a narrow envelope has a wide spectrum. For an
            N-Jet all three are the one at the top of this module.

    """
    if not isinstance(layer, FlexConvNd):
        raise ArgumentTypeError(f"max_frequency wants a FlexConv layer; got {type(layer).__name__}")
    _check_formula(formula)
    _check_mask(mask)
    cutoff = positive("cutoff", cutoff)
    if problem := no_spectrum(layer):
        raise ArgumentError(problem)
    return kernel_frequencies([layer], mask=mask, cutoff=cutoff, formula=formula)[0].expand(layer.dims)


@torch.no_grad()
def measured_bandwidth(
    layer: FlexConvNd, *, energy: float = 0.99, mask: bool = True, oversample: int = 8
) -> list[float]:
    """The frequency per axis below which that share of the kernel's energy lies, channels pooled. For any generator.

    The kernel is sampled on the whole grid, `oversample` times as densely as the layer does and uncropped, and
    transformed. What the layer's own grid would fold back therefore shows at its true frequency.
    """
    if not isinstance(layer, FlexConvNd):
        raise ArgumentTypeError(f"measured_bandwidth wants a FlexConv layer; got {type(layer).__name__}")
    if not 0 < energy < 1:
        raise ArgumentError(f"energy must lie between 0 and 1, a share of the whole; got {energy}")
    _check_mask(mask)
    axes = [denser(axis, positive_int("oversample", oversample)) for axis in layer.axes]
    values = dense_kernel(layer, axes, mask=mask)
    return [bandwidth(energy_spectrum(values, d + 1), axis.spacing, energy) for d, axis in enumerate(axes)]


def alias_penalty(
    model: nn.Module,
    *,
    weight: float = 0.1,
    cutoff: float = 2.0,
    method: str = "together",
    mask: bool = False,
    formula: str = "authors",
    missing: str = "error",
) -> torch.Tensor:
    """Penalty on kernels above the Nyquist frequency of their grid, summed over all FlexConvs of a model → scalar.

        "together":  weight · Σ_layers Σ_l relu( f_l − nyq / L )²
        "summed":    weight · Σ_layers relu( f − nyq )²,              f from `max_frequency`

    for L filters: each filter stays within its share of the limit, or all of them together do. By "authors", f_l is
    ( max_cd |W| + h max_cd |γ| + h / (L min_d σ_d) ) / 2π, the last only with the mask: one number for all axes, and
    nyq is the lowest of their limits. By "exact", there is one per axis, max_c( |W| + h √(p + m_d/L) ) / 2π, and axes
    add up. An N-Jet is one filter, with its one formula. Layers of the same shape are evaluated at once, and nothing
    waits for the device.

    Where it is 0, `max_frequency` with the same `mask` is below the limit ("paper" aside, which is no bound).

    Arguments:
        weight: factor in front; 0.1 in the paper's runs.
        cutoff: how many standard deviations of an envelope's spectrum count.
        mask: count the mask (the paper's "f_FlexConv"), or the generator alone ("f_MAGNet", what it used most).
            Counted, it is also made wider, and a mask wider than the domain leaves a step at ±1 that nobody counts.
        formula: as in `max_frequency`. The authors' is stricter; FlexNets trained with it on CIFAR-10 were more
            accurate, there and at twice the resolution (docs/differences-training.md). The exact one is tighter,
            the more the axes of a grid differ.
        missing: what to do with generators whose spectrum has no formula: "error", or "skip" them.

    """
    _check_formula(formula)
    _check_mask(mask)
    if method not in METHODS:
        unknown_name("method", method, METHODS)
    if missing not in MISSING:
        unknown_name("value of missing", missing, MISSING)
    if not 0 <= weight < math.inf:
        raise ArgumentError(f"weight must be a finite number of at least 0; got {weight}")
    cutoff = positive("cutoff", cutoff)
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: there is nothing to penalise")
    total = layers[0][1]._like().new_zeros(())
    for group in _groups(layers, mask, missing):
        total = total + group_penalty(group, method, mask=mask, cutoff=cutoff, formula=formula).to(total.device)
    return weight * total


# --- which layers have a formula, and which share one evaluation ------------------------------------------------------


def _check_formula(formula: str) -> None:
    if formula not in FORMULAS:
        unknown_name("formula", formula, FORMULAS)


def _check_mask(mask: bool) -> None:
    if not isinstance(mask, bool):
        raise ArgumentTypeError(f"mask must be True (count the mask) or False; got {mask!r}")


def formulas_of(layer: FlexConvNd) -> tuple[str, ...]:
    """Those that say something of their own about a layer: an N-Jet has one."""
    if no_spectrum(layer):
        return ()
    return ("exact",) if isinstance(layer.generator, NJet) else FORMULAS


def no_spectrum(layer: FlexConvNd, name: str = "") -> str | None:
    """Why no formula says anything about a layer; None where one does."""
    generator, where = layer.generator, f" of layer {name!r}" if name else ""
    if isinstance(generator, GaborNet | FourierNet | NJet):
        return None
    return (
        f"the generator{where} is {type(generator).__name__}, whose spectrum has no formula: nested non-linearities "
        "make harmonics of every order. MAGNet, GaborNet, FourierNet and NJet have one; "
        "`measured_bandwidth` works for all"
    )


def _groups(layers: Sequence[tuple[str, FlexConvNd]], mask: bool, missing: str) -> list[list[FlexConvNd]]:
    """Layers whose parameters can be stacked, together."""
    groups: dict[tuple[object, ...], list[FlexConvNd]] = {}
    for name, layer in layers:
        problem = no_spectrum(layer, name)
        if problem is None:
            groups.setdefault(_signature(layer, mask), []).append(layer)
        elif missing == "error":
            raise ArgumentError(f"{problem} (missing='skip' leaves such layers out)")
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
