"""Create the FlexConv that replaces a convolution: its grid, padding, mask and generator."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from .._arguments import as_int, per_axis, positive_int
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import GENERATORS, PAPER_INPUT_SCALE, PAPER_TAPS, FlexConvNd, GaussianMask, KernelFactory, parameter_dtype
from ..ops import Padding
from ._find import COUNTERPARTS, Convolution
from ._fit import output_map

FLAT_SIGMA = 2.0  # σ of a mask that covers the whole grid [−1, 1]

GridSize = int | Sequence[int]


def grid_size(each: Convolution, kernel_size: int | Callable[[str, nn.Module], GridSize] | None) -> tuple[int, ...]:
    """Validate the `kernel_size` argument of `convert` → taps of the new grid, per axis."""
    old = each.kernel_size
    if kernel_size is None:
        return old
    if callable(kernel_size):
        new = per_axis("kernel_size", kernel_size(each.name, each.conv), len(old), minimum=1)
    elif as_int(kernel_size) is not None:
        most = positive_int("kernel_size", kernel_size)
        new = tuple(most if size > 1 else 1 for size in old)
    else:
        raise ArgumentTypeError(
            f"kernel_size must be an int, None or a function of (name, module); got {kernel_size!r}"
        )
    if any(after < before for after, before in zip(new, old, strict=True)):
        sizes = ("×".join(map(str, size)) for size in (new, old))
        raise ArgumentError("kernel_size {} is smaller than the {} kernel of {}".format(*sizes, each.label))
    return new


def _starts(old: Sequence[int], grid: Sequence[int]) -> list[int]:
    """The tap of the grid at which the old kernel begins, per axis. It is centered, or half a tap before the center."""
    return [(size - taps) // 2 for size, taps in zip(grid, old, strict=True)]


def _padding(each: Convolution, grid: Sequence[int]) -> Padding:
    """The padding with which the taps of the old kernel meet the same samples as before."""
    conv, old = each.conv, each.kernel_size
    pads = []
    for axis, (taps, size, step, start) in enumerate(zip(old, grid, conv.dilation, _starts(old, grid), strict=True)):
        reach = step * (taps - 1)
        if conv.padding == "same":
            left, right = reach // 2, reach - reach // 2
        else:
            left = right = 0 if conv.padding == "valid" else conv.padding[axis]
        pads.append((left + start * step, right + (size - taps - start) * step))
    if all(
        left == right == step * (size - 1) / 2
        for (left, right), step, size in zip(pads, conv.dilation, grid, strict=True)
    ):
        return "same"
    return tuple(left if left == right else (left, right) for left, right in pads)


def make_layer(each: Convolution, grid: tuple[int, ...], generator: str | KernelFactory, *, fit: bool) -> FlexConvNd:
    """A FlexConv in place of a convolution. Its mask starts with the extent of the old kernel."""
    conv, old, weight = each.conv, each.kernel_size, each.weight()
    factory_kwargs: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    kind = parametrize.type_before_parametrizations(conv)
    factory = _suitable_generator(generator, grid, old) if fit and isinstance(generator, str) else generator
    layer = COUNTERPARTS[kind](
        conv.in_channels,
        conv.out_channels,
        grid,
        conv.stride,
        _padding(each, grid),
        conv.dilation,
        conv.groups,
        conv.bias is not None,
        conv.padding_mode,
        **factory_kwargs,
        generator=factory,
        mask=_mask_around(old, grid, device=weight.device, dtype=parameter_dtype(weight.dtype)),
        parametrization="paper",
    )
    if hasattr(layer.generator, "size_parameters"):
        layer.mask = None
    if layer.mask is None and fit:
        raise ArgumentError(
            f"init='fit' needs a generator with a mask; {type(layer.generator).__name__} learns its own size: "
            "choose another generator"
        )
    weights = [p for name, p in conv.named_parameters() if not name.endswith("bias")]
    for part in (layer.generator, layer.mask):
        if part is not None:
            part.requires_grad_(any(p.requires_grad for p in weights))
    if layer.bias is not None:
        with torch.no_grad():
            layer.bias.copy_(conv.bias)
        layer.bias.requires_grad_(conv.bias.requires_grad)
    return layer.train(conv.training)


def _mask_around(old: Sequence[int], grid: Sequence[int], **factory_kwargs: Any) -> GaussianMask:
    """A mask that falls to its threshold half a tap outside the old kernel.

    It is nearly flat if the old kernel fills the grid: `at_resolution` preserves the sum of the mask, and the flatter
    the mask is, the less that changes the kernel.
    """
    means, sigmas = [], []
    for taps, size, start in zip(old, grid, _starts(old, grid), strict=True):
        spacing = 2.0 / max(size - 1, 1)
        means.append((start + (taps - 1) / 2 - (size - 1) / 2) * spacing)
        sigmas.append(FLAT_SIGMA if size == taps else taps / 2 * spacing / math.sqrt(-2 * math.log(0.1)))
    return GaussianMask(len(grid), mean=means, sigma=sigmas, threshold=0.1, form="guarded", **factory_kwargs)


def _suitable_generator(name: str, grid: Sequence[int], kernel_size: Sequence[int]) -> KernelFactory:
    """A generator with enough features for the kernel's taps, and with frequencies that its grid can represent."""
    taps = math.prod(
        max(taps, min(size, 3)) for taps, size in zip(kernel_size, grid, strict=True)
    )  # a mask keeps at least 3
    coarseness = (PAPER_TAPS - 1) / (max(grid) - 1)  # the spacing of this grid relative to that of the usual one
    options: dict[str, dict[str, float]] = {
        "magnet": {"beta": coarseness, "input_scale": PAPER_INPUT_SCALE},  # smaller γ, and frequencies ∝ γ
        "gabor": {"beta": coarseness, "input_scale": PAPER_INPUT_SCALE},
        "fourier": {"input_scale": PAPER_INPUT_SCALE / coarseness},
        "siren": {"omega_0": 30.0 / coarseness},
        "nsiren": {"omega_0": 30.0 / coarseness},
    }
    if name != "njet":
        options[name] = options.get(name, {}) | {"hidden": min(128, max(32, 2 ** math.ceil(math.log2(taps + 1))))}
    return functools.partial(GENERATORS[name], **options.get(name, {}))


def target_kernel(each: Convolution, layer: FlexConvNd) -> torch.Tensor:
    """The old kernel on the taps within the layer's extent, padded with zeros if the extent is larger."""
    weight = each.weight()
    whole = weight.new_zeros(*weight.shape[:2], *layer.kernel_size)
    starts = _starts(each.kernel_size, layer.kernel_size)
    inner = tuple(slice(start, start + taps) for start, taps in zip(starts, each.kernel_size, strict=True))
    whole[(..., *inner)] = weight
    return whole[(..., *(slice(*taps) for taps in layer.taps))]


@torch.no_grad()
def match_norm(each: Convolution, layer: FlexConvNd) -> None:
    """Scale a new kernel to the norm of the old one, so that activations keep their scale."""
    last = output_map(layer.generator)
    if last is None or last.weight.is_meta:
        return
    old, new = each.weight().double().norm().item(), layer.kernel().double().norm().item()
    if old > 0 and new > 0 and math.isfinite(old / new):
        last.weight.mul_(old / new)
        last.bias.mul_(old / new)
