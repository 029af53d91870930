"""How a layer convolves inputs of one shape in eager code: taps, algorithm, and what the algorithm needs to know."""

from __future__ import annotations

import math
import weakref
from typing import NamedTuple

import torch

from ..nn import FlexConvNd, TapRange
from ..nn._checks import check_input
from ..ops import FactoredKernel
from ..ops._geometry import Geometry, drop_unreachable_taps, output_sizes
from ..ops._select import HOST_OPERATIONS, select_algorithm
from . import fused_sampler as fused
from .eager_dft import DftProblem, dft_problem
from .eager_fft import FftProblem, fft_problem
from .eager_kernel import Sampling
from .sampler_launches import MaskSettings

#: operations of each algorithm on the host, as in `ops._select`, that are not views: views take little time here,
#: because autograd does not record them (`python -m benchmarks.eager_loop --count`)
OPERATIONS = {"direct": (7, 16), "fft": (14, 40), "dft": (14, 30), "toeplitz": (11, 24), "monarch": (12, 24)}


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


class Problem(NamedTuple):
    """A convolution of one shape: how it is computed, and the taps that it needs."""

    geometry: Geometry
    taps: tuple[TapRange, ...]
    sampling: Sampling
    dft: DftProblem | None = None
    fft: FftProblem | None = None
    depthwise: str | None = None  # "toeplitz" or "monarch"
    padding: tuple[int, ...] | None = None  # for torch's own function; None: `direct_conv` does more than to call it
    added: list[int] | None = None  # padding in front of it, as for `F.pad`


def make_problem(
    layer: FlexConvNd,
    x: torch.Tensor,
    window: tuple[TapRange, ...],
    settings: MaskSettings | None,
    dtype: torch.dtype,
    *,
    rank: int,
    training: bool,
) -> Problem | None:
    """How to convolve inputs like x in `dtype`. None if it is left to the plain version.

    Arguments:
        layer: The layer.
        x: The input. If the layer cannot convolve it, an error is raised.
        window: The window of the layer. Taps that only meet padding are removed.
        settings: Those of the mask.
        dtype: Precision of the convolution.
        rank: Number of basis functions of the kernel.
        training: Whether there will be a backward pass.

    """
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
        found = {"direct": True, "dft": dft, "fft": fft, "toeplitz": True, "monarch": True}
        operations = {name: OPERATIONS[name] if found[name] else plain for name, plain in HOST_OPERATIONS.items()}
        algorithm = select_algorithm(x, kernel, cropped, operations)
    mask = None if layer.mask is None else weakref.ref(layer.mask)
    grid = fused.grid_of(layer, taps, x.device)
    sampling = Sampling(
        grid, settings, mask, 0 if layer.mask is None else len(layer.mask.size_names), tuple(kernel.shape)
    )
    if algorithm == "dft":
        return None if dft is None else Problem(cropped, taps, sampling, dft=dft)
    if algorithm == "fft":
        return None if fft is None else Problem(cropped, taps, sampling, fft=fft)
    if algorithm in ("toeplitz", "monarch"):
        return Problem(cropped, taps, sampling, depthwise=algorithm)
    if algorithm != "direct":
        return None
    pads = cropped.pads
    if layer.groups > 1 or not x.is_cuda or any(min(pair) < 0 for pair in pads):
        return Problem(cropped, taps, sampling)
    padding = tuple(map(min, pads))
    rest = [(left - both, right - both) for (left, right), both in zip(pads, padding, strict=True)]
    added = [amount for pair in reversed(rest) for amount in pair]
    return Problem(cropped, taps, sampling, padding=padding, added=added if any(added) else None)
