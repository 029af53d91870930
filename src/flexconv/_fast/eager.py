"""The forward pass of a FlexConv in eager code on a GPU, with as little work on the host as possible.

`FlexConvNd._convolve` defines the result. It validates the input, resolves the padding, and selects an algorithm every
time. Here, everything that depends only on shapes and settings is kept, and the kernel is one node of autograd.
Settings and shapes are compared in every call, so a layer can be changed at any time. What is not supported is left to
the plain version: evaluation without gradients, in which kernels are kept; other generators, masks and precisions;
function transforms, forward-mode derivatives, and code whose launches are free (`ops.launches_are_free`).
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.autograd import forward_ad

from .._hooks import HOOK_ATTRIBUTES
from .._registry import provide
from ..nn import FlexConvNd, TapRange
from ..nn._checks import check_input
from ..nn.kernels._linear import Affine
from ..ops import FactoredKernel
from ..ops._direct import direct_conv
from ..ops._geometry import Geometry, drop_unreachable_taps, output_sizes
from ..ops._select import HOST_OPERATIONS, _launches_are_free, select_algorithm
from . import fused_sampler as fused
from .eager_dft import DftProblem, dft_layer, dft_problem
from .eager_fft import FftProblem, fft_layer, fft_problem
from .eager_kernel import Sampling, sampled_kernel
from .triton_support import capturing
from .windows import Windows

SHAPES = 64  # of inputs and windows that a layer remembers

#: operations of each algorithm on the host, as in `ops._select`, that are not views: views take little time here,
#: because autograd does not record them (`python -m benchmarks.eager_loop --count`)
OPERATIONS = {"direct": (7, 16), "fft": (14, 40), "dft": (14, 30)}

_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_PLAIN = (torch.Tensor, nn.Parameter)
_NOT_OVERRIDDEN = (
    "sample", "coordinates", "pads_for", "pads", "padding", "window", "kernel_size", "size_source", "axes", "grid",
    "dtype", "_refresh_if_stale", "_pad_by_mode",
)  # fmt: skip


def convolve(layer: FlexConvNd, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`FlexConvNd._convolve`. NotImplemented if it is not supported."""
    if torch.compiler.is_compiling() or type(x) not in _PLAIN or not fused.supports_device(x):
        return NotImplemented
    attributes = layer.__dict__
    if not torch.is_grad_enabled() or attributes["_provider"].prepared is not None:
        return NotImplemented
    settings = _settings_of(attributes)
    path = _paths.get(layer)
    if path is None or path.settings != (type(layer), *settings):
        path = _paths[layer] = _Path(layer, (type(layer), *settings))
    if not path.supported or any(path.hooks):
        return NotImplemented
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or torch.jit.is_tracing():
        return NotImplemented
    if torch.is_inference_mode_enabled() or _launches_are_free.get():
        return NotImplemented
    return path.convolve(layer, x, bias)


