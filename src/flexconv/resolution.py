"""A model trained at one resolution, used at another.

A FlexConv is an integral in disguise: its taps, s apart, sum ψ(x) over cells of width s. At another resolution the
same integral is summed over taps s' apart, times s'/s per axis, and over the same stretch:

    ψ'[p'] = (s'/s)^D · generator(p') · mask(p') · w(p')

w is 1 but at the ends of the stretch. Where the mask crops, w falls linearly from the last tap kept at the old
resolution to the first one cropped there, and the sum of the window is kept. Where the grid itself ends, the last tap
stands for all that its larger neighbour covered at the old resolution: w = (s + s')/2s'. That matters most on a causal
axis, which ends where the mask is highest. `crop="hard"` has no w: every resolution crops its own taps, as the paper
does.
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
    """The model for inputs with `scale` times as many samples per axis: every FlexConv on a grid as much denser.

        model_32 = at_resolution(model_16, 2)           # trained on 16 × 16, run on 32 × 32
        wide = at_resolution(model, (1, 1.5))           # rectangular
        small = at_resolution(model, 0.5)

    Nothing is learned anew: masks, generators and all other layers keep their parameters, and the result can be
    trained on. Whatever aliases at a lower resolution, or was aliased when it was trained, shows: compare
    `flexconv.spectrum.max_frequency` with the Nyquist limit, and train with `flexconv.alias_penalty`. Statistics of
    batch norms may deserve a `recalibrate_batchnorm`. Other convolutions are left as they are, and so are strides,
    dilations and pooling; padding in samples is scaled.

    Arguments:
        scale: samples now per sample before, a number or one per axis.
        crop: "taper" keeps the stretch that the taps covered before, with a soft end. "hard" lets the mask crop the
            new taps by its threshold, as the paper does.
        copy: give the result parameters and buffers of its own. False: it shares those of `model`, and training one
            trains the other. `model` itself is not changed.

    """
    if crop not in CROPS:
        unknown_name("crop", crop, CROPS)
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: nothing in it follows a resolution")
    for layer in layers:
        _scales(scale, layer.dims)  # refuse before the work begins
    shared = {} if copy else {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
    result = copying.deepcopy(model, shared)
    for layer in result.modules():
        if isinstance(layer, FlexConvNd):
            _resample_(layer, _scales(scale, layer.dims), crop)
    if isinstance(history := getattr(result, "resampled", None), list):  # the networks of flexconv.models save it
        history.append((_scales(scale, layers[0].dims), crop))
    return result


@torch.no_grad()
def recalibrate_batchnorm(model: nn.Module, batches: Iterable[torch.Tensor | Sequence[object]]) -> None:
    """Measure the statistics of every batch norm again, as the plain mean over `batches`, in place.

    At another resolution activations are distributed a little differently. `batches` yields inputs, or tuples that
    begin with them; labels are not used, and nothing else changes: dropout stays off, modes come back as they were.
    Inputs should be augmented as in training: zeros that a crop brings in are part of the statistics that the network
    knows, and without them it may be worse than before. Where a batch fails or the statistics are not finite, the old
    ones come back.
    """
    if isinstance(batches, torch.Tensor):
        raise ArgumentTypeError(
            f"recalibrate_batchnorm wants a list of batches; got one tensor of shape {tuple(batches.shape)}: write "
            f"[tensor] if that is a batch"
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
            norm.momentum = None  # a plain mean
        count = 0
        for count, batch in enumerate(batches, start=1):  # noqa: B007
            model(batch if isinstance(batch, torch.Tensor) else batch[0])
        if not count:
            raise ArgumentError("recalibrate_batchnorm needs at least one batch; got none")
        for name, norm in named.items():
            if not all(statistics.isfinite().all() for statistics in norm.buffers()):
                raise ArgumentError(
                    f"the statistics of {name or type(norm).__name__} over {count} batches are not finite: look for "
                    f"NaN or infinity in the batches"
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
    values = list(scale) if isinstance(scale, Sequence) and not isinstance(scale, str) else [scale] * dims
    if not all(isinstance(value, Real) for value in values):
        raise ArgumentTypeError(f"scale must be a number, or one per axis; got {scale!r}")
    if len(values) != dims:
        raise ArgumentError(
            f"scale needs one number, or one for each of the {dims} axes of a {dims}D layer; got {scale}"
        )
    return [positive("scale", value) for value in values]  # type: ignore[arg-type]


def _resample_(layer: FlexConvNd, scales: Sequence[float], crop: str) -> None:
    old, scaled = layer.axes, not layer.generator.conserves_sum
    new = tuple(
        _resampled(axis, scale, taper=crop == "taper", weighted=scaled) for axis, scale in zip(old, scales, strict=True)
    )
    density = math.prod(after.spacing / before.spacing for after, before in zip(new, old, strict=True))
    layer.grid = KernelGrid(
        axes=new,
        padding=_scaled_padding(layer, new, scales),
        scale=layer.grid.scale * (density if scaled else 1.0),
        resampled=True,
    )


def _resampled(axis: Axis, scale: float, *, taper: bool, weighted: bool) -> Axis:
    """The axis with `scale` times as many taps: the number that comes closest to the stretch it had.

    Always from the grid that was trained on, so that there and back is where it was.
    """
    old = axis.origin or axis
    scale *= old.spacing / axis.spacing
    if old.size == 1 or math.isclose(scale, 1.0):
        return old
    spacing, intervals = old.spacing / scale, (old.size - 1) * scale
    symmetric = not old.causal and old.size % 2 == 1  # there is a tap at 0: keep it
    size = 2 * round(intervals / 2) + 1 if symmetric else round(intervals) + 1
    new = Axis(size, old.causal, None if math.isclose(spacing * (size - 1), 2.0) else spacing)
    if not taper:
        return new
    # a tap stands for half a spacing on either side of it; the outer half of the last one is the same stretch as before
    first = 0.5 + (new.first - old.first + old.spacing / 2) / spacing
    last = 0.5 + (old.last + old.spacing / 2 - new.last) / spacing
    ends = (first, last) if size > 1 else (first + last - 1.0, 1.0)  # both ends are the one tap there is
    return new._replace(origin=old, ends=ends if weighted else (1.0, 1.0))


def _scaled_padding(layer: FlexConvNd, new: Sequence[Axis], scales: Sequence[float]) -> Padding:
    """Padding counted in samples grows with them; a named one stays."""
    if isinstance(layer.padding, str):
        return layer.padding
    each = [layer.padding] * layer.dims if isinstance(layer.padding, int) else layer.padding
    return tuple(
        pad if isinstance(pad, str) else _scaled_pads(pads, step * (before - 1), step * (after.size - 1), scale)
        for pad, pads, before, after, step, scale in zip(
            each, layer.pads, layer.kernel_size, new, layer.dilation, scales, strict=True
        )
    )


def _scaled_pads(pads: tuple[int, int], before: int, after: int, scale: float) -> tuple[int, int]:
    """Both pads for a kernel that reached over `before` samples and now over `after`.

    What the output loses against the input scales, so that an output as long as its input stays that. What is left of
    rounding goes to the right.
    """
    total = after - round(scale * (before - sum(pads)))
    left = round(after / 2 - scale * (before / 2 - pads[0]))  # the middle of the kernel stays where it was
    if min(pads) >= 0:  # rounding alone makes no padding negative
        total = max(total, 0)
        left = min(max(left, 0), total)
    return left, total - left
