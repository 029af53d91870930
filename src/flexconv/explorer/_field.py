"""The receptive field of a network: how far it could look, and how far it does.

The effective receptive field (Luo et al., Understanding the effective receptive field in deep convolutional neural
networks, 2016) is the gradient of one output position with respect to the input. Here it is the root mean square over
samples, input channels and output channels:

    field(p)² = mean over samples and input channels of (Σ_c s_c ∂y_c / ∂x(p))²,    random signs s_c

The expectation over the signs is the sum of the squared gradients of all output channels, so one backward pass per
sample is enough. y is the last feature map with positions, before pooling, at its center, or at its last position if
the network is causal.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ..nn import FlexConvNd
from ._pack import pack

SAMPLES = 16
AT_ONCE = 4  # samples per pass, to limit the memory
SHARES = {"half": 0.5, "most": 0.9}  # of the field within the radii that the page draws

_Pool = nn.MaxPool1d | nn.MaxPool2d | nn.AvgPool1d | nn.AvgPool2d


def receptive_field(
    model: nn.Module, shape: Sequence[int] | None, samples: torch.Tensor | None = None
) -> dict[str, Any] | None:
    """The effective and the theoretical receptive field of a network on sequences or images; None for others.

    {"position": [the output position, in samples of the input], "size": [of the input], "values": packed [1, size],
     "radius": {"half", "most"}, "reach": [[before, after] per axis], "samples": count, "noise": whether they are noise}

    `radius` contains distances from the position, in samples of the input: 50 % and 90 % of the sum of the field lie
    within them. `reach` is the theoretical receptive field, which is the sum of all kernel sizes.

    Arguments:
        shape: the shape [batch, channels, *size] of the noise, if there are no samples.
        samples: inputs of the network, [batch, channels, *size].

    """
    if shape is None or len(shape) not in (3, 4):
        return None
    model = copy.deepcopy(model).eval().requires_grad_(False)
    if next(model.parameters()).itemsize < 4:
        model = model.float()  # gradients in half precision could overflow
    reference = next(model.parameters())
    noise = samples is None
    if samples is None:
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(SAMPLES, *shape[1:], generator=generator)
    samples = samples.to(reference)
    probe = _Probe(model, dims=len(shape) - 2)
    total, position = torch.zeros(samples.shape[2:], dtype=torch.float64), ()
    for batch in samples.split(AT_ONCE):
        gradient, position = probe.gradient(batch)
        total += gradient.double().square().sum((0, 1)).cpu()
    field = (total / (len(samples) * samples.shape[1])).sqrt().numpy()
    if not position or not np.isfinite(field).all() or not field.any():
        return None
    return {
        "position": position,
        "size": list(field.shape),
        "values": pack(field.reshape(1, -1)),
        "radius": {name: _radius(field, position, share) for name, share in SHARES.items()},
        "reach": probe.reach,
        "samples": len(samples),
        "noise": noise,
    }


def _radius(field: np.ndarray, position: Sequence[float], share: float) -> float:
    """The smallest distance from the position within which `share` of the sum of the field lies."""
    offsets = np.meshgrid(*(np.arange(n) - at for n, at in zip(field.shape, position, strict=True)), indexing="ij")
    distance = np.sqrt(sum(offset**2 for offset in offsets)).ravel()
    order = distance.argsort()
    inside = field.ravel()[order].cumsum()
    return float(distance[order][np.searchsorted(inside, share * inside[-1])])


class _Probe:
    """Runs a model and observes its last feature map with positions, and how far its convolutions look."""

    def __init__(self, model: nn.Module, *, dims: int) -> None:
        self.model, self.dims = model, dims
        self.reach = [[0.0, 0.0] for _ in range(dims)]
        layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
        inside = {id(part) for layer in layers for part in layer.modules() if part is not layer}
        self.observed = [module for module in model.modules() if id(module) not in inside]
        self.causal = bool(layers) and all(axis.causal for layer in layers for axis in layer.axes)
        self.random = torch.Generator().manual_seed(1)
        self.last: torch.Tensor | None = None

    def gradient(self, batch: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        """The gradient of one position with random signs → [batch, channels, *size], and this position in the input."""
        batch = batch.clone().requires_grad_()
        self.reach = [[0.0, 0.0] for _ in range(self.dims)]
        with ExitStack() as hooks, torch.enable_grad():
            for module in self.observed:
                handle = module.register_forward_hook(self._observer(batch.shape[2:]))
                hooks.callback(handle.remove)
            self.model(batch)
        last, self.last = self.last, None
        if last is None:
            return torch.zeros_like(batch), []
        sizes = last.shape[2:]
        place = [size - 1 if self.causal else size // 2 for size in sizes]
        at = last[(..., *place)]
        signs = torch.randint(2, at.shape, generator=self.random).to(at) * 2 - 1
        (gradient,) = torch.autograd.grad((at * signs).sum(), batch)
        steps = [whole / size for whole, size in zip(batch.shape[2:], sizes, strict=True)]
        return gradient, [index * step for index, step in zip(place, steps, strict=True)]

    def _observer(self, size: Sequence[int]) -> Callable[..., None]:
        def observe(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if not isinstance(output, torch.Tensor) or output.ndim != self.dims + 2:
                return
            if output.requires_grad and math.prod(output.shape[2:]) > 1:
                self.last = output
            for axis, (before, after) in enumerate(_looks(module, self.dims)):
                step = size[axis] / inputs[0].shape[axis + 2]
                self.reach[axis][0] += before * step
                self.reach[axis][1] += after * step

        return observe


def _looks(module: nn.Module, dims: int) -> list[tuple[int, int]]:
    """How many samples a layer looks back and ahead along each axis. Empty for layers that only see one position."""
    if isinstance(module, FlexConvNd):
        pads = [before for before, _ in module.pads_for(module.taps)]
        spans = [step * (stop - start - 1) for step, (start, stop) in zip(module.dilation, module.taps, strict=True)]
    elif isinstance(module, _ConvNd) and not module.transposed:
        spans = [step * (size - 1) for step, size in zip(module.dilation, module.kernel_size, strict=True)]
        pads = [span // 2 for span in spans] if isinstance(module.padding, str) else list(module.padding)
    elif isinstance(module, _Pool):
        sizes, pads = (_per_axis(each, dims) for each in (module.kernel_size, module.padding))
        spans = [size - 1 for size in sizes]
    else:
        return []
    return [(pad, span - pad) for pad, span in zip(pads, spans, strict=True)]


def _per_axis(value: int | tuple[int, ...], dims: int) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value] * dims
