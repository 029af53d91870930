"""Replace FlexConv layers with plain convolutions that hold their sampled kernels."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from ._context import no_autocast
from .errors import ArgumentError, PrecisionError
from .nn import (
    FLOAT16_MAX,
    Convert,
    FillsMissing,
    FlexConvNd,
    FrozenNeighbors,
    TapRange,
    check_float16,
    computes_in_float16,
    converted_dtype,
)
from .norm_scale import move_scale_to_norms
from .ops import MOST_DEPTHWISE_PADDING, Pads
from .resolution import at_resolution

CONV_LAYERS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
PADDING_LAYERS = {  # by padding mode and number of axes
    "zeros": {1: nn.ConstantPad1d, 2: nn.ConstantPad2d, 3: nn.ConstantPad3d},
    "reflect": {1: nn.ReflectionPad1d, 2: nn.ReflectionPad2d, 3: nn.ReflectionPad3d},
    "replicate": {1: nn.ReplicationPad1d, 2: nn.ReplicationPad2d, 3: nn.ReplicationPad3d},
    "circular": {1: nn.CircularPad1d, 2: nn.CircularPad2d, 3: nn.CircularPad3d},
}


def materialize(model: nn.Module, *, scale: float | Sequence[float] | None = None) -> nn.Module:
    """Return a copy of the model with every FlexConv replaced by a `torch.nn.Conv1d/2d/3d` that holds its kernel.

        plain = materialize(model)                      # same outputs, without generators and without flexconv
        plain = materialize(model, scale=2)             # the same as materialize(at_resolution(model, 2))

    Each kernel has the current extent of its layer. If the padding differs between the two sides of an axis (causal
    layers, masks that are not centered), the replacement is an `nn.Sequential` of padding layer and convolution. The
    same holds for depthwise convolutions with more than 6 samples of padding, which are many times as fast on a CPU
    that way, and for reflected and periodic padding. There the padding layer pads as much as the whole grid needs, so
    that inputs that are too small for the whole grid raise an error, as in the FlexConv. The kernel is a parameter that
    can be trained, but its size no longer changes. Large kernels may be slower than in a FlexConv, because a plain
    convolution does not use an FFT. A plain `Conv1d` does not accept `lengths`.

    Large kernels are divided by powers of two together with the statistics of the norms behind them, as
    `flexconv.move_scale_to_norms` does, so that the result can be converted to float16. In a separable convolution, the
    1×1 convolution takes over the scale of the kernels.
    """
    source = model if scale is None else at_resolution(model, scale, copy=False)
    if not any(isinstance(module, FlexConvNd) for module in source.modules()):
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: there is nothing to materialize")
    plain = {id(layer): _plain(layer) for layer in source.modules() if isinstance(layer, FlexConvNd)}
    # deepcopy returns the object in its memo in place of a copy: the replacement, wherever the module is used
    result = copy.deepcopy(source, dict(plain))
    for name, module in source.named_modules():
        if isinstance(module, FillsMissing) and isinstance(module.filling_layer, FlexConvNd):
            result.get_submodule(name).neighbors = FrozenNeighbors.of(module.filling_layer)  # for `observed`
    move_scale_to_norms(result)  # so that the result can be converted to float16, by torch or by another program
    for replacement in plain.values():
        _refuse_float16_if_too_large(replacement)
    return result


@torch.no_grad()
def _plain(layer: FlexConvNd) -> nn.Module:
    """One layer as a plain convolution, after a padding layer if the padding is not symmetric."""
    if any(p.is_meta for p in layer.parameters()):
        raise ArgumentError(f"{type(layer).__name__} is on the meta device and has no kernel: load its weights first")
    taps = _taps_with_nonnegative_padding(layer)
    pads = layer.pads_for(taps)
    symmetric = all(left == right >= 0 for left, right in pads) and pads == _pads_to_add(layer, pads)
    in_conv = symmetric and not _is_slow_with_padding(layer, pads)
    weight = _sample(layer, taps)
    if layer.dtype == torch.float16:
        check_float16(f"the kernel of {type(layer).__name__}", weight)
    weight = weight.to(layer.dtype)
    conv = CONV_LAYERS[layer.dims](
        layer.in_channels,
        layer.out_channels,
        tuple(weight.shape[2:]),  # type: ignore[arg-type]
        stride=layer.stride,  # type: ignore[arg-type]
        padding=tuple(left for left, _ in pads) if in_conv else 0,  # type: ignore[arg-type]
        dilation=layer.dilation,  # type: ignore[arg-type]
        groups=layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode if in_conv else "zeros",
        device="meta",
    )
    sources = [p for p in layer.parameters() if p is not layer.bias]
    conv.weight = nn.Parameter(weight, requires_grad=any(p.requires_grad for p in sources))
    if layer.bias is not None:
        conv.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=layer.bias.requires_grad)
    conv.train(layer.training)
    return conv if in_conv else nn.Sequential(*_padding(layer, pads), conv).train(layer.training)


def _is_slow_with_padding(layer: FlexConvNd, pads: Pads) -> bool:
    """Whether padding by the convolution itself would be slow on a CPU, see `ops/_direct.py`."""
    depthwise = 1 < layer.groups == layer.in_channels
    return depthwise and layer.padding_mode == "zeros" and max(left for left, _ in pads) > MOST_DEPTHWISE_PADDING


def _sample(layer: FlexConvNd, taps: tuple[TapRange, ...]) -> torch.Tensor:
    """The kernel on these taps. The layer samples its whole window; doing the same here rounds in the same way."""
    window = layer.window
    if any(start < first or stop > last for (start, stop), (first, last) in zip(taps, window, strict=True)):
        return layer.sample(taps)
    crop = (slice(start - first, stop - first) for (start, stop), (first, _) in zip(taps, window, strict=True))
    return layer.sample(window)[(..., *crop)].contiguous()


def _taps_with_nonnegative_padding(layer: FlexConvNd) -> tuple[TapRange, ...]:
    """The taps within the extent, extended by zero taps as far as necessary to make the padding non-negative."""
    taps = []
    for (start, stop), (left, right), size, step in zip(
        layer.taps, layer.pads, layer.kernel_size, layer.dilation, strict=True
    ):
        taps.append((min(start, max(left, 0) // step), max(stop, size - max(right, 0) // step)))
    return tuple(taps)


def _padding(layer: FlexConvNd, pads: Pads) -> list[nn.Module]:
    """The padding layer, followed by a cropping layer if some of the padding is negative."""
    mode, constant = layer.padding_mode, PADDING_LAYERS["zeros"][layer.dims]
    if mode == "zeros":
        return [constant(tuple(_amounts(pads)), 0.0)]
    added = _amounts(_pads_to_add(layer, pads))
    padding = PADDING_LAYERS[mode][layer.dims](tuple(added))
    crop = tuple(amount - more for amount, more in zip(_amounts(pads), added, strict=True))
    return [padding, constant(crop, 0.0)] if any(crop) else [padding]


def _pads_to_add(layer: FlexConvNd, pads: Pads) -> Pads:
    """The padding that a padding layer adds: never negative, and for the whole grid in modes that limit it.

    Reflected and periodic padding cannot be wider than the input. A FlexConv refuses inputs that are too small for its
    whole grid, and so does the result, although the kernel may need less.
    """
    limited = layer.padding_mode in ("reflect", "circular")
    return tuple((max(0, left), max(0, right)) for left, right in (layer.pads if limited else pads))


def _amounts(pads: Pads) -> list[int]:
    """Padding in the order of torch: the last axis first."""
    return [amount for pair in reversed(pads) for amount in pair]


# --- kernels that are too large for float16 ---------------------------------------------------------------------------


class _NotFloat16(nn.Module):
    """A convolution whose outputs would become infinite in float16 without a word.

    It computes in float32 under float16 autocast, and refuses to be converted to float16.
    """

    def _apply(self, fn: Convert, recurse: bool = True) -> nn.Module:
        total = _largest_tap_sum(self)
        if total > FLOAT16_MAX and converted_dtype(fn, torch.float32) == torch.float16:
            raise PrecisionError(
                f"the taps of a convolution sum to {total:.3g}, which float16 cannot represent (at most "
                f"{FLOAT16_MAX:g}): use bfloat16, or flexconv.move_scale_to_norms if a norm follows the convolution"
            )
        return super()._apply(fn, recurse)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        if not computes_in_float16(input):
            return super().forward(input)  # type: ignore[misc]
        with no_autocast(input.device.type):
            return super().forward(input.to(self.weight.dtype))  # type: ignore[misc, arg-type]


class _LargeConv1d(_NotFloat16, nn.Conv1d):
    pass


class _LargeConv2d(_NotFloat16, nn.Conv2d):
    pass


class _LargeConv3d(_NotFloat16, nn.Conv3d):
    pass


def _refuse_float16_if_too_large(replacement: nn.Module) -> None:
    for conv in replacement.modules():
        for plain, large in ((nn.Conv1d, _LargeConv1d), (nn.Conv2d, _LargeConv2d), (nn.Conv3d, _LargeConv3d)):
            if type(conv) is plain and _largest_tap_sum(conv) > FLOAT16_MAX:
                conv.__class__ = large  # type: ignore[assignment]  (torch.nn.utils.parametrize does the same)


def _largest_tap_sum(conv: nn.Module) -> float:
    """The largest output for inputs between −1 and 1, over all output channels."""
    weight = conv.weight.detach()  # type: ignore[union-attr]
    return 0.0 if weight.is_meta else weight.double().abs().flatten(1).sum(1).max().item()  # type: ignore[operator]
