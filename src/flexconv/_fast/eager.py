"""The forward pass of a FlexConv in eager code on a GPU, with as little work on the host as possible.

`FlexConvNd._convolve` defines the result. It validates the input, resolves the padding, and selects an algorithm every
time. Here, everything that depends only on shapes and settings is kept, and the kernel is one node of autograd.
Settings and shapes are compared in every call, so a layer can be changed at any time. What is not supported is left to
the plain version: evaluation without gradients, in which kernels are kept; other generators, masks and precisions;
function transforms, forward-mode derivatives, and code whose launches are free (`ops.launches_are_free`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.autograd import forward_ad

from .._hooks import HOOK_ATTRIBUTES
from .._registry import provide
from ..nn import FlexConvNd, TapRange
from ..nn.kernels._linear import Affine
from ..ops._direct import direct_conv
from ..ops._monarch import monarch_conv
from ..ops._select import _launches_are_free
from ..ops._toeplitz import toeplitz_conv
from . import evaluation
from . import fused_sampler as fused
from .eager_dft import dft_layer
from .eager_fft import fft_layer
from .eager_kernel import sampled_kernel
from .eager_problems import Problem, make_problem
from .triton_support import capturing
from .windows import Windows

SHAPES = 64  # of inputs and windows that a layer remembers

_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_PLAIN = (torch.Tensor, nn.Parameter)
_NOT_OVERRIDDEN = (
    "sample", "coordinates", "pads_for", "pads", "padding", "window", "kernel_size", "size_source", "axes", "grid",
    "dtype", "_refresh_if_stale",
)  # fmt: skip


def convolve(layer: FlexConvNd, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`FlexConvNd._convolve`. NotImplemented if it is not supported."""
    if torch.compiler.is_compiling() or type(x) not in _PLAIN:
        return NotImplemented
    if not torch.is_grad_enabled():
        return evaluation.convolve(layer, x, bias)
    attributes = layer.__dict__
    if not fused.supports_device(x) or attributes["_provider"].prepared is not None:
        return NotImplemented
    settings = _settings_of(attributes)
    cache = attributes["_provider"]._cache
    path: _Path | None = cache.path
    if path is None or path.settings != (type(layer), *settings):
        path = cache.path = _Path(layer, (type(layer), *settings))
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


