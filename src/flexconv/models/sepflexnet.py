"""SepFlexNet: a residual network of separable FlexConvs, with one definition for sequences, images and volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import as_options, positive_int, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import MASKS, POINTWISE_CONVS, FlexConvNd, as_float16, hide_padding
from ._base import Model, check_dropout
from ._half import NormsInFloat32, is_converted, norm_dtype, sums_in_float32
from ._missing import check_seen, fill_first, hide_unreached
from ._norm import make_norm, normalise
from ._readout import MEAN_OF_A_STREAM, check_readout_lengths, last_step, mean_over_positions
from ._separable import SeparableFactory, is_causal, kernel_grid, number_of_axes

MIXES = ("linear", "glu")
READOUTS = ("mean", "last", "every")

# Dropout2d of a tensor [batch, channels, length] meant another thing in every other release of torch
_CHANNEL_DROPOUTS = {1: nn.Dropout1d, 2: nn.Dropout2d, 3: nn.Dropout3d}


class SepFlexNet(Model, NormsInFloat32):
    """[batch, in_channels, *size] → logits [batch, num_classes], for sequences, images and volumes.

        x ─► dropout_in ─► separable conv ─► norm ─► GELU ─► block ─► … ─► block ─► norm ─► mean ─► linear ─► logits

        block:  x ─┬─► norm ─► separable conv ─► GELU ─► dropout ─► 1×1 conv ─► GELU ─► drop_path ─► + ─►
                   └─────────────────────────────────── identity ────────────────────────────────────┘

    A separable convolution is a depthwise FlexConv, which learns its size, and a 1×1 convolution. Every feature map has
    the size of the input, and inputs may have any size. This is the block of CCNN (Romero et al., 2022), but kernels
    start below the Nyquist frequency of their grid, so that they can be resampled (docs/which-network.md).

    Arguments:
        in_channels: channels of the input.
        num_classes: number of logits.
        length, image_size, volume_size: the size of the input, which kernels can grow to. Give one of them: `length`
            for sequences, `image_size` for images (one number, or height and width), `volume_size` for volumes (one
            number, or depth, height and width). Centered grids have one tap more if the size is even.
        kernel_size: size of the grid, if it should not be that of the input; odd if kernels are centered.
        dims: number of axes, if `kernel_size` is given instead of a size.
        width: channels of all blocks.
        depth: number of blocks.
        causal: whether position n depends on inputs up to n only. Only sequences can be causal; they are by default.
            With readout "last" or "every", `flexconv.Streaming(model)` then runs the network on a stream.
        mask: "gaussian" for one size per layer, or "per_channel".
        mask_options: keyword arguments of `GaussianMask` or `ChannelGaussianMask`.
        generator: kernel generator, a name from `flexconv.nn.GENERATORS`.
        generator_options: keyword arguments of the generator.
        parametrization: "scaled" for initial values and parameters that suit the grid, or "paper"; see `FlexConv1d`.
        train_features: whether to train the features of the generators too, which stay fixed by default in the scaled
            parametrization. They need a low learning rate, or gradient clipping.
        small_kernel: size of a second, small depthwise kernel in every layer; see `SeparableFlexConv1d`.
        mix: "linear" as above, or "glu": the 1×1 convolution of a block has twice as many outputs, and a gated linear
            unit takes the place of the second GELU.
        norm: "batch", or "layer" (over channels and positions of each sample).
        dropout: probability of dropping a whole channel of a sample, in each block.
        dropout_in: probability of dropping an element of the input.
        drop_path: probability of dropping the last block for a sample (stochastic depth). It increases linearly from
            the first block to the last.
        readout: "mean" over positions, "last" time step (sequences only), or "every" position: logits
            [batch, num_classes, *size].
        mask_channel: whether the last of the in_channels tells which samples were observed (1) and which are missing
            (0), as data sets with missing samples have it. It is then used like `observed`, and remains an input.
            In eval mode, a row in which nothing is observed is an error, as it is with `observed`.
        algorithm: how to compute convolutions; see `flexconv.ops`.

    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        length: int | None = None,
        image_size: int | Sequence[int] | None = None,
        volume_size: int | Sequence[int] | None = None,
        kernel_size: int | Sequence[int] | None = None,
        dims: int | None = None,
        width: int = 140,
        depth: int = 4,
        causal: bool | None = None,
        mask: str = "gaussian",
        mask_options: Mapping[str, Any] | None = None,
        generator: str = "magnet",
        generator_options: Mapping[str, Any] | None = None,
        parametrization: str = "scaled",
        train_features: bool = False,
        small_kernel: int | Sequence[int] | None = None,
        mix: str = "linear",
        norm: str = "batch",
        dropout: float = 0.0,
        dropout_in: float = 0.0,
        drop_path: float = 0.0,
        readout: str = "mean",
        mask_channel: bool = False,
        algorithm: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"length": length, "image_size": image_size, "volume_size": volume_size}
        given = {name: size for name, size in sizes.items() if size is not None}
        super().__init__(
            {
                "in_channels": in_channels,
                "num_classes": num_classes,
                **given,  # only one, so that a saved network tells what kind of data it is for
                **({} if dims is None else {"dims": dims}),
                "kernel_size": kernel_size,
                "width": width,
                "depth": depth,
                "causal": causal,
                "mask": mask,
                "mask_options": as_options("mask_options", mask_options),
                "generator": generator,
                "generator_options": as_options("generator_options", generator_options),
                "parametrization": parametrization,
                "train_features": train_features,
                "small_kernel": small_kernel,
                "mix": mix,
                "norm": norm,
                "dropout": check_dropout(dropout),
                "dropout_in": check_dropout(dropout_in, "dropout_in"),
                "drop_path": check_dropout(drop_path, "drop_path"),
                "readout": readout,
                "mask_channel": mask_channel,
                "algorithm": algorithm,
            }
        )
        self.dims = number_of_axes(given, dims)  # pyright: ignore[reportAttributeAccessIssue]
        self.causal = is_causal(causal, self.dims)
        for what, name, known in (("mix", mix, MIXES), ("readout", readout, READOUTS), ("mask", mask, MASKS)):
            if name not in known:
                unknown_name(what, name, known)
        for what, value in (("train_features", train_features), ("mask_channel", mask_channel)):
            if not isinstance(value, bool):
                raise ArgumentTypeError(f"{what} must be True or False; got {value!r}")
        if readout == "last" and self.dims > 1:
            raise ArgumentError(f"readout='last' is for sequences; this network has {self.dims} axes: use 'mean'")
        if mask_channel and in_channels < 2:
            raise ArgumentError(f"mask_channel=True needs in_channels of at least 2; got {in_channels}")
        self.readout, self.mask_channel = readout, mask_channel
        width, depth = positive_int("width", width), positive_int("depth", depth)
        make_conv = SeparableFactory(
            self.dims,
            grid=kernel_grid(next(iter(given.values()), None), kernel_size, self.dims, causal=self.causal),
            causal=self.causal,
            mask=mask,
            mask_options=mask_options,
            generator=generator,
            generator_options=generator_options,
            device=device,
            dtype=dtype,
            parametrization=parametrization,
            algorithm=algorithm,
            small_kernel=small_kernel,
        )
        tensors = {"device": device, "dtype": dtype}
        self.dropout_in = nn.Dropout(dropout_in)
        self.stem = make_conv(in_channels, width)
        norm_tensors = {**tensors, "dtype": norm_dtype(dtype)}
        self.stem_norm = make_norm(norm, self.dims, width, **norm_tensors)
        self.blocks = nn.ModuleList(
            SepFlexNetBlock(
                width,
                make_conv,
                mix=mix,
                norm=norm,
                dropout=dropout,
                drop_path=drop_path * (number + 1) / depth,
                **tensors,
            )
            for number in range(depth)
        )
        self.norm = make_norm(norm, self.dims, width, **norm_tensors)
        self.head = nn.Linear(width, num_classes, **tensors)
        for module in self.modules():
            if train_features and isinstance(module, FlexConvNd):
                module.generator.requires_grad_()
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if module is self.head else "relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  (all have one)

    def forward(
        self,
        x: torch.Tensor,
        lengths: torch.Tensor | Sequence[int] | None = None,
        *,
        observed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of a batch. Pass `lengths` [batch] for sequences that are padded to a common length.

        Values past the end of a sequence are not used. In eval mode row b equals the result for x[b, :, :lengths[b]]
        alone; with readout="every" it is 0 past the end. In training mode, batch statistics exclude the padding.

        Pass `observed`, [batch, *size] or [batch, 1 or in_channels, *size], if samples are missing where it is False.
        Values there (even NaN) are not used. The first layer replaces them by averages of observed ones. Later layers
        ignore positions that no observed sample has reached. readout="last" takes the last position that one has
        reached.
        """
        self._check_input(x)
        if lengths is not None:
            if self.dims > 1:
                raise ArgumentError(f"lengths is for sequences; this network has {self.dims} axes")
            lengths = check_readout_lengths(lengths, x, self.readout)
        elif 0 in x.shape[2:] and self.readout != "every":
            raise ArgumentError(f"readout={self.readout!r} needs at least one position; got {tuple(x.shape)}")
        seen = None if observed is None else check_seen(observed, x, lengths)
        if self.mask_channel:
            if seen is not None:
                raise ArgumentError(
                    "a network with mask_channel=True reads from x what was observed: leave out observed"
                )
            there = x[:, -1:] > 0.5
            if not self.training:  # a training step must not wait for values from a GPU
                there = check_seen(there, x, lengths)
            seen = torch.cat([there.expand(-1, self.in_channels - 1, *x.shape[2:]), torch.ones_like(there)], 1)
        converted = is_converted(self, x)
        with sums_in_float32(x, converted):
            x, where = self._stem(x, lengths, seen)
            for block in self.blocks:
                x = block(x) if where is None else block(x, lengths, where)
            x = self._read(normalise(self.norm, x, where), where)
        y = self.head(as_float16(x, self.norm) if converted else x)
        if self.readout != "every":
            return y
        return y.movedim(-1, 1) if lengths is None else hide_padding(y.movedim(-1, 1), lengths)

    def _stem(
        self, x: torch.Tensor, lengths: torch.Tensor | None, seen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The features after the first layer, and the positions that count: lengths, a mask, or None for all."""
        where = lengths
        if seen is not None:
            counted = seen[:, :-1] if self.mask_channel else seen  # the mask itself is always there
            x, where = fill_first(self.stem, x, seen, lengths, counted)
        elif lengths is not None:
            x = hide_padding(x, lengths)
        x = convolve(self.stem, self.dropout_in(x), lengths)
        return F.gelu(normalise(self.stem_norm, x, where)), where

    def _read(self, x: torch.Tensor, where: torch.Tensor | None) -> torch.Tensor:
        """The features [batch, …, channels] that the logits are computed from."""
        if self.readout == "every":
            return x.movedim(1, -1)
        return last_step(x, where) if self.readout == "last" else mean_over_positions(x, where)

    def conv_norm_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Convolutions with the norms behind them, for `flexconv.move_scale_to_norms`."""
        return [(self.stem, self.stem_norm)]

    @property
    def cannot_stream(self) -> str | None:
        """Why `flexconv.Streaming` would not be exact, or None."""
        if self.mask_channel:
            return "has mask_channel=True and fills in missing samples from others, which a stream does not keep"
        return MEAN_OF_A_STREAM if self.readout == "mean" else None


class SepFlexNetBlock(NormsInFloat32):
    """A separable convolution and a 1×1 convolution beside a shortcut; see `SepFlexNet`."""

    def __init__(
        self,
        width: int,
        make_conv: SeparableFactory,
        *,
        mix: str,
        norm: str,
        dropout: float,
        drop_path: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        dims, gated = make_conv.dims, mix == "glu"
        self.norm = make_norm(norm, dims, width, device=device, dtype=norm_dtype(dtype))
        self.conv = make_conv(width, width)
        self.dropout = _CHANNEL_DROPOUTS[dims](dropout)
        self.mix = POINTWISE_CONVS[dims](width, 2 * width if gated else width, 1, device=device, dtype=dtype)
        self.activation = nn.GLU(1) if gated else nn.GELU()
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor | None = None, where: torch.Tensor | None = None
    ) -> torch.Tensor:
        h = normalise(self.norm, x, lengths if where is None else where)
        h = F.gelu(convolve(self.conv, hide_unreached(h, where), lengths))
        h = self.activation(self.mix(self.dropout(h)))
        return x + self.drop_path(h)


class DropPath(nn.Module):
    """Stochastic depth: in training, set a sample of [batch, …] to 0 with probability p, and divide others by 1 − p."""

    acts_step_by_step = True  # for `flexconv.Streaming`

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.draw(x)
        return x if kept is None else x * kept

    def draw(self, x: torch.Tensor) -> torch.Tensor | None:
        """Draw the factors of all samples of x → [batch, 1, …]: 0 or 1/(1 − p). None if no sample is dropped."""
        if not self.training or self.p == 0:
            return None
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.p
        return kept.to(x.dtype) / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p:g}"


def convolve(conv: nn.Module, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """conv(x), or conv(x, lengths) for sequences that are padded to a common length. Outputs are as long as inputs."""
    return conv(x) if lengths is None else hide_padding(conv(hide_padding(x, lengths)), lengths)
