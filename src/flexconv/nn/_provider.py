"""Provides the kernel of a layer to its forward pass.

A kernel is sampled in every forward pass of training. In evaluation without gradients it is sampled once and kept until
something it depends on changes. Code that has sampled the kernel for the current window already sets `prepared`, and
the layer uses that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from .._registry import has_fast_version
from ..ops import FactoredKernel, as_tensor
from ._cache import KernelCache
from ._grid import TapRange
from ._half import ScaledKernel, scale_kernel

if TYPE_CHECKING:
    from ._conv import FlexConvNd

Kernel = TypeVar("Kernel", torch.Tensor, ScaledKernel)


class KernelProvider:
    """The kernels of one layer, on whatever window of the grid the layer computes."""

    def __init__(self) -> None:
        self.prepared: torch.Tensor | FactoredKernel | None = None
        self._cache = KernelCache()

    def kernel(
        self, layer: FlexConvNd, window: Sequence[TapRange], dtype: torch.dtype | None
    ) -> torch.Tensor | FactoredKernel:
        """The kernel on `window` in `dtype` (None: as computed), as a tensor or as factors."""
        if self.keeps_kernels(layer):
            return self.tensor(layer, window, dtype)
        kernel = sample_once(layer, window) if self.prepared is None else self.prepared
        return kernel if dtype is None else kernel.to(dtype)

    def tensor(self, layer: FlexConvNd, window: Sequence[TapRange], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The same, always as a tensor."""

        def sample() -> torch.Tensor:
            kernel = self._sampled(layer, window)
            return kernel if dtype is None else kernel.to(dtype)

        return self._kept(layer, window, dtype, sample)

    def scaled(self, layer: FlexConvNd, window: Sequence[TapRange]) -> ScaledKernel:
        """The same for a convolution in float16."""
        return self._kept(layer, window, "scaled", lambda: scale_kernel(self._sampled(layer, window)))

    def _sampled(self, layer: FlexConvNd, taps: Sequence[TapRange]) -> torch.Tensor:
        """The kernel on some taps of the window. It is sampled on the whole window, so that the values are the same."""
        if self.prepared is not None:
            return as_tensor(self.prepared)
        window = layer.window
        kernel = layer.sample(window)
        if tuple(taps) == tuple(window):
            return kernel
        crop = (slice(low - start, high - start) for (low, high), (start, _) in zip(taps, window, strict=True))
        return kernel[(..., *crop)].contiguous()

    def _kept(self, layer: FlexConvNd, window: Sequence[TapRange], kind: object, make: Callable[[], Kernel]) -> Kernel:
        """The kernel of this kind that was kept, if it is still valid; otherwise a new one."""
        if not self.keeps_kernels(layer):
            return make()
        return self._cache.get(make, (tuple(window), kind), layer)

    def keeps_kernels(self, layer: FlexConvNd) -> bool:
        """Whether kernels are kept for the next forward pass: in evaluation without gradients."""
        changing = layer.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        return not changing and self.prepared is None

    def clear(self) -> None:
        """Forget the kernel that was kept."""
        self._cache.clear()


@has_fast_version("nn.sample")
def sample_once(layer: FlexConvNd, window: Sequence[TapRange]) -> torch.Tensor | FactoredKernel:
    """A kernel that is used in one forward pass only."""
    return layer.sample(window)


@has_fast_version("nn.sample_together")
def sample_together(module: nn.Module) -> AbstractContextManager[object]:  # noqa: ARG001
    """A context for the forward pass of a network that uses all FlexConvs of `module`.

    In a network that is compiled by `torch.compile` for a GPU, their kernels are sampled together on entry, which takes
    about as long as sampling one. Otherwise, this does nothing.
    """
    return nullcontext()
