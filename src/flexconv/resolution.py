"""Run a model at another resolution than the one it was trained at.

The output of a FlexConv approximates an integral: the kernel ψ is a function of position, and the sum over taps at
distance s is a Riemann sum with cells of width s. At another resolution, the same integral is approximated with taps at
distance s'. The kernel is sampled at the new taps p' and multiplied by the ratio of the cell widths of the D axes:

    ψ'[p'] = (s'/s)^D · generator(p') · mask(p') · w(p')

The weights w make the new taps cover the same interval as the old ones. They are 1 except at the ends of the kernel.
There are two cases:

- The kernel ends where the mask crops it. Then w falls linearly from 1 to 0 between the last tap that was kept and the
  first tap that was cropped at the old resolution. The mask is also scaled such that its sum is preserved.
- The kernel ends where the grid ends. There, the cells of the old and the new outermost tap end at different positions.
  The new tap gets the weight w = (s + s')/2s', so that the kernel covers the same interval. This matters most on a
  causal axis, where the mask is largest at the end of the grid.

This is `crop="taper"`. With `crop="hard"` there are no weights: the mask crops the new taps by its threshold, as in the
paper.
"""

from __future__ import annotations

import copy as copying
import itertools
import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._arguments import positive, unknown_name
from .errors import ArgumentError, ArgumentTypeError
from .nn import Axis, FlexConvNd, KernelGrid
from .ops import Padding

CROPS = ("taper", "hard")

Module = TypeVar("Module", bound=nn.Module)


