"""Small layers, and measurements on them, shared by the tests of `flexconv.spectrum`."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flexconv.compat import from_authors
from flexconv.nn import FlexConv1d, FlexConv2d, GaussianMask, MAGNet
from flexconv.sampling import dense_kernel, oversampled
from flexconv.spectrum import energy_spectrum
from flexconv.spectrum._formulas import mask_terms

METHODS = ["per_filter", "per_kernel"]
FORMULAS = ["exact", "authors", "paper"]


class CountOps(TorchDispatchMode):
    """Counts the operations that run while it is active."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def authors_model(golden, size):
    """The two layers of the golden file, as a ModuleDict {"a", "b"}."""

    def state(prefix):
        return {k.removeprefix(prefix): v.astype(np.float64) for k, v in golden.state.items() if k.startswith(prefix)}

    return nn.ModuleDict({name: from_authors(state(f"{name}."), kernel_size=size) for name in "ab"})


def make_layer(kind=FlexConv2d, size=17, *, sigma=0.2, mask=None, generator=MAGNet, channels=3, **options):
    """A FlexConv of the paper in float64 with 1 input channel, whose frequencies are not limited.

    `options` go to the generator.
    """
    return kind(
        1,
        channels,
        size,
        dtype=torch.float64,
        generator=partial(generator, **options),
        mask=mask or GaussianMask(kind.dims, sigma=sigma, dtype=torch.float64),
        parametrization="paper",
    )


def small_layer(**options):
    return make_layer(**({"hidden": 4, "layers": 2, "size": 17} | options))


def one_gabor(frequency, gamma, phase=0.3, size=33, **options):
    """A layer whose kernel is one Gabor filter: the second filter of its network is constant."""
    dims = len(frequency)
    kind = {1: FlexConv1d, 2: FlexConv2d}[dims]
    generator = MAGNet(dims, 1, hidden=1, layers=1, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, values in {
            "frequency": [[frequency], [[0.0] * dims]],
            "gamma": [[gamma], [[1e-9] * dims]],
            "phase": [[phase], [math.pi / 2]],
            "mix_weight": [[[1.0]]],
        }.items():
            getattr(generator, name).copy_(torch.tensor(values, dtype=torch.float64))
        for zero in (generator.mu, generator.mix_bias, generator.output.bias):
            zero.zero_()
        generator.output.weight.fill_(1.0)
    return kind(1, 1, size, dtype=torch.float64, generator=generator, mask=None)


def share_above(layer, limits, *, mask=True, oversample=8):
    """The share of the kernel's energy above the limit of each axis."""
    axes = [oversampled(axis, oversample) for axis in layer.axes]
    with torch.no_grad():
        values = dense_kernel(layer, axes, mask=mask)
        shares = []
        for d, (axis, limit) in enumerate(zip(axes, limits, strict=True)):
            energy = energy_spectrum(values, d + 1)
            frequencies = torch.arange(len(energy)) / (2 * (len(energy) - 1) * axis.spacing)
            shares.append((energy[frequencies > limit].sum() / energy.sum()).item())
    return shares


def highest_product(layer, *, mask, cutoff=2.0):
    """The slow twin of `max_frequency`: the maximum over all products of one channel of each filter."""
    precision = getattr(layer.generator, "gamma", torch.zeros(1)).square().expand_as(layer.generator.frequency)
    frequencies, precisions = torch.zeros(1, layer.dims), torch.zeros(1, layer.dims)
    for w, p in zip(layer.generator.frequency.abs(), precision, strict=True):
        frequencies, precisions = ((a[:, None] + b).flatten(0, 1) for a, b in ((frequencies, w), (precisions, p)))
    extra = mask_terms([layer]).precision[0] if mask else 0.0
    return ((frequencies + cutoff * (precisions + extra).sqrt()).amax(0) / (2 * math.pi)).detach()
