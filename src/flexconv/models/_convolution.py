"""The convolutions of a network: FlexConvs, CKConvs, N-Jets or plain ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .._arguments import check_name, per_axis, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import GENERATORS, PARAMETRIZATIONS, FlexConv1d, FlexConv2d, GaussianMask, parameter_dtype

CONVOLUTIONS = ("flex", "ck", "plain")

_SIZED_GENERATORS = ("njet",)  # learn their own size: no mask, and no bias, as published
#: initial masks of networks by parametrization and number of axes; in 1D, the mask of a single layer would leave one
#: twelfth of a sequence (docs/masks.md)
_MASKS: dict[tuple[str, int], dict[str, Any]] = {
    ("paper", 1): {"sigma": 0.354, "form": "guarded"},
    ("paper", 2): {"sigma": 0.075, "form": "guarded"},
    ("scaled", 1): {"sigma": 0.354, "form": "scaled"},
    ("scaled", 2): {"form": "scaled"},
}


class ConvolutionFactory:
    """Makes the convolutions of a network: `make(in_channels, out_channels, kernel_size)`.

    1D convolutions are causal, 2D convolutions are centered. The output size is ⌈input size / stride⌉.

    Arguments:
        conv: "flex" (a kernel generator with a learnable mask), "ck" (CKConv: the same without a mask, always the
            whole grid) or "plain" (`torch.nn.Conv2d`).
        generator: a name from `flexconv.nn.GENERATORS`. "njet" learns its own size and has neither mask nor bias.
        generator_options: keyword arguments of the generator, such as {"hidden": 16} or {"omega_0": 20.0}.
        mask_options: keyword arguments of `GaussianMask`, such as {"sigma": 0.2} or {"form": "authors"}. In 1D, the
            default sigma is 0.354.
        parametrization: "scaled" for initial values and parameters that suit the grid, or "paper"; see `FlexConv1d`.
        algorithm: how to compute convolutions; see `flexconv.ops`.

    """

    def __init__(
        self,
        dims: int,
        *,
        conv: str,
        generator: str,
        generator_options: Mapping[str, Any] | None,
        mask_options: Mapping[str, Any] | None,
        parametrization: str,
        algorithm: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        kinds = CONVOLUTIONS if dims == 2 else CONVOLUTIONS[:2]
        if conv not in kinds:
            unknown_name(f"kind of {dims}D convolution", conv, kinds)
        check_name("generator", generator, GENERATORS)
        check_name("parametrization", parametrization, PARAMETRIZATIONS)
        self.dims, self.conv, self.generator, self.algorithm = dims, conv, generator, algorithm
        self.parametrization = parametrization
        self.generator_options = known_options(
            f"option of the generator {generator!r}", generator_options, GENERATORS[generator]
        )
        self.mask_options = known_options("option of the mask", mask_options, GaussianMask)
        self.masked = conv == "flex" and generator not in _SIZED_GENERATORS
        self.tensors: dict[str, Any] = {"device": device, "dtype": dtype}
        if conv == "plain" and self.generator_options:
            raise ArgumentError(
                f"conv='plain' has no generator, so it takes no generator_options; got {generator_options!r}"
            )
        if not self.masked and self.mask_options:
            raise ArgumentError(
                f"{conv=} with {generator=} has no mask, so it takes no mask_options; got {mask_options!r}"
            )
        self.mask_options = _MASKS[parametrization, dims] | self.mask_options

    def __call__(
        self, in_channels: int, out_channels: int, kernel_size: Sequence[int], *, stride: int = 1, bias: bool = True
    ) -> nn.Module:
        if self.conv == "plain":
            padding = tuple(size // 2 for size in kernel_size)
            return nn.Conv2d(
                in_channels,
                out_channels,
                tuple(kernel_size),  # type: ignore[arg-type]
                stride,
                padding,  # type: ignore[arg-type]
                bias=bias,
                **self.tensors,
            )
        layer = FlexConv1d if self.dims == 1 else FlexConv2d
        return layer(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            "causal" if self.dims == 1 else "same",
            bias=self.generator not in _SIZED_GENERATORS,
            generator=functools.partial(GENERATORS[self.generator], **self.generator_options),
            mask=self._mask() if self.masked else None,
            parametrization=self.parametrization,
            algorithm=self.algorithm,
            **self.tensors,
        )

    def _mask(self) -> GaussianMask:
        dtype = parameter_dtype(self.tensors["dtype"])
        return GaussianMask(self.dims, **self.mask_options, device=self.tensors["device"], dtype=dtype)


def centred_grid(kernel_size: int | Sequence[int] | None, image_size: int | Sequence[int] | None) -> tuple[int, ...]:
    """The grid of a 2D kernel: kernel_size, or the size of the image plus one if that is even."""
    if kernel_size is not None:
        sizes = per_axis("kernel_size", kernel_size, 2, minimum=1)
        if any(size % 2 == 0 for size in sizes):
            raise ArgumentError(f"kernel_size must be odd, because kernels are centered; got {kernel_size!r}")
        return sizes
    if image_size is None:
        raise ArgumentError("either image_size or kernel_size is required; got neither")
    return tuple(size + 1 - size % 2 for size in per_axis("image_size", image_size, 2, minimum=1))


def known_options(what: str, options: Mapping[str, Any] | None, target: Callable[..., Any]) -> dict[str, Any]:
    """Validate options: keyword arguments of `target`."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ArgumentTypeError(f"pass every {what} by name, in a dict; got {options!r}")
    known = [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in ("device", "dtype")
    ]
    for name in options:
        if name not in known:
            unknown_name(what, name, known)
    return dict(options)