class _Path:
    """What is known about a layer with some settings."""

    def __init__(self, layer: FlexConvNd, settings: tuple[Any, ...]) -> None:
        self.settings = settings
        self.supported = False
        self.hooks: list[Any] = []
        self._problems: dict[object, Problem | None] = {}
        self._matrices: tuple[Problem | None, list[torch.Tensor]] = None, []  # of the last convolution
        generator, mask = layer.generator, layer.mask
        cls = type(layer)
        if any(getattr(cls, name) is not getattr(FlexConvNd, name) for name in _NOT_OVERRIDDEN):
            return
        grid, output = layer.grid, generator.output_map
        if grid.scale != 1.0 or grid.resampled or layer.padding_mode != "zeros" or not generator.has_factors:
            return
        tensors = fused.feature_tensors(generator)
        if (
            tensors is None
            or type(output) is not Affine
            or output.weight_norm
            or output is not generator._modules.get("output")
        ):
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
        dtype = x.dtype if lowered is None else lowered
        device = x.get_device()
        if dtype is torch.float16 or x.dtype is torch.float64 or not _fits(layer, x, bias, lowered):
            return NotImplemented
        tensors = self._tensors(device)
        if tensors is None:
            return NotImplemented
        weight, output_bias, of_mask, of_features, trained = tensors
        # the selection depends on whether there will be a backward pass
        training = x.requires_grad or trained or weight.requires_grad or output_bias.requires_grad
        training = training or any(tensor.requires_grad for tensor in of_mask)
        window = self._window(layer, of_mask)
        key = x.shape, x.dtype, lowered, window, training, device
        problem = self._problems.get(key, _UNKNOWN)
        captured = capturing(x.device)
        if problem is _UNKNOWN:
            rank = weight.shape[1] + 1
            problem = make_problem(layer, x, window, self.mask_settings, dtype, rank=rank, training=training)
            if len(self._problems) >= SHAPES:
                self._problems.clear()
            if not captured:  # what is allocated in a capture belongs to the graph
                self._problems[key] = problem
        if problem is None:
            return NotImplemented
        sampling, features, others = problem.sampling, None, (*of_mask, *of_features)
        if captured:  # a CUDA graph must own what it reads
            sampling = sampling._replace(grid=fused.make_grid(layer, problem.taps))
        if lowered is not None:
            torch.set_autocast_enabled(x.device.type, False)
        try:
            if not trained:
                features = self._constant_features(layer, sampling.grid, of_features, captured=captured)
                others = of_mask
            if problem.fft is not None:
                return fft_layer(problem.fft, sampling, features, x, bias, weight, output_bias, *others)
            if problem.dft is not None:
                if captured or self._matrices[0] is not problem:
                    self._matrices = problem, problem.dft.matrices(x.device)
                matrices = self._matrices[1]
                return dft_layer(problem.dft, matrices, sampling, features, x, bias, weight, output_bias, *others)
            kernel_dtype = torch.float32 if problem.padding is None and lowered is not None else dtype
            kernel = sampled_kernel(sampling, kernel_dtype, features, weight, output_bias, *others)
        finally:
            if lowered is not None:
                torch.set_autocast_enabled(x.device.type, True)
        if problem.depthwise is not None:
            convolve = toeplitz_conv if problem.depthwise == "toeplitz" else monarch_conv
            return convolve(x, kernel, bias, problem.geometry)
        if problem.padding is None:
            return direct_conv(x, kernel, bias, problem.geometry)
        stride, _, dilation, groups = problem.geometry
        padded = x if problem.added is None else F.pad(x, problem.added)
        return _CONV[layer.dims](padded, kernel, bias, stride, problem.padding, dilation, groups)

    def _constant_features(
        self, layer: FlexConvNd, grid: fused.Grid, tensors: list[torch.Tensor | None], *, captured: bool
    ) -> torch.Tensor:
        """Features that have no gradients: those of the last forward pass, if nothing has changed."""
        generator = layer.generator
        used = [tensor for tensor in tensors if tensor is not None]
        kept = None if captured else fused._constant_features.get(generator)
        if kept is not None and kept.grid is grid and kept.versions.unchanged(used):
            return kept.features
        present = used if tensors[-1] is None else used[:-1]
        return fused._features_of(generator, grid, tensors[:-1], present)

    def _tensors(self, device: int) -> _Tensors | None:
        """The current parameters. None if they are not ordinary float32 tensors on this device."""
        parameters, maps = self.generator["_parameters"], self.output["_parameters"]
        of_features = [parameters[name] for name in self.feature_names]
        of_features += [None] * (6 - len(of_features))
        of_features += parameters.get("theta"), self.output["_buffers"]["basis"]
        of_mask: list[Any] = []
        if self.mask is not None:
            self.mask["_reads"].check()
            stored, buffers = self.mask["_parameters"], self.mask["_buffers"]
            of_mask = [stored[name] if name in stored else buffers.get(name) for name in self.mask_names]
        weight, bias = maps["weight"], maps["bias"]
        trained = False
        for tensor in of_features:
            if tensor is not None:
                if type(tensor) not in _PLAIN or tensor.dtype is not torch.float32 or tensor.get_device() != device:
                    return None
                trained = trained or tensor.requires_grad
        for tensor in (weight, bias, *of_mask):
            if type(tensor) not in _PLAIN or tensor.dtype is not torch.float32 or tensor.get_device() != device:
                return None
        basis = of_features[-1]
        scaled = self.mask_settings is not None and self.mask_settings.form == "scaled"
        if (basis is not None and basis.requires_grad) or (scaled and of_mask[0].requires_grad):
            return None  # they have no gradients here
        return _Tensors(weight, bias, of_mask, of_features, trained)

    def _window(self, layer: FlexConvNd, of_mask: list[torch.Tensor]) -> tuple[TapRange, ...]:
        if self.windows is not None:
            extent = layer.__dict__["_extent"]
            if self.windows.refresh(extent, layer.__dict__["_modules"]["mask"], of_mask):
                return extent.windows
        return layer.window


class _Tensors(NamedTuple):
    weight: torch.Tensor  # of the output map
    bias: torch.Tensor
    mask: list[torch.Tensor]
    features: list[torch.Tensor | None]  # as in `fused_sampler.feature_tensors`, then the basis of the output map
    trained: bool  # whether a feature has gradients


def _fits(layer: FlexConvNd, x: torch.Tensor, bias: torch.Tensor | None, lowered: torch.dtype | None) -> bool:
    """Whether x and the bias have the dtype of the layer, or autocast converts them. Errors are left to the layer."""
    own = layer.__dict__["_parameters"].get("bias")
    if bias is not None and (bias is not own or bias.get_device() != x.get_device()):
        return False
    return lowered is not None or x.dtype is (layer.dtype if own is None else own.dtype)


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


_UNKNOWN: Any = object()

provide("nn.convolve", convolve)
