"""FlexTCN: a causal residual network for sequences. FlexConvs learn how far back every layer looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import as_options, positive_int, unknown_name
from ..errors import ArgumentError
from ..nn import FillsMissing, hide_padding, sample_together
from ._base import Model, check_dropout, check_widths
from ._convolution import ConvolutionFactory
from ._missing import check_seen, fill_first, hide_unreached
from ._norm import conv_norm, make_norm
from ._readout import MEAN_OF_A_STREAM, check_readout_lengths, last_step, mean_over_positions

READOUTS = ("last", "mean", "every")


class FlexTCN(Model, FillsMissing):
    """[batch, in_channels, length] → logits [batch, num_classes].

        x ─► dropout_in ─► block ─► … ─► block ─► last time step ─► linear ─► logits

        block:  x ─┬─► conv1 ─► norm1 ─► ReLU ─► dropout ─► conv2 ─► norm2 ─► ReLU ─► dropout ─► + ─► ReLU ─►
                   └────────────────────────── identity, or 1×1 conv ────────────────────────────┘

    A block that changes the number of channels has a 1×1 convolution as its shortcut. In eval mode with norm="batch"
    the network is causal, so `flexconv.Streaming(model)` can run it on a stream, except with readout="mean". With
    conv="ck" this is the CKTCN.

    Arguments:
        in_channels: channels of the sequences.
        num_classes: number of logits.
        length: length of the sequences, which is also how far back a kernel can look. Shorter and longer sequences
            are accepted.
        kernel_size: size of the grid, instead of length.
        widths: channels of each block.
        conv: "flex" (FlexConv) or "ck" (CKConv: no mask).
        generator, generator_options, mask_options, parametrization, algorithm: as in `FlexNet`, but masks start with
            sigma 0.354.
        norm: "batch", or "layer" (over channels and time of each sequence).
        dropout: probability of dropping an activation, applied twice in each block.
        dropout_in: probability of dropping an element of the input in training.
        readout: "last" time step, "mean" over time, or "every" step: logits [batch, num_classes, length].

    """

    dims = 1

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        length: int | None = None,
        kernel_size: int | None = None,
        widths: Sequence[int] = (30, 30, 30, 30, 30, 30),
        conv: str = "flex",
        generator: str = "magnet",
        generator_options: Mapping[str, Any] | None = None,
        mask_options: Mapping[str, Any] | None = None,
        parametrization: str = "scaled",
        norm: str = "batch",
        dropout: float = 0.1,
        dropout_in: float = 0.0,
        readout: str = "last",
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            {
                "in_channels": in_channels,
                "num_classes": num_classes,
                "length": length,
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
                "readout": readout,
                "algorithm": algorithm,
            }
        )
        if readout not in READOUTS:
            unknown_name("readout", readout, READOUTS)
        self.readout = readout
        self.dropout_in = nn.Dropout(dropout_in)
        make_conv = ConvolutionFactory(
            1,
            conv=conv,
            generator=generator,
            generator_options=generator_options,
            mask_options=mask_options,
            parametrization=parametrization,
            algorithm=algorithm,
            device=device,
            dtype=dtype,
        )
        grid = _causal_grid(kernel_size, length)
        self.blocks = nn.ModuleList(
            FlexTCNBlock(inputs, outputs, grid, make_conv, norm=norm, dropout=dropout)
            for inputs, outputs in zip([in_channels, *widths], widths, strict=False)
        )
        self.head = nn.Linear(widths[-1], num_classes, device=device, dtype=dtype)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        self.neighbors = None

    @property
    def filling_layer(self) -> nn.Module:
        return getattr(self.blocks[0], "conv1", self.blocks[0])  # the block may be replaced by another module

    def forward(
        self,
        x: torch.Tensor,
        lengths: torch.Tensor | Sequence[int] | None = None,
        *,
        observed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of sequences. Pass `lengths` [batch] for sequences that are padded to a common length.

        Values past the end of a sequence are not used. In eval mode row b equals the result for x[b, :, :lengths[b]]
        alone; with readout="every" it is 0 past the end. In training mode, batch statistics exclude the padding.

        Pass `observed`, [batch, length] or [batch, 1 or in_channels, length], if samples are missing where it is False.
        Values there (even NaN) are not used. The first layer replaces them by averages of earlier observed ones, so the
        network stays causal, and later layers ignore steps that no observed sample has reached. readout="last" takes
        the last step that one has reached. This is the last of the sequence, even if its sample is missing, unless
        more samples are missing at the end than the first kernel looks back.
        """
        self._check_input(x)
        if lengths is not None:
            lengths = check_readout_lengths(lengths, x, self.readout)
        elif x.shape[-1] == 0 and self.readout != "every":
            raise ArgumentError(f"readout={self.readout!r} needs at least one time step; got {tuple(x.shape)}")
        where = lengths
        if observed is not None:
            x, where = fill_first(self, x, check_seen(observed, x, lengths), lengths)
        elif lengths is not None:
            x = hide_padding(x, lengths)
        x = self.dropout_in(x)
        with sample_together(self):
            for block in self.blocks:
                x = block(x) if where is None else block(x, where)
        if self.readout == "every":
            y = self.head(x.transpose(1, 2)).transpose(1, 2)
            return y if lengths is None else hide_padding(y, lengths)
        return self.head(last_step(x, where) if self.readout == "last" else mean_over_positions(x, where))

    @property
    def cannot_stream(self) -> str | None:
        """Why `flexconv.Streaming` would not be exact, or None. The reason is a readout over time."""
        return MEAN_OF_A_STREAM if self.readout == "mean" else None


class FlexTCNBlock(nn.Module):
    """Two causal convolutions beside a shortcut; see `FlexTCN`."""

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
        self.norm1 = make_norm(norm, 1, out_channels, **make_conv.tensors)
        self.conv2 = make_conv(out_channels, out_channels, grid)
        self.norm2 = make_norm(norm, 1, out_channels, **make_conv.tensors)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = (
            nn.Identity()
            if in_channels == out_channels
            else nn.Conv1d(in_channels, out_channels, 1, **make_conv.tensors)
        )

    def conv_norm_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Convolutions with the norms behind them, for `flexconv.move_scale_to_norms`."""
        return [(self.conv1, self.norm1), (self.conv2, self.norm2)]

    def forward(self, x: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
        h = self.dropout(F.relu(conv_norm(self.conv1, self.norm1, x, where)))
        h = conv_norm(self.conv2, self.norm2, hide_unreached(h, where), where)
        return hide_unreached(F.relu(self.dropout(F.relu(h)) + self.shortcut(x)), where)


def _causal_grid(kernel_size: int | None, length: int | None) -> tuple[int]:
    if kernel_size is not None:
        return (positive_int("kernel_size", kernel_size),)
    if length is None:
        raise ArgumentError("either length or kernel_size is required; got neither")
    return (positive_int("length", length),)
