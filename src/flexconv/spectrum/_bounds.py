"""The Nyquist frequency of a grid, and the analytic bound on the frequencies of a layer's kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._arguments import positive, positive_int, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import FlexConvNd
from ..nn.kernels import FourierNet, GaborNet, NJet
from ._formulas import kernel_frequencies

FORMULAS = ("exact", "authors", "paper")


def nyquist(kernel_size: int | Sequence[int]) -> float | list[float]:
    """The highest frequency that k taps on [−1, 1] represent, (k − 1)/4 cycles per unit.

    Returns one number for an int and a list for one size per axis.
    """
    if isinstance(kernel_size, Sequence):
        return [(positive_int("kernel_size", size) - 1) / 4 for size in kernel_size]
    return (positive_int("kernel_size", kernel_size) - 1) / 4


def max_frequency(layer: FlexConvNd, *, mask: bool = True, cutoff: float = 2.0, formula: str = "exact") -> torch.Tensor:
    """An upper bound on the frequencies in a layer's kernel, along each axis → [D].

    The bound is computed from the parameters of the generator and the mask. It is differentiable, and no kernel is
    sampled.

    Arguments:
        mask: whether to count the mask.
        cutoff: the number h of standard deviations of an envelope's spectrum to count. A share erfc(h)/2 of the energy
            of a Gabor filter (0.2 % for h = 2) lies above the bound. The share rises to at most 5 % if W is far below γ
            and the sine crosses 0 at the center, because the two Gaussians then nearly cancel.
        formula: "exact" is the formula in the docstring of `flexconv.spectrum`. Its maximum over products of channels
            is not searched but bounded from above, by less than 1 % in the networks that come with flexconv.
            "authors" is what the published code computes, one number for all axes: Σ_l max_cd |W| + h max_cd |γ|, plus
            h / min_d σ_d for the mask, divided by 2π. It is never below the exact bound. "paper" is the printed
            formula, Σ_l max_c (max_d W + h min_d γ) plus h / max_d σ_d, divided by 2π. It is not a bound, because a
            negative W is as high a frequency as a positive one, and a narrow envelope has a wide spectrum. For an
            N-Jet, all three names give the formula for N-Jets.

    """
    if not isinstance(layer, FlexConvNd):
        raise ArgumentTypeError(f"max_frequency expects a FlexConv layer; got {type(layer).__name__}")
    check_options(formula, mask)
    cutoff = positive("cutoff", cutoff)
    if problem := missing_formula(layer):
        raise ArgumentError(problem)
    return kernel_frequencies([layer], mask=mask, cutoff=cutoff, formula=formula)[0].expand(layer.dims)


def available_formulas(layer: FlexConvNd) -> tuple[str, ...]:
    """The formulas that differ for this layer's generator: one for an N-Jet, none if its spectrum has no formula."""
    if missing_formula(layer):
        return ()
    return ("exact",) if isinstance(layer.generator, NJet) else FORMULAS


def missing_formula(layer: FlexConvNd, name: str = "") -> str | None:
    """An error message if no formula covers the layer's generator, otherwise None."""
    generator, where = layer.generator, f" of layer {name!r}" if name else ""
    if isinstance(generator, GaborNet | FourierNet | NJet):
        return None
    return (
        f"the generator{where} is {type(generator).__name__}, whose spectrum has no formula, because nested "
        "non-linearities create harmonics of every order. MAGNet, GaborNet, FourierNet and NJet have a formula; "
        "`measured_bandwidth` works for every generator"
    )


def check_options(formula: str, mask: bool) -> None:
    """Validate the options that `max_frequency` and `alias_penalty` share."""
    if formula not in FORMULAS:
        unknown_name("formula", formula, FORMULAS)
    check_mask_option(mask)


def check_mask_option(mask: bool) -> None:
    if not isinstance(mask, bool):
        raise ArgumentTypeError(f"mask must be True (count the mask) or False; got {mask!r}")
