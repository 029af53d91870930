"""FlexConv: a convolution whose kernel is a function of position, under a window that learns its size.

y = x ⋆ ψ + b,      ψ[o, i, p] = scale · generator(p)[o·I + i] · mask(p)      for the taps p of a grid on [−1, 1]^D
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NoReturn

import torch
import torch.nn.functional as F
from torch import nn

from .._arguments import check_name, per_axis, positive_int, unknown_name
from .._context import autocast_enabled, no_autocast
from ..errors import ArgumentError, ArgumentTypeError, UsageError
from ..ops import (
    ALGORITHMS,
    FactoredKernel,
    Factors,
    KernelBatch,
    Padding,
    Pads,
    Source,
    as_tensor,
    conv_nd,
    output_size,
    plain_padding,
    resolve_padding,
)
from ._cache import KernelCache
from ._extent import Extent, SizeSource, refresh
from ._grid import Axis, TapRange, mesh, tap_weights
from ._lengths import check_lengths, hide_padding
from ._mask import GaussianMask
from .kernels import GENERATORS, KernelGenerator

PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}
CENTRE_SPREAD = 5 / 3  # generators with centres start them within this many σ of the mask's mean

KernelFactory = Callable[..., KernelGenerator]


class FlexConvNd(nn.Module):
    """What FlexConv1d, FlexConv2d and FlexConv3d share. Use those."""

    dims: ClassVar[int]
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = "same",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        kernel: str | KernelGenerator | KernelFactory = "magnet",
        mask: str | GaussianMask | None = "gaussian",
        algorithm: str = "auto",
    ) -> None:
        super().__init__()
        self.in_channels = positive_int("in_channels", in_channels)
        self.out_channels = positive_int("out_channels", out_channels)
        self.groups = positive_int("groups", groups)
        for name, value in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if value % self.groups:
                raise ArgumentError(f"{name} (={value}) must be divisible by groups (={groups})")
        self.kernel_size = per_axis("kernel_size", kernel_size, self.dims, minimum=1)
        self.stride = per_axis("stride", stride, self.dims, minimum=1)
        self.dilation = per_axis("dilation", dilation, self.dims, minimum=1)
        self.padding = plain_padding(padding)
        resolve_padding(padding, self.kernel_size, self.dilation)  # refuse now what would fail at the first forward
        if padding_mode not in PADDING_MODES:
            unknown_name("padding_mode", padding_mode, PADDING_MODES)
        check_name("algorithm", algorithm, ["auto", *ALGORITHMS])
        self.padding_mode, self.algorithm = padding_mode, algorithm
        self.kernel_scale = 1.0
        self.resampled_axes: tuple[Axis, ...] | None = None  # another grid than that of the arguments
        self.generator = self._make_generator(kernel, device, dtype)
        self.mask = self._make_mask(mask, device, dtype)
        self.bias = nn.Parameter(torch.empty(self.out_channels, device=device, dtype=dtype)) if bias else None
        self._extent, self._cache = Extent(self.axes), KernelCache()
        self._ahead: torch.Tensor | FactoredKernel | None = None  # sampled before the forward, see `_together.py`
        self._settle(fresh=not isinstance(kernel, nn.Module))

    # --- the grid -----------------------------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The grid of the kernel, axis by axis."""
        if self.resampled_axes is not None:
            return self.resampled_axes
        each = [self.padding] * self.dims if isinstance(self.padding, str | int) else self.padding
        return tuple(Axis(k, pad == "causal") for k, pad in zip(self.kernel_size, each, strict=True))

    @property
    def pads(self) -> Pads:
        """Padding (left, right) per axis, for the whole grid."""
        return resolve_padding(self.padding, self.kernel_size, self.dilation)

    @property
    def extent(self) -> tuple[int, ...]:
        """The current size of the kernel in taps per axis: how much of the grid the mask keeps."""
        self._follow()
        return tuple(stop - start for start, stop in self._extent.taps)

    # --- the kernel ---------------------------------------------------------------------------------------------------

    def kernel(self) -> torch.Tensor:
        """The kernel, masked and cropped to its current size → [out_channels, in_channels/groups, *extent]."""
        self._follow()
        return self._sample(self._extent.taps)

    def _sample(self, windows: Sequence[TapRange]) -> torch.Tensor:
        """Kernel values on a window of the grid → [out_channels, in_channels/groups, *sizes]."""
        lines = self._lines(windows)
        mask = None if self.mask is None else self.mask(lines, self.axes)
        return self._finish(self.generator(mesh(lines)), mask, windows)

    def _finish(self, values: torch.Tensor, mask: torch.Tensor | None, windows: Sequence[TapRange]) -> torch.Tensor:
        """Generated values [channels, *sizes] and the mask's [*sizes] → the kernel on a window of the grid."""
        if mask is not None:
            values = values * mask
        if self.kernel_scale != 1.0:
            values = values * self.kernel_scale
        if self.resampled_axes is not None:
            values = values * tap_weights(self.axes, windows, like=values)
        return values.unflatten(0, (self.out_channels, self.in_channels // self.groups)).contiguous()

    def _lines(self, windows: Sequence[TapRange]) -> list[torch.Tensor]:
        """The coordinates of a window's taps, axis by axis."""
        dtype, device = self.generator.compute_dtype, self._like().device
        return [a.coordinates(w, device=device, dtype=dtype) for a, w in zip(self.axes, windows, strict=True)]

    def _sample_factors(self, windows: Sequence[TapRange]) -> FactoredKernel:
        """The kernel on a window of the grid by its factors; the bias of the output map counts as one more feature."""
        output = self.generator.output_map
        assert output is not None
        lines = self._lines(windows)
        grid = mesh(lines)
        dtype = grid.dtype
        with no_autocast(grid.device.type):
            features = self.generator.features(grid.flatten(1).t()).unflatten(0, grid.shape[1:])
            window = features.new_ones(grid.shape[1:]) if self.mask is None else self.mask(lines, self.axes)
            basis = torch.cat([features * window.unsqueeze(-1), window.unsqueeze(-1)], -1)
            mix = torch.cat([output.effective_weight(dtype), output.bias.to(dtype).unsqueeze(1)], 1)
        source = self._source(lambda dtype: (basis.to(dtype), mix.to(dtype)), windows)
        return FactoredKernel(KernelBatch([source], self.generator.compute_dtype))

    def _source(self, factors: Source, windows: Sequence[TapRange]) -> Source:
        """Factors of the kernel from a mix [·, rank], and a basis [*block, rank] that begins with the windows."""
        block = tuple(slice(stop - start) for start, stop in windows)
        shape = self.out_channels, self.in_channels // self.groups

        def of_layer(dtype: torch.dtype) -> Factors:
            basis, mix = factors(dtype)
            if basis.shape[:-1] != tuple(stop - start for start, stop in windows):
                basis = basis[block]
            if self.kernel_scale != 1.0:
                basis = basis * self.kernel_scale
            if self.resampled_axes is not None:
                basis = basis * tap_weights(self.axes, windows, like=basis).unsqueeze(-1)
            return basis, mix.unflatten(0, shape)

        return of_layer

    # --- forward ------------------------------------------------------------------------------------------------------

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, in_channels, *size] or [in_channels, *size] → the same with out_channels and the new size."""
        return self._convolve(x, self.bias)

    def _convolve(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not torch.compiler.is_compiling() and torch.jit.is_tracing():
            self._refuse_torchscript()
        self._check_input(x)
        if x.ndim == self.dims + 1:
            return self._convolve(x.unsqueeze(0), bias).squeeze(0)
        windows = self._windows_in_force()
        dtype = None if autocast_enabled(x.device.type) else x.dtype
        weight = self._weight(windows, dtype) if self._kept else self._fresh(windows, dtype)
        pads = self._pads_of(windows)
        if self.padding_mode != "zeros":
            x, pads = self._pad_by_mode(x, pads)
        return conv_nd(self.dims, x, weight, bias, self.stride, pads, self.dilation, self.groups, self.algorithm)

    def _refuse_torchscript(self) -> NoReturn:
        raise UsageError(
            f"{type(self).__name__} samples its kernel in forward, which TorchScript cannot hold: give torch.jit or "
            f"torch.onnx flexconv.materialize(model), which has plain convolutions in its place, or write a file with "
            f"flexconv.export.export(model, path)"
        )

    def __prepare_scriptable__(self) -> NoReturn:  # what torch.jit.script asks for before it looks at the code
        self._refuse_torchscript()

    def _weight(self, windows: tuple[TapRange, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """Kernel values on the windows, in `dtype`; in evaluation without gradients, those of the last time."""

        def sample() -> torch.Tensor:
            weight = self._sample(windows) if self._ahead is None else as_tensor(self._ahead)
            return weight if dtype is None else weight.to(dtype)

        if not self._kept:
            return sample()
        key = windows, dtype, self.kernel_scale, self.axes
        return self._cache.get(sample, key, [*self.parameters(), *self.buffers()])

    @property
    def _kept(self) -> bool:
        """Whether a kernel is kept for the next time."""
        once = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        return not once and self._ahead is None

    def _fresh(self, windows: tuple[TapRange, ...], dtype: torch.dtype | None) -> torch.Tensor | FactoredKernel:
        """A kernel that is used once: by its factors where it has any, since transforms of those are fewer."""
        kernel = self._ahead
        if kernel is None:
            by_factors = self.generator.has_factors and not torch.compiler.is_compiling()
            kernel = self._sample_factors(windows) if by_factors else self._sample(windows)
        return kernel if dtype is None else kernel.to(dtype)

    def _pads_of(self, windows: Sequence[TapRange]) -> Pads:
        """Padding that puts a window's taps where they are in the whole grid; negative where they look elsewhere."""
        return tuple(
            (left - start * step, right - (size - stop) * step)
            for (left, right), (start, stop), size, step in zip(
                self.pads, windows, self.kernel_size, self.dilation, strict=True
            )
        )

    def _pad_by_mode(self, x: torch.Tensor, pads: Pads) -> tuple[torch.Tensor, Pads]:
        for size, whole in zip(x.shape[2:], self.pads, strict=True):
            widest = {"reflect": size - 1, "circular": size}.get(self.padding_mode, max(whole))
            if max(whole) > widest:
                raise ArgumentError(
                    f"padding_mode={self.padding_mode!r} can pad an axis of {size} samples by at most {widest}; "
                    f"kernel_size {self.kernel_size} with padding={self.padding!r} may need {max(whole)}"
                )
        amounts = [max(0, amount) for pair in reversed(pads) for amount in pair]
        x = F.pad(x, amounts, mode=PADDING_MODES[self.padding_mode])
        return x, tuple((min(0, left), min(0, right)) for left, right in pads)

    def _like(self) -> torch.Tensor:
        """A tensor of the layer's precision on its device: a parameter of the generator, where it has any."""
        first = next(self.generator.parameters(), None)
        return next(self.parameters(), torch.empty(())) if first is None else first

    def _check_input(self, x: torch.Tensor) -> None:
        self._check_kind(x)
        self._check_sizes(x.shape[-self.dims :])

    def _check_kind(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor):
            raise ArgumentTypeError(f"{type(self).__name__} wants a tensor; got {type(x).__name__}")
        if not x.is_floating_point():
            raise ArgumentTypeError(f"{type(self).__name__} wants a real floating-point input; got {x.dtype}")
        if x.ndim not in (self.dims + 1, self.dims + 2) or x.shape[-1 - self.dims] != self.in_channels:
            sizes = {1: "length", 2: "height, width", 3: "depth, height, width"}[self.dims]
            raise ArgumentError(
                f"{type(self).__name__} wants an input of shape [batch, {self.in_channels}, {sizes}] "
                f"(in_channels={self.in_channels}); got {tuple(x.shape)}"
            )
        dtype = self._like().dtype
        if x.dtype != dtype and not autocast_enabled(x.device.type):
            raise ArgumentTypeError(f"input is {x.dtype} but the layer is {dtype}: convert one of them with .to(…)")

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        for size, taps, step, pads, spread in zip(
            sizes, self.kernel_size, self.stride, self.pads, self.dilation, strict=True
        ):
            if output_size(size, taps, step, pads, spread) < 1 or size < 1:
                raise ArgumentError(
                    f"input size {tuple(sizes)} is too small for kernel_size {self.kernel_size} with "
                    f"padding={self.padding!r} and dilation {self.dilation}"
                )

    # --- the size -----------------------------------------------------------------------------------------------------

    @property
    def _size_source(self) -> SizeSource | None:
        """Who decides how much of the grid is used: the mask, or a generator that has a size of its own."""
        if self.mask is not None:
            return self.mask
        return self.generator if hasattr(self.generator, "size_parameters") else None  # type: ignore[return-value]

    def _windows_in_force(self) -> tuple[TapRange, ...]:
        if torch.compiler.is_compiling():
            return self._extent.given
        self._follow()
        return self._extent.windows

    def _follow(self) -> None:
        source = self._size_source
        if source is not None:
            self._extent.follow(source, name=self._description)

    def _description(self) -> str:
        """What tells a layer from others where it knows no name of its own."""
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size})"

    def train(self, mode: bool = True) -> FlexConvNd:
        """As for every module; and the kernel is sampled anew."""
        self._cache.clear()
        return super().train(mode)

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)  # type: ignore[arg-type]
        self._extent.withdraw()  # other weights, another size
        self._cache.clear()

    def _apply(self, *args: object, **kwargs: object) -> FlexConvNd:
        self._extent.withdraw()  # rounding to another precision may move the edge
        self._cache.clear()
        return super()._apply(*args, **kwargs)  # type: ignore[arg-type]

    # --- making -------------------------------------------------------------------------------------------------------

    def reset_parameters(self) -> None:
        """Draw every parameter again, as if the layer were new."""
        self.generator.reset_parameters()
        self.generator.refine_(self.kernel_size)
        if self.mask is not None:
            self.mask.reset_parameters()
        self._settle(fresh=True)

    def _settle(self, *, fresh: bool) -> None:
        """Tell mask and generator of the grid, and a fresh generator of the mask; zero the bias."""
        self.generator.attach_(self.axes)
        if self.mask is not None:
            self.mask.attach_(self.axes)
            if fresh:
                center = self.mask.initial_mean or [axis.home for axis in self.axes]
                radius = [min(1.0, CENTRE_SPREAD * abs(sigma)) for sigma in self.mask.initial_sigma]
                self.generator.focus_(center, radius)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _make_generator(
        self,
        kernel: str | KernelGenerator | KernelFactory,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> KernelGenerator:
        channels = self.out_channels * self.in_channels // self.groups
        if isinstance(kernel, str):
            if kernel not in GENERATORS:
                unknown_name("kernel generator", kernel, GENERATORS)
            kernel = GENERATORS[kernel]
        if isinstance(kernel, nn.Module) or not callable(kernel):
            generator = kernel
        else:
            generator = kernel(self.dims, channels, device=device, dtype=dtype)
        if not isinstance(generator, KernelGenerator):
            raise ArgumentTypeError(
                f"kernel must be a name ({', '.join(GENERATORS)}), a KernelGenerator or a function that makes one; "
                f"got {kernel!r}"
            )
        if (generator.dims, generator.channels) != (self.dims, channels):
            raise ArgumentError(
                f"the kernel generator makes {generator.channels} channels in {generator.dims}D; this layer needs "
                f"out_channels × in_channels / groups = {channels} in {self.dims}D"
            )
        if generator is not kernel:
            generator.refine_(self.kernel_size)
        return generator

    def _make_mask(
        self, mask: str | GaussianMask | None, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> GaussianMask | None:
        if isinstance(mask, str):
            if mask != "gaussian":
                unknown_name("mask", mask, ["gaussian"])
            return GaussianMask(self.dims, device=device, dtype=dtype)
        if mask is not None and not isinstance(mask, GaussianMask):
            raise ArgumentTypeError(f"mask must be 'gaussian', a GaussianMask or None (no mask: CKConv); got {mask!r}")
        if mask is not None and mask.dims != self.dims:
            raise ArgumentError(f"the mask has {mask.dims} axes; this layer has {self.dims}")
        return mask

    def extra_repr(self) -> str:
        try:
            size = "×".join(map(str, self.extent))
        except ValueError:  # NaN in the mask: no reason not to print the model that has it
            size = "?"
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, extent={size}"]
        defaults = {"stride": (1,) * self.dims, "padding": "same", "dilation": (1,) * self.dims, "groups": 1}
        defaults |= {"padding_mode": "zeros", "algorithm": "auto"}
        parts += [f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value]
        return ", ".join(parts + ([] if self.bias is not None else ["bias=False"]))


class FlexConv1d(FlexConvNd):
    """1D convolution that learns how long its kernel is. Arguments and manners of `torch.nn.Conv1d`, and three more.

    Shapes: [batch, in_channels, length] → [batch, out_channels, length'], batch optional.

    Arguments:
        kernel_size: size of the grid, the most the kernel can grow to. Odd where padding is "same".
        padding: "same" (the default; output length ⌈length/stride⌉), "causal" (output n sees inputs ≤ n; the mask
            starts at the newest sample), "valid", an int, or per axis a name, an int or a (left, right) pair.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        kernel: the generator of the kernel: a name from `flexconv.nn.GENERATORS`, a function such as
            `functools.partial(MAGNet, hidden=64)`, or a `KernelGenerator`.
        mask: "gaussian", a `GaussianMask(…)` with other settings, or None: the whole grid, without a window (CKConv).
        algorithm: how to convolve; see `flexconv.ops`.

    """

    dims = 1

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | Sequence[int] | None = None) -> torch.Tensor:
        """x [batch, in_channels, length] → [batch, out_channels, length'].

        `lengths` [batch], for sequences padded to a common length: whatever stands behind a sequence's end (even NaN)
        is not seen, and its outputs there are 0. Row b equals the result for x[b, :, :lengths[b]] alone.
        """
        if lengths is None:
            return super().forward(x)
        if self.padding_mode != "zeros":
            raise ArgumentError(f"lengths needs padding_mode='zeros'; this layer has {self.padding_mode!r}")
        lengths = check_lengths(lengths, x)
        return hide_padding(super().forward(hide_padding(x, lengths)), self.output_lengths(lengths))

    def output_lengths(self, lengths: torch.Tensor) -> torch.Tensor:
        """How many outputs sequences of these lengths have."""
        lengths = lengths.to(torch.int64)  # short integers would overflow
        (taps,), (stride,), (pads,), (spread,) = self.kernel_size, self.stride, self.pads, self.dilation
        return output_size(lengths, taps, stride, pads, spread).clamp(min=0)  # type: ignore[arg-type, return-value]


class FlexConv2d(FlexConvNd):
    """2D convolution that learns how large its kernel is, per axis. Arguments of `torch.nn.Conv2d`; see `FlexConv1d`.

    Shapes: [batch, in_channels, height, width] → [batch, out_channels, height', width'], batch optional. Every size
    option takes one number or one per axis; so does padding: ("causal", "same") looks back along the first axis only.
    """

    dims = 2


class FlexConv3d(FlexConvNd):
    """3D convolution that learns how large its kernel is, per axis. Arguments of `torch.nn.Conv3d`; see `FlexConv1d`.

    Shapes: [batch, in_channels, depth, height, width] → the same with out_channels, batch optional. For video,
    padding=("causal", "same", "same") is causal in time.
    """

    dims = 3


def refresh_extents(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Bring the kernel sizes of a whole model up to date, with one copy to the host. Returns them by layer name.

    Eager code needs no call: layers follow by themselves, each with a copy of its own. Call this after an optimiser
    step to copy once for all of them, and to let compiled code crop: a compiled model computes the whole grid until
    it is given sizes, and uses those until the next call: call it again whenever the weights have changed.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, FlexConvNd)}
    refresh((name or type(m).__name__, m._extent, s) for name, m in layers.items() if (s := m._size_source) is not None)
    return {name: module.extent for name, module in layers.items()}