def _settings_of(attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Everything besides tensors that the result of a layer depends on."""
    modules = attributes["_modules"]
    generator, mask = modules["generator"], modules.get("mask")
    of_generator = generator.__dict__
    output = of_generator["_modules"].get("output")
    of_mask = {} if mask is None else mask.__dict__
    return (
        attributes["_grid"],
        attributes["stride"],
        attributes["dilation"],
        attributes["groups"],
        attributes["padding_mode"],
        attributes["algorithm"],
        attributes["in_channels"],
        attributes["out_channels"],
        attributes["inputs_per_output"],
        attributes["_half"],
        generator,
        type(generator),
        of_generator.get("hidden"),
        output,
        type(output),
        mask,
        type(mask),
        of_mask.get("form"),
        of_mask.get("threshold"),
        of_mask.get("damping"),
    )


class _Shape(FactoredKernel):
    """The shape of a factored kernel without the kernel, for functions that look at nothing else."""

    def __init__(self, shape: tuple[int, ...], rank: int, requires_grad: bool) -> None:
        self._shape, self._rank, self._requires_grad = torch.Size(shape), rank, requires_grad

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    def narrow(self, dim: int, start: int, length: int) -> _Shape:  # noqa: ARG002
        shape = *self._shape[:dim], length, *self._shape[dim + 1 :]
        return _Shape(shape, self._rank, self._requires_grad)


class _Problem(NamedTuple):
    """A convolution of one shape: how it is computed, and the taps that it needs."""

    geometry: Geometry
    taps: tuple[TapRange, ...]
    sampling: Sampling
    dft: DftProblem | None = None
    fft: FftProblem | None = None
    padding: tuple[int, ...] | None = None  # for torch's own function; None: `direct_conv` does more than to call it
    added: list[int] | None = None  # padding in front of it, as for `F.pad`


class _Path:
    """What is known about a layer with some settings."""

    def __init__(self, layer: FlexConvNd, settings: tuple[Any, ...]) -> None:
        self.settings = settings
        self.supported = False
        self.hooks: list[Any] = []
        self._problems: dict[object, _Problem | None] = {}
        self._matrices: tuple[_Problem | None, list[torch.Tensor]] = None, []  # of the last convolution
        generator, mask = layer.generator, layer.mask
        cls = type(layer)
        if any(getattr(cls, name) is not getattr(FlexConvNd, name) for name in _NOT_OVERRIDDEN):
            return
        grid, output = layer.grid, generator.output_map
        if grid.scale != 1.0 or grid.resampled or layer.padding_mode != "zeros" or not generator.has_factors:
            return
        tensors = fused.feature_tensors(generator)
        if tensors is None or type(output) is not Affine or output.weight_norm or output is not settings[14]:
            return
        self.mask_settings = None if mask is None else fused.mask_settings(mask, layer.axes)
        if mask is not None and self.mask_settings is None:
            return
        names = ["frequency", "phase", "mix_weight", "mix_bias"]
        names += [] if tensors[4] is None else ["mu", "gamma"]
        self.feature_names = names
        self.mask_names = () if mask is None else mask.size_names
        self.generator, self.output = generator.__dict__, output.__dict__
        self.mask = None if mask is None else mask.__dict__
        self.windows = Windows(mask, layer.axes) if mask is not None and Windows.support(mask, layer.axes) else None
        if any(name not in self.generator["_parameters"] for name in names):
            return
        modules = (generator, output) if mask is None else (generator, output, mask)
        self.hooks = [hooks for module in modules for hooks in map(module.__dict__.get, HOOK_ATTRIBUTES)]
        self.supported = True

    def convolve(self, layer: FlexConvNd, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The convolution with the current parameters. NotImplemented if these or x are not supported."""
        lowered = _autocast_dtype(x)
        own_bias = layer.__dict__["_parameters"].get("bias")
        dtype = x.dtype if lowered is None else lowered
        if dtype is torch.float16 or x.dtype is torch.float64 or (bias is not None and bias is not own_bias):
            return NotImplemented
        if lowered is None and x.dtype is not (layer.dtype if own_bias is None else own_bias.dtype):
            return NotImplemented
        parameters = self.generator["_parameters"]
        of_features = [parameters[name] for name in self.feature_names]
        of_features += [None] * (6 - len(of_features))
        of_features.append(parameters.get("theta"))
        of_features.append(self.output["_buffers"]["basis"])
        of_mask: list[Any] = []
        if self.mask is not None:
            stored, buffers = self.mask["_parameters"], self.mask["_buffers"]
            of_mask = [stored[name] if name in stored else buffers.get(name) for name in self.mask_names]
        maps = self.output["_parameters"]
        weight, output_bias = maps["weight"], maps["bias"]
        device, trained = x.get_device(), False
        for tensor in of_features:
            if tensor is not None:
                if type(tensor) not in _PLAIN or tensor.dtype is not torch.float32 or tensor.get_device() != device:
                    return NotImplemented
                trained = trained or tensor.requires_grad
        for tensor in (weight, output_bias, *of_mask):
            if type(tensor) not in _PLAIN or tensor.dtype is not torch.float32 or tensor.get_device() != device:
                return NotImplemented
        if of_features[-1] is not None and of_features[-1].requires_grad:
            return NotImplemented
        if self.mask_settings is not None and self.mask_settings.form == "scaled" and of_mask[0].requires_grad:
            return NotImplemented
        # the selection depends on whether there will be a backward pass
        training = x.requires_grad or trained or weight.requires_grad or output_bias.requires_grad
        training = training or any(tensor.requires_grad for tensor in of_mask)
        extent, mask = layer.__dict__["_extent"], layer.__dict__["_modules"].get("mask")
        refreshed = self.windows is not None and self.windows.refresh(extent, mask, of_mask)
        window = extent.windows if refreshed else layer.window
        key = x.shape, x.dtype, lowered, window, training, device
        problem = self._problems.get(key, _UNKNOWN)
        captured = capturing(x.device)
        if problem is _UNKNOWN:
            problem = self._problem(layer, x, window, dtype, weight.shape[1] + 1, training)
            if len(self._problems) >= SHAPES:
                self._problems.clear()
            if not captured:  # what is allocated in a capture belongs to the graph
                self._problems[key] = problem
        if problem is None:
            return NotImplemented
        sampling, features, tensors = problem.sampling, None, (*of_mask, *of_features)
        if captured:  # a CUDA graph must own what it reads
            sampling = sampling._replace(grid=fused.make_grid(layer, problem.taps))
        if lowered is not None:
            torch.set_autocast_enabled(x.device.type, False)
        try:
            if not trained:
                features, tensors = self._constant_features(layer, sampling.grid, of_features), of_mask
            if problem.fft is not None:
                return fft_layer(problem.fft, sampling, features, x, bias, weight, output_bias, *tensors)
            if problem.dft is not None:
                if captured or self._matrices[0] is not problem:
                    self._matrices = problem, problem.dft.matrices(x.device)
                matrices = self._matrices[1]
                return dft_layer(problem.dft, matrices, sampling, features, x, bias, weight, output_bias, *tensors)
            kernel_dtype = torch.float32 if problem.padding is None and lowered is not None else dtype
            kernel = sampled_kernel(sampling, kernel_dtype, features, weight, output_bias, *tensors)
        finally:
            if lowered is not None:
                torch.set_autocast_enabled(x.device.type, True)
        stride, _, dilation, groups = problem.geometry
        if problem.padding is not None:
            if problem.added is not None:
                x = F.pad(x, problem.added)
            return _CONV[layer.dims](x, kernel, bias, stride, problem.padding, dilation, groups)
        return direct_conv(x, kernel, bias, problem.geometry)

    def _constant_features(self, layer: FlexConvNd, grid: fused.Grid, tensors: list[Any]) -> torch.Tensor:
        *of_features, output_basis = tensors
        present = [tensor for tensor in of_features if tensor is not None]
        del output_basis
        return fused._features_of(layer.generator, grid, of_features, present)

    def _problem(
        self,
        layer: FlexConvNd,
        x: torch.Tensor,
        window: tuple[TapRange, ...],
        dtype: torch.dtype,
        rank: int,
        training: bool,
    ) -> _Problem | None:
        """How to convolve inputs like x. None if it is left to the plain version."""
        if x.ndim != layer.dims + 2 or 0 in x.shape:
            return None
        check_input(layer, x)
        sizes = tuple(stop - start for start, stop in window)
        shape = layer.out_channels, layer.inputs_per_output, *sizes
        geometry = Geometry(layer.stride, layer.pads_for(window), layer.dilation, layer.groups)
        if min(output_sizes(x.shape[2:], sizes, geometry)) < 1:
            return None
        kernel, cropped = drop_unreachable_taps(x, _Shape(shape, rank, training), geometry)
        starts = [
            start + (left - rest) // dilation
            for (start, _), (left, _), (rest, _), dilation in zip(
                window, geometry.pads, cropped.pads, layer.dilation, strict=True
            )
        ]
        taps = tuple((start, start + size) for start, size in zip(starts, kernel.shape[2:], strict=True))
        if math.prod(kernel.shape[2:]) > fused.MAX_TAPS:
            return None
        dft, fft = dft_problem(x, kernel, cropped, dtype), fft_problem(x, kernel, cropped, dtype)
        algorithm = layer.algorithm
        if algorithm == "auto":
            found = {"direct": True, "dft": dft, "fft": fft}
            operations = {name: OPERATIONS[name] if found[name] else plain for name, plain in HOST_OPERATIONS.items()}
            algorithm = select_algorithm(x, kernel, cropped, operations)
        mask = None if layer.mask is None else weakref.ref(layer.mask)
        grid = fused.grid_of(layer, taps, x.device)
        sampling = Sampling(grid, self.mask_settings, mask, len(self.mask_names), tuple(kernel.shape))
        if algorithm == "dft":
            return None if dft is None else _Problem(cropped, taps, sampling, dft=dft)
        if algorithm == "fft":
            return None if fft is None else _Problem(cropped, taps, sampling, fft=fft)
        if algorithm != "direct":
            return None
        pads = cropped.pads
        if layer.groups > 1 or not x.is_cuda or any(min(pair) < 0 for pair in pads):
            return _Problem(cropped, taps, sampling)
        padding = tuple(map(min, pads))
        rest = [(left - both, right - both) for (left, right), both in zip(pads, padding, strict=True)]
        added = [amount for pair in reversed(rest) for amount in pair]
        return _Problem(cropped, taps, sampling, padding=padding, added=added if any(added) else None)


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


_UNKNOWN: Any = object()
_paths: weakref.WeakKeyDictionary[FlexConvNd, _Path] = weakref.WeakKeyDictionary()

provide("nn.convolve", convolve)
