"""CIFARResNet: the small residual networks of He et al. for 32 × 32 images, a baseline of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import as_options, per_axis, positive_int, unknown_name
from ..errors import ArgumentError
from ._base import Model
from ._convolution import ConvolutionFactory, centred_grid
from ._norm import make_norm

SHORTCUTS = ("pad", "conv")


class CIFARResNet(Model):
    """[batch, in_channels, height, width] → logits [batch, num_classes].

        x ─► conv ─► norm ─► ReLU ─► 3 stages of blocks ─► mean over positions ─► linear ─► logits

        block:  x ─┬─► conv1 ─► norm1 ─► ReLU ─► conv2 ─► norm2 ─► + ─► ReLU ─►
                   └────── identity, or every 2nd position ────────┘

    Stages have width, 2·width and 4·width channels; the first block of the second and third has stride 2.
    A network of depth d has (d − 2)/6 blocks per stage. Plain convolutions have no bias.

    Arguments:
        in_channels: channels of the images.
        num_classes: number of logits.
        depth: 20, 32, 44, 56, …: 6n + 2.
        width: channels of the first stage.
        conv, generator, generator_options, mask_options, parametrization, algorithm: as in `FlexNet`. "plain" is the
            network of He et al.
        kernel_size: size of all convolutions, or of their grid; odd. None: each grid follows the size of its input
            (33, 17 and 9 taps for 32 × 32 images). The paper does not say which grids it used.
        image_size: required if kernel_size is None.
        shortcut: how a block with stride 2 gets its new channels: "pad" (zeros, no parameters) or "conv" (1×1
            convolution and norm, which the paper uses for its FlexConv variant).
        norm: "batch", or "layer" (over channels and positions of each image).

    """

    dims = 2

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        depth: int = 44,
        width: int = 16,
        conv: str = "plain",
        generator: str = "magnet",
        generator_options: Mapping[str, Any] | None = None,
        mask_options: Mapping[str, Any] | None = None,
        parametrization: str = "scaled",
        kernel_size: int | Sequence[int] | None = 3,
        image_size: int | Sequence[int] | None = None,
        shortcut: str = "pad",
        norm: str = "batch",
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            {
                "in_channels": in_channels,
                "num_classes": num_classes,
                "depth": depth,
                "width": width,
                "conv": conv,
                "generator": generator,
                "generator_options": as_options("generator_options", generator_options),
                "mask_options": as_options("mask_options", mask_options),
                "parametrization": parametrization,
                "kernel_size": kernel_size,
                "image_size": image_size,
                "shortcut": shortcut,
                "norm": norm,
                "algorithm": algorithm,
            }
        )
        if positive_int("depth", depth) < 8 or (depth - 2) % 6:
            raise ArgumentError(f"depth must be 6n + 2: 8, 14, 20, 26, 32, …; got {depth}")
        if shortcut not in SHORTCUTS:
            unknown_name("shortcut", shortcut, SHORTCUTS)
        if positive_int("width", width) % 2 and shortcut == "pad":
            raise ArgumentError(f"width must be even, because shortcut='pad' adds zeros on both sides; got {width}")
        make_conv = ConvolutionFactory(
            2,
            conv=conv,
            generator=generator,
            generator_options=generator_options,
            mask_options=mask_options,
            parametrization=parametrization,
            algorithm=algorithm,
            device=device,
            dtype=dtype,
        )
        size = None if image_size is None else per_axis("image_size", image_size, 2, minimum=1)
        self.stem = make_conv(in_channels, width, centred_grid(kernel_size, size), bias=False)
        self.stem_norm = make_norm(norm, 2, width, **make_conv.tensors)
        self.blocks = nn.ModuleList()
        inputs = width
        for outputs in (width, 2 * width, 4 * width):
            for index in range((depth - 2) // 6):
                stride = 2 if index == 0 and outputs != width else 1
                grid = centred_grid(kernel_size, size)
                size = size and tuple(-(-n // stride) for n in size)
                grids = grid, centred_grid(kernel_size, size)
                self.blocks.append(CIFARResNetBlock(inputs, outputs, grids, stride, make_conv, shortcut, norm))
                inputs = outputs
        self.head = nn.Linear(inputs, num_classes, **make_conv.tensors)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def conv_norm_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Convolutions with the norms behind them, for `flexconv.move_scale_to_norms`."""
        return [(self.stem, self.stem_norm)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check_input(x)
        x = F.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class CIFARResNetBlock(nn.Module):
    """Two convolutions beside a shortcut; see `CIFARResNet`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        grids: tuple[Sequence[int], Sequence[int]],
        stride: int,
        make_conv: ConvolutionFactory,
        shortcut: str,
        norm: str,
    ) -> None:
        super().__init__()
        self.conv1 = make_conv(in_channels, out_channels, grids[0], stride=stride, bias=False)
        self.norm1 = make_norm(norm, 2, out_channels, **make_conv.tensors)
        self.conv2 = make_conv(out_channels, out_channels, grids[1], bias=False)
        self.norm2 = make_norm(norm, 2, out_channels, **make_conv.tensors)
        if stride == 1:
            self.shortcut = nn.Identity()
        elif shortcut == "pad":
            self.shortcut = PaddedShortcut(out_channels - in_channels)
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False, **make_conv.tensors),
                make_norm(norm, 2, out_channels, **make_conv.tensors),
            )

    def conv_norm_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Convolutions with the norms behind them, for `flexconv.move_scale_to_norms`."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class PaddedShortcut(nn.Module):
    """Takes every second position and adds channels of zeros, half of them before and half after the others."""

    def __init__(self, extra_channels: int) -> None:
        super().__init__()
        self.extra_channels = extra_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra_channels // 2, self.extra_channels // 2))

    def extra_repr(self) -> str:
        return f"{self.extra_channels}"