def at_resolution(model: Module, scale: float | Sequence[float], *, crop: str = "taper", copy: bool = True) -> Module:
    """Return the model for inputs with `scale` times as many samples per axis.

        model_32 = at_resolution(model_16, 2)           # trained on 16 × 16, run on 32 × 32
        wide = at_resolution(model, (1, 1.5))           # one ratio per axis
        small = at_resolution(model, 0.5)

    Every FlexConv gets a grid with `scale` times as many taps per unit. All parameters keep their values, and the
    result can be trained further. Padding that is given in samples is scaled. Strides, dilations, pooling and other
    convolutions are not changed.

    Results differ between resolutions if a kernel contains frequencies above the Nyquist frequency of one of the grids.
    `flexconv.spectrum.alias_report(model, scale)` measures whether they do. To avoid it, train with
    `flexconv.alias_penalty`. Batch norms often need `recalibrate_batchnorm` at the new resolution.

    Arguments:
        model: a model with FlexConv layers, or a layer. It is not changed.
        scale: ratio of the new to the old number of samples, a number or one per axis.
        crop: "taper" covers the same interval as before, with a linear ramp at the ends. "hard" crops the new taps by
            the threshold of the mask, as in the paper.
        copy: whether to copy parameters and buffers. If False, the result shares them with `model`, so that training
            one trains the other.

    """
    if crop not in CROPS:
        unknown_name("crop", crop, CROPS)
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: there is nothing to resample")
    for layer in layers:
        _scales(scale, layer.dims)  # raises errors before anything is copied
    shared = {} if copy else {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    result = copying.deepcopy(model, shared)
    for layer in result.modules():
        if isinstance(layer, FlexConvNd):
            _resample_(layer, _scales(scale, layer.dims), crop)
    return result


@torch.no_grad()
def recalibrate_batchnorm(model: nn.Module, batches: Iterable[torch.Tensor | Sequence[object]]) -> None:
    """Recompute the running statistics of every batch norm, in place, as the mean over `batches`.

    At another resolution, activations have a slightly different distribution. Nothing else in the model changes:
    dropout is disabled during the computation, and training modes are restored afterwards. If a batch raises an error
    or the statistics are not finite, the old statistics are restored.

    Arguments:
        model: a model with batch norms.
        batches: yields inputs, or tuples whose first element is the input. Labels are not used. Augment the inputs as
            in training: the zeros that random crops add are part of the statistics that the network was trained with,
            and without them accuracy may fall.

    """
    if isinstance(batches, torch.Tensor):
        raise ArgumentTypeError(
            f"recalibrate_batchnorm expects an iterable of batches; got one tensor of shape {tuple(batches.shape)}. "
            f"If it is a batch, pass [tensor]"
        )
    named = measurable_norms(model)
    norms = list(named.values())
    if not norms:
        raise ArgumentError(f"{type(model).__name__} has no batch norm with running statistics: nothing to recalibrate")
    modes = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    before = [copying.deepcopy(dict(norm.named_buffers())) for norm in norms]
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # the mean over all batches
        count = 0
        for count, batch in enumerate(batches, start=1):  # noqa: B007
            model(batch if isinstance(batch, torch.Tensor) else batch[0])
        if not count:
            raise ArgumentError("recalibrate_batchnorm needs at least one batch; got none")
        for name, norm in named.items():
            if not all(statistics.isfinite().all() for statistics in norm.buffers()):
                raise ArgumentError(
                    f"the statistics of {name or type(norm).__name__} over {count} batches are not finite: check the "
                    f"batches for NaN and infinity"
                )
    except BaseException:
        for norm, statistics in zip(norms, before, strict=True):
            for name, buffer in norm.named_buffers():
                buffer.copy_(statistics[name])
        raise
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode


def measurable_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms of a model that keep running statistics, by name."""
    modules = model.named_modules()
    return {name: norm for name, norm in modules if isinstance(norm, _BatchNorm) and norm.track_running_stats}


def _scales(scale: float | Sequence[float], dims: int) -> list[float]:
    """Validate `scale` → one number per axis."""
    values = list(scale) if isinstance(scale, Sequence) and not isinstance(scale, str) else [scale] * dims
    if not all(isinstance(value, Real) for value in values):
        raise ArgumentTypeError(f"scale must be a number or one number per axis; got {scale!r}")
    if len(values) != dims:
        raise ArgumentError(
            f"scale must be a number or have {dims} numbers, one per axis of a {dims}D layer; got {scale}"
        )
    return [positive("scale", value) for value in values]  # type: ignore[arg-type]


def _resample_(layer: FlexConvNd, scales: Sequence[float], crop: str) -> None:
    """Replace the grid of a layer. Generators whose kernels keep their sum at any density get no factor or weights."""
    old, scaled = layer.axes, not layer.generator.conserves_sum
    new = tuple(
        _resample_axis(axis, scale, taper=crop == "taper", weighted=scaled)
        for axis, scale in zip(old, scales, strict=True)
    )
    cell_ratio = math.prod(after.spacing / before.spacing for after, before in zip(new, old, strict=True))
    layer.grid = KernelGrid(
        axes=new,
        padding=_scale_padding(layer, new, scales),
        scale=layer.grid.scale * (cell_ratio if scaled else 1.0),
        resampling=(*layer.grid.resampling, (tuple(scales), crop)),
    )


def _resample_axis(axis: Axis, scale: float, *, taper: bool, weighted: bool) -> Axis:
    """The axis with `scale` times as many taps per unit, and the number of taps that best covers the same interval.

    With a taper it is computed from the axis that was trained on, so that resampling back gives the original axis.
    """
    old = axis.origin or axis
    scale *= old.spacing / axis.spacing
    if old.size == 1 or math.isclose(scale, 1.0):
        return old
    spacing, intervals = old.spacing / scale, (old.size - 1) * scale
    symmetric = not old.causal and old.size % 2 == 1  # there is a tap at 0, which is kept
    size = 2 * round(intervals / 2) + 1 if symmetric else round(intervals) + 1
    new = Axis(size, old.causal, None if math.isclose(spacing * (size - 1), 2.0) else spacing)
    if not taper:
        return new
    # A cell extends half a spacing to each side of its tap. The weights of the outermost taps extend their cells to the
    # ends of the old outermost cells.
    first = 0.5 + (new.first - old.first + old.spacing / 2) / spacing
    last = 0.5 + (old.last + old.spacing / 2 - new.last) / spacing
    ends = (first, last) if size > 1 else (first + last - 1.0, 1.0)  # a single tap is both ends
    return new._replace(origin=old, ends=ends if weighted else (1.0, 1.0))


def _scale_padding(layer: FlexConvNd, new: Sequence[Axis], scales: Sequence[float]) -> Padding:
    """The padding at the new resolution: padding in samples is scaled, and named padding stays the same."""
    if isinstance(layer.padding, str):
        return layer.padding
    each = [layer.padding] * layer.dims if isinstance(layer.padding, int) else layer.padding
    return tuple(
        pad if isinstance(pad, str) else _scale_pads(pads, step * (before - 1), step * (after.size - 1), scale)
        for pad, pads, before, after, step, scale in zip(
            each, layer.pads, layer.kernel_size, new, layer.dilation, scales, strict=True
        )
    )


def _scale_pads(pads: tuple[int, int], before: int, after: int, scale: float) -> tuple[int, int]:
    """Left and right padding for a kernel that spanned `before` intervals and now spans `after`.

    The difference between the lengths of input and output is scaled. In particular, an output that was as long as its
    input stays so. The remainder of rounding is added on the right.
    """
    total = after - round(scale * (before - sum(pads)))
    left = round(after / 2 - scale * (before / 2 - pads[0]))  # the center of the kernel stays in place
    if min(pads) >= 0:  # rounding must not make the padding negative
        total = max(total, 0)
        left = min(max(left, 0), total)
    return left, total - left
