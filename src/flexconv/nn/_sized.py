"""The size of a kernel follows its mask: which taps of the grid are kept, and which are computed."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, TypeVar

import torch
from torch import nn

from .._arguments import per_axis
from ..errors import UsageError
from ..ops import Padding, Pads, resolve_padding
from ._checks import PARAMETRIZATIONS, check_generator, check_mask_channels, check_mask_dims, refuse_torchscript
from ._damping import damping
from ._extent import Extent, SizeSource
from ._grid import Axis, KernelGrid, TapRange
from ._guard import guarded_numbers
from ._half import HALF, Convert, check_float16, converted_dtype, in_float32
from ._mask import GaussianMask
from ._provider import KernelProvider
from ._scaled_mask import RATE
from .kernels import KernelGenerator, Placement

Self = TypeVar("Self", bound="SizedKernel")


class SizedKernel(nn.Module):
    """A module with a kernel on a coordinate grid, of which a mask keeps a part.

    The kept taps are plain integers. They are refreshed when the parameters of the mask may have changed, see
    `_extent.py`; they are not part of the module's state.
    """

    dims: ClassVar[int]
    generator: KernelGenerator
    mask: GaussianMask | None
    bias: nn.Parameter | None
    _half: torch.dtype | None = None  # the half precision of the layer, if it was converted to one
    parametrization: str
    in_channels: int
    out_channels: int
    groups: int
    dilation: tuple[int, ...]
    inputs_per_output: int

    def __init__(self) -> None:
        super().__init__()
        self._provider = KernelProvider()

    def __getattr__(self, name: str) -> torch.Tensor | nn.Module:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            if name != "weight":
                raise
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute 'weight': its kernel is computed by a generator, and "
                "layer.kernel() returns it. flexconv.materialize replaces the layer with a plain convolution"
            ) from None

    @property
    def dtype(self) -> torch.dtype:
        """The precision of inputs and outputs. Generator and mask are in float32 if this is half precision."""
        return self.bias.dtype if self.bias is not None else self._half or self.reference_tensor().dtype

    def reference_tensor(self) -> torch.Tensor:
        """A parameter of the generator, or else of the layer: a tensor on the same device."""
        first = next(self.generator.parameters(), None)
        return next(self.parameters(), torch.empty(())) if first is None else first

    # --- the grid -----------------------------------------------------------------------------------------------------

    @property
    def grid(self) -> KernelGrid:
        """The grid that the kernel is sampled on: axes, padding and scale. Assign another one to resample the layer."""
        return self._grid

    @grid.setter
    def grid(self, grid: KernelGrid) -> None:
        self._set_grid(grid, fresh=False)

    def _set_grid(self, grid: KernelGrid, *, fresh: bool) -> None:
        """Set the grid and tell mask and generator. Fresh parameters of the generator move to where the mask starts."""
        check_mask_channels(self.mask, self.in_channels, self.out_channels, self.groups)
        self._grid = grid
        if not grid.resampled:
            self._trained_axes = grid.axes
        self._extent = Extent(grid.axes)
        center = sigma = sigmas = None
        scaled = self.parametrization == "scaled"
        if self.mask is not None:
            self.mask.follow(**PARAMETRIZATIONS[self.parametrization])
            self.mask.attach(grid.axes)
            center, widths = self.mask.initial_mean, self.mask.initial_widths()
            assert center is not None
            if scaled:
                widths = [guarded_numbers(center, each, grid.axes)[1] for each in widths]
                center, _ = guarded_numbers(center, widths[0], grid.axes)
            sigma = widths[-1]
            sigmas = tuple(map(tuple, widths)) if len(widths) > 1 else None
        placement = Placement(grid.axes, center, sigma, self.inputs_per_output, scaled, sigmas)
        if self.mask is not None and self.mask.form == "scaled":
            sharing = 1 if self.mask.per_channel else self.generator.channels
            self.mask.damping = damping(sharing * placement.taps, RATE)
        self.generator.attach(placement, fresh=fresh)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the grid."""
        return self._grid.axes

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Number of taps of the grid per axis: the largest size that the kernel can have."""
        return self._grid.size

    @property
    def padding(self) -> Padding:
        """The padding as given: "same", "causal", "valid", an int, or one entry per axis."""
        return self.grid.padding

    @property
    def pads(self) -> Pads:
        """Padding (left, right) per axis in samples, for the whole grid."""
        return resolve_padding(self.padding, self.kernel_size, self.dilation)

    # --- the size -----------------------------------------------------------------------------------------------------

    @property
    def extent(self) -> tuple[int, ...]:
        """The current size of the kernel in taps per axis: how much of the grid the mask keeps."""
        return tuple(stop - start for start, stop in self.taps)

    @property
    def taps(self) -> tuple[TapRange, ...]:
        """The taps (start, stop) per axis that the mask keeps."""
        self._refresh_if_stale()
        return self._extent.taps(self.size_source)

    @property
    def window(self) -> tuple[TapRange, ...]:
        """The taps (start, stop) per axis that the forward pass computes. Those that are not kept are zero."""
        if torch.compiler.is_compiling():
            return self._extent.windows_in_compiled_code(self.size_source)
        self._refresh_if_stale()
        return self._extent.windows

    @property
    def size_source(self) -> SizeSource | None:
        """What decides how much of the grid is used: the mask, or a generator that has a size of its own."""
        if self.mask is not None:
            return self.mask
        return self.generator if hasattr(self.generator, "size_parameters") else None  # type: ignore[return-value]

    def _refresh_if_stale(self) -> None:
        self._extent.refresh_if_changed(self.size_source, name=self._description)

    # --- descriptions and refusals ------------------------------------------------------------------------------------

    def _description(self) -> str:
        """What tells this layer from others in an error message."""
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size})"

    def extra_repr(self) -> str:
        try:
            size = "×".join(map(str, self.extent))
        except ValueError:  # NaN in the mask: a model that has it can still be printed
            size = "?"
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, extent={size}"]
        defaults = {"stride": (1,) * self.dims, "padding": "same", "dilation": (1,) * self.dims, "groups": 1}
        defaults |= {"padding_mode": "zeros", "algorithm": "auto", "recompute": False}
        parts += [f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value]
        return ", ".join(parts + ([] if self.bias is not None else ["bias=False"]))

    def __prepare_scriptable__(self) -> NoReturn:  # called by torch.jit.script
        refuse_torchscript(self)

    def _replicate_for_data_parallel(self) -> NoReturn:  # called by torch.nn.DataParallel with several devices
        raise UsageError(
            f"{type(self).__name__} does not work in torch.nn.DataParallel, whose replicas have no parameters: use "
            f"torch.nn.parallel.DistributedDataParallel"
        )

    # --- changes that make kept sizes and kernels invalid -------------------------------------------------------------

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode, as for every module. The kernel is sampled again in the next forward pass."""
        self._provider.clear()
        return super().train(mode)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. Another mask or generator is told the grid, and sizes and kernels start anew.

        A stride and a dilation may be one number for all axes, as in the constructor.
        """
        if name in ("stride", "dilation"):
            value = self._checked_steps(name, value)
        replaced = name in ("mask", "generator") and "_grid" in self.__dict__
        if replaced and isinstance(value, nn.Module):
            self._check_part(name, value)  # before it is assigned, so that an error leaves the layer as it was
        super().__setattr__(name, value)  # type: ignore[arg-type]
        if replaced:
            self._set_grid(self._grid, fresh=False)
            self._forget()

    def _checked_steps(self, name: str, value: Any) -> tuple[int, ...]:
        """A stride or dilation with one number per axis; raise if the layer cannot have it."""
        steps = per_axis(name, value, self.dims, minimum=1)
        if name == "dilation" and "_grid" in self.__dict__:
            resolve_padding(self._grid.padding, self._grid.size, steps)
        return steps

    def _check_part(self, name: str, part: Any) -> None:
        """Raise if another mask or generator does not fit this layer."""
        if name == "generator":
            check_generator(part, len(self.axes), self.out_channels * self.inputs_per_output)
        else:
            check_mask_dims(part, len(self.axes))
            check_mask_channels(part, self.in_channels, self.out_channels, self.groups)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if (metadata := getattr(destination, "_metadata", None)) is not None:
            metadata.setdefault(prefix[:-1], {})["grid"] = self._trained_grid()

    def _load_from_state_dict(  # type: ignore[override]  (called with positions only)
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], strict: bool, *lists: Any
    ) -> None:
        self._forget()  # other weights, another size
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        saved, own = local_metadata.get("grid"), self._trained_grid()
        if saved is not None and saved != own:
            lists[-1].append(f"{prefix[:-1] or self._description()}: {_difference(saved, own)}")

    def _trained_grid(self) -> list[list[int]]:
        """Taps, and 1 if causal, per axis of the grid that the parameters belong to; `at_resolution` keeps it."""
        return [[axis.size, int(axis.causal)] for axis in self._trained_axes]

    def _apply(self: Self, fn: Convert, recurse: bool = True) -> Self:
        """Convert the layer. Generator and mask stay in float32 in half precision; see `_half.py`."""
        self._forget()
        dtype = converted_dtype(fn, self.dtype)
        self._half = dtype if dtype in HALF else None
        if dtype == torch.float16:
            for name, parameter in self.named_parameters(recurse=False):
                check_float16(f"the {name} of {self._description()}", parameter)
        for name, child in self.named_children() if recurse else ():
            child._apply(in_float32(fn) if name in ("generator", "mask") else fn)
        return super()._apply(fn, recurse=False)

    def _forget(self) -> None:
        self._extent.invalidate()
        self._provider.clear()


def _difference(saved: list[list[int]], own: list[list[int]]) -> str:
    """What tells two grids apart, as a sentence."""
    texts = [
        "×".join(str(size) for size, _ in grid) + " taps" + (" (causal)" if any(causal for _, causal in grid) else "")
        for grid in (saved, own)
    ]
    return (
        f"the state belongs to a kernel of {texts[0]}, this layer has {texts[1]}. The same parameters mean another "
        f"kernel there: make the layer with the kernel_size and padding of the state, and change its resolution with "
        f"flexconv.at_resolution. Pass dict(state) to load it nevertheless"
    )
