"""FlexNet: a residual network for images, without pooling or stride. FlexConvs learn the size of every kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import as_options
from ..nn import FillsMissing, sample_together
from ._base import Model, check_dropout, check_widths
from ._convolution import ConvolutionFactory, centred_grid
from ._missing import check_seen, fill_first, hide_unreached
from ._norm import conv_norm, make_norm
from ._readout import mean_over_positions


class FlexNet(Model, FillsMissing):
    """[batch, in_channels, height, width] → logits [batch, num_classes].

        x ─► dropout_in ─► conv ─► norm ─► ReLU ─► block ─► … ─► block ─► mean over positions ─► linear ─► logits

        block:  x ─┬─► conv1 ─► norm1 ─► ReLU ─► dropout ─► conv2 ─► norm2 ─► + ─► ReLU ─►
                   └─────────────────── identity, or 1×1 conv ────────────────┘

    A block that changes the number of channels has a 1×1 convolution as its shortcut. Every feature map has the size of
    the image, and the network accepts images of any size. With conv="ck" this is the CKCNN.

    Arguments:
        in_channels: channels of the images.
        num_classes: number of logits.
        image_size: height and width, or one number for both, that kernels can grow to. The grid of a kernel has this
            many taps, plus one if that number is even: 32 gives 33.
        kernel_size: size of the grid, instead of image_size; odd.
        widths: channels of each block. The first convolution has as many as the first block.
        conv: "flex" (FlexConv), "ck" (CKConv: no mask) or "plain" (`torch.nn.Conv2d`).
        generator: kernel generator, a name from `flexconv.nn.GENERATORS`. "njet" learns its own size and has no mask.
        generator_options: keyword arguments of the generator.
        mask_options: keyword arguments of `flexconv.GaussianMask`.
        parametrization: "scaled" for initial values and parameters that suit the grid, or "paper"; see `FlexConv1d`.
        norm: "batch", or "layer" (over channels and positions of each image).
        dropout: probability of dropping an activation in each block.
        dropout_in: probability of dropping an element of the input in training.
        algorithm: how to compute convolutions; see `flexconv.ops`.

    """

    dims = 2

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        image_size: int | Sequence[int] | None = None,
        kernel_size: int | Sequence[int] | None = None,
        widths: Sequence[int] = (24, 24, 36, 36, 36, 48, 48),
        conv: str = "flex",
        generator: str = "magnet",
        generator_options: Mapping[str, Any] | None = None,
        mask_options: Mapping[str, Any] | None = None,
        parametrization: str = "scaled",
        norm: str = "batch",
        dropout: float = 0.2,
        dropout_in: float = 0.0,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            {
                "in_channels": in_channels,
                "num_classes": num_classes,
                "image_size": image_size,
                "kernel_size": kernel_size,
                "widths": check_widths(widths),
                "conv": conv,
                "generator": generator,
                "generator_options": as_options("generator_options", generator_options),
                "mask_options": as_options("mask_options", mask_options),
                "parametrization": parametrization,
                "norm": norm,
                "dropout": check_dropout(dropout),
                "dropout_in": check_dropout(dropout_in, "dropout_in"),
                "algorithm": algorithm,
            }
        )
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
        grid = centred_grid(kernel_size, image_size)
        tensors = {"device": device, "dtype": dtype}
        self.dropout_in = nn.Dropout(dropout_in)
        self.stem = make_conv(in_channels, widths[0], grid)
        self.stem_norm = make_norm(norm, 2, widths[0], **tensors)
        self.blocks = nn.ModuleList(
            FlexNetBlock(inputs, outputs, grid, make_conv, norm=norm, dropout=dropout)
            for inputs, outputs in zip([widths[0], *widths], widths, strict=False)
        )
        self.head = nn.Linear(widths[-1], num_classes, **tensors)
        nn.init.kaiming_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.neighbors = None

    @property
    def filling_layer(self) -> nn.Module:
        return self.stem

    def conv_norm_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Convolutions with the norms behind them, for `flexconv.move_scale_to_norms`."""
        return [(self.stem, self.stem_norm)]

    def forward(self, x: torch.Tensor, *, observed: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of images.

        Pass `observed`, [batch, height, width] or [batch, 1 or in_channels, height, width], if pixels are missing where
        it is False. Values there (even NaN) are not used. The first layer replaces them by averages of observed ones.
        Later layers, norms and the mean over positions ignore positions that no observed pixel has reached. This needs
        FlexConvs or CKConvs; conv="plain" does not accept it.
        """
        self._check_input(x)
        where = None
        if observed is not None:
            x, where = fill_first(self, x, check_seen(observed, x, None), None)
        with sample_together(self):
            x = F.relu(conv_norm(self.stem, self.stem_norm, self.dropout_in(x), where))
            x = hide_unreached(x, where)
            for block in self.blocks:
                x = block(x) if where is None else block(x, where)
        return self.head(mean_over_positions(x, where))


class FlexNetBlock(nn.Module):
    """Two convolutions beside a shortcut; see `FlexNet`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        grid: Sequence[int],
        make_conv: ConvolutionFactory,
        *,
        norm: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.conv1 = make_conv(in_channels, out_channels, grid)
        self.norm1 = make_norm(norm, 2, out_channels, **make_conv.tensors)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = make_conv(out_channels, out_channels, grid)
        self.norm2 = make_norm(norm, 2, out_channels, **make_conv.tensors)
        self.shortcut = (
            nn.Identity()
            if in_channels == out_channels
            else nn.Conv2d(in_channels, out_channels, 1, **make_conv.tensors)
        )

    def conv_norm_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Convolutions with the norms behind them, for `flexconv.move_scale_to_norms`."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2)]

    def forward(self, x: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
        h = self.dropout(F.relu(conv_norm(self.conv1, self.norm1, x, where)))
        h = conv_norm(self.conv2, self.norm2, hide_unreached(h, where), where)
        return hide_unreached(F.relu(h + self.shortcut(x)), where)
