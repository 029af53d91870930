"""A penalty on kernels whose frequencies exceed the Nyquist frequency of their grid."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import nn

from .._arguments import positive, unknown_name
from ..errors import ArgumentError
from ..nn import FlexConvNd, RotatedGaussianMask
from ..nn.kernels import FourierNet, GaborNet, NJet
from ._bounds import check_options, missing_formula
from ._formulas import filter_frequencies, kernel_frequencies, stack_rows

METHODS = ("per_filter", "per_kernel")
RENAMED_METHODS = {"together": "per_filter", "summed": "per_kernel"}  # names of flexconv 0.1
MISSING = ("error", "skip")


def alias_penalty(
    model: nn.Module,
    *,
    weight: float = 0.1,
    cutoff: float = 2.0,
    method: str = "per_filter",
    mask: bool = False,
    formula: str = "authors",
    missing: str = "error",
) -> torch.Tensor:
    """Penalty on kernels above the Nyquist frequency of their grid, summed over the layers of a model → scalar.

        "per_filter":   weight · Σ_layers Σ_l relu( f_l − nyq / L )²
        "per_kernel":   weight · Σ_layers relu( f − nyq )²,             f from `max_frequency`

    "per_filter" limits each of the L filters of a generator to an equal share of the Nyquist frequency. "per_kernel"
    limits the kernel as a whole. With `formula="authors"`, the frequency of a filter is one number for all axes,
    f_l = ( max_cd |W| + h max_cd |γ| + h / (L min_d σ_d) ) / 2π, and nyq is the lowest Nyquist frequency of the axes.
    With `formula="exact"`, each axis has its own frequency, max_c( |W| + h √(p + m_d/L) ) / 2π, and the penalties of
    the axes are added. The terms with σ and m are present only if the mask is counted. An N-Jet is a single filter, and
    `formula` makes no difference to it.

    Where the penalty is 0, `max_frequency` with the same `mask` is below the Nyquist frequency. The formula "paper" is
    the exception, because it is not a bound. Layers of the same shape are evaluated as one batch, and the computation
    never waits for the device.

    Arguments:
        weight: factor of the penalty; the paper's runs use 0.1.
        cutoff: the number h of standard deviations of an envelope's spectrum to count.
        method: "per_filter" or "per_kernel". The former names "together" and "summed" are deprecated.
        mask: whether to count the mask (the paper's "f_FlexConv") or the generator alone ("f_MAGNet", which the paper
            used most). Counting the mask also makes it wider, and a mask that is wider than the domain leaves a
            discontinuity at ±1 that no formula counts.
        formula: as in `max_frequency`. The authors' formula is stricter. FlexNets trained with it on CIFAR-10 were more
            accurate, both at the training resolution and at twice that (docs/differences.md). The exact
            formula is tighter, and more so the more the axes of a grid differ.
        missing: what to do if a layer's generator has no formula: raise an "error", or "skip" the layer.

    """
    check_options(formula, mask)
    method = _current_name(method)
    if missing not in MISSING:
        unknown_name("value of missing", missing, MISSING)
    if not 0 <= weight < math.inf:
        raise ArgumentError(f"weight must be a finite number of at least 0; got {weight}")
    cutoff = positive("cutoff", cutoff)
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: there is nothing to penalize")
    total = layers[0][1].reference_tensor().new_zeros(())
    for group in _group_by_shape(layers, mask, missing):
        total = total + _group_penalty(group, method, mask=mask, cutoff=cutoff, formula=formula).to(total.device)
    return weight * total


def _current_name(method: str) -> str:
    """Validate `method`; replaces a deprecated name and warns about it."""
    if method in RENAMED_METHODS:
        new = RENAMED_METHODS[method]
        warnings.warn(
            f"alias_penalty: method={method!r} is deprecated, use method={new!r}", DeprecationWarning, stacklevel=3
        )
        return new
    if method not in METHODS:
        unknown_name("method", method, METHODS)
    return method


def _group_penalty(
    layers: Sequence[FlexConvNd], method: str, *, mask: bool, cutoff: float, formula: str
) -> torch.Tensor:
    """The penalty of G layers of the same shape, without its weight → scalar."""
    limits = [[1 / (2 * axis.spacing) for axis in layer.axes] for layer in layers]
    njets = isinstance(layers[0].generator, NJet)
    if formula != "exact" and not njets:
        limits = [[min(each)] for each in limits]
    if method == "per_kernel" or njets:
        values = kernel_frequencies(layers, mask=mask, cutoff=cutoff, formula=formula)
        return torch.relu(values - stack_rows(limits, like=values)).square().sum()
    values = filter_frequencies(layers, mask=mask, cutoff=cutoff, formula=formula)
    limit = stack_rows(limits, like=values).unsqueeze(1) / values.shape[1]
    return torch.relu(values - limit).square().sum()


def _group_by_shape(layers: Sequence[tuple[str, FlexConvNd]], mask: bool, missing: str) -> list[list[FlexConvNd]]:
    """Groups of layers whose parameters can be stacked."""
    groups: dict[tuple[object, ...], list[FlexConvNd]] = {}
    for name, layer in layers:
        problem = missing_formula(layer, name)
        if problem is None:
            groups.setdefault(_shape_key(layer, mask), []).append(layer)
        elif missing == "error":
            raise ArgumentError(f"{problem} (missing='skip' ignores such layers)")
    return list(groups.values())


def _shape_key(layer: FlexConvNd, mask: bool) -> tuple[object, ...]:
    """Layers with equal keys have parameters of the same shapes and dtypes on the same device."""
    generator, like = layer.generator, layer.reference_tensor()
    shape: tuple[object, ...] = (layer.dims, str(like.dtype), str(like.device))
    if isinstance(generator, NJet):
        shape += ("njet",)
    elif isinstance(generator, FourierNet):
        shape += ("fourier", generator.filters, generator.hidden)
    elif isinstance(generator, GaborNet):
        shape += ("gabor", generator.filters, generator.hidden, generator.gamma.shape[-1], generator.theta is None)
    if not mask or layer.mask is None:
        return (*shape, "no mask")
    return (*shape, isinstance(layer.mask, RotatedGaussianMask), str(layer.mask.sigma.dtype))
