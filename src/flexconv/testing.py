"""Assertions for test suites: causality, translation equivariance, streaming, and consistency across resolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import torch
from torch import nn

from .errors import ArgumentError
from .nn import FlexConvNd, Streaming
from .resolution import at_resolution

MIN_SHARED_SAMPLES = 4  # per axis, at which two resolutions are compared; the first is on the border, where x = 0

Model = Callable[[torch.Tensor], torch.Tensor]


def assert_causal(model: Model, x: torch.Tensor, *, axis: int = -1) -> None:
    """Assert that output n of `model(x)` depends only on inputs m ≤ n, i.e. that ∂y[n]/∂x[m] = 0 for m > n.

    `axis` is the time axis of input and output. The gradient of every output step is computed, so use a short `x`.
    """
    x = x.detach().clone().requires_grad_(True)
    y = model(x)
    if y.shape[axis] != x.shape[axis]:
        raise AssertionError(f"the output has {y.shape[axis]} steps and the input {x.shape[axis]}; they must be equal")
    # [output step, input step]: the largest gradient over batch and channels
    influence = torch.stack([_gradient(y.select(axis, step), x, axis) for step in range(y.shape[axis])])
    noise = 1e3 * torch.finfo(x.dtype).eps * influence.max()  # rounding errors of an FFT
    from_future = influence.triu(1).nan_to_num(nan=float("inf")) > noise
    if from_future.any():
        step, source = (int(index) for index in from_future.nonzero()[0])
        raise AssertionError(f"output {step} depends on input {source}, which is {source - step} steps in its future")


def _gradient(output: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    return gradient.abs().movedim(axis, -1).flatten(0, -2).amax(0)


def assert_translation_equivariant(
    model: Model, x: torch.Tensor, shift: Sequence[int], *, margin: int, rtol: float = 1e-4
) -> None:
    """Assert that shifting the input shifts the output equally, except within `margin` samples of the edges.

    `shift` has one int per spatial axis.
    """
    axes = tuple(range(-len(shift), 0))
    moved = model(torch.roll(x, tuple(shift), axes))
    expected = torch.roll(model(x), tuple(shift), axes)
    inner = (..., *(slice(margin + abs(s), size - margin - abs(s)) for s, size in zip(shift, x.shape[2:], strict=True)))
    if not expected[inner].numel():
        raise ArgumentError(
            f"margin {margin} and shift {tuple(shift)} leave no samples to compare in an input of {tuple(x.shape[2:])}"
        )
    _assert_close(
        moved[inner], expected[inner], rtol, f"shifting the input by {tuple(shift)} does not shift the output"
    )


def assert_streaming_matches(
    model: nn.Module, x: torch.Tensor, chunks: Sequence[int] | int = 1, *, axis: int = -1, rtol: float = 1e-4
) -> None:
    """Assert that `Streaming(model)` on chunks of `x` computes the same as `model.eval()` on the whole `x`.

    `chunks` is the size of the chunks, or a list of sizes that sum to the length of `x`. If the output has no time axis
    (a classifier of the last step), the output of the last chunk is compared.
    """
    training = [(module, module.training) for module in model.modules()]
    with torch.no_grad():
        whole = model.eval()(x)
    for module, mode in training:
        module.training = mode
    sizes = list(chunks) if isinstance(chunks, Iterable) else int(chunks)
    stream = Streaming(model)
    pieces = [stream(chunk) for chunk in x.split(sizes, axis)]
    streamed = torch.cat(pieces, axis) if whole.ndim == x.ndim else pieces[-1]
    _assert_close(streamed, whole, rtol, f"streaming in chunks of {chunks} differs from a single forward")


def assert_resolution_consistent(
    layer: FlexConvNd,
    scale: float | Sequence[float],
    rtol: float,
    *,
    crop: str = "taper",
    size: int | Sequence[int] | None = None,
    cycles: float = 3.0,
    seed: int = 0,
) -> None:
    """Assert that `resolution_error` is at most `rtol`: the layer computes the same at `scale` times the resolution.

    The input is a smooth random function, sampled at both resolutions. See `resolution_error` for the arguments.
    """
    error = resolution_error(layer, scale, crop=crop, size=size, cycles=cycles, seed=seed)
    if not error <= rtol:
        raise AssertionError(f"at {scale} times the resolution, outputs differ by {error:.1e}; allowed are {rtol:.0e}")


@torch.no_grad()
def resolution_error(
    layer: FlexConvNd,
    scale: float | Sequence[float],
    *,
    crop: str = "taper",
    size: int | Sequence[int] | None = None,
    cycles: float = 3.0,
    seed: int = 0,
) -> float:
    """The relative difference ‖y' − y‖ / ‖y‖ between a layer's output y and its output y' at another resolution.

    y' is the output of `at_resolution(layer, scale, crop=crop)`. The two are compared at the samples that both grids
    have. The input is a smooth random function, sampled at both resolutions. It falls to 0 at the borders, so that zero
    padding does not add a discontinuity.

    Arguments:
        scale: ratio of the resolutions, one number or one per axis. It must be a ratio of small integers, such as 2,
            0.5 or 1.75.
        crop: as in `at_resolution`.
        size: samples of the input at the layer's own resolution. None means the number of intervals of the kernel grid,
            and at least 16. It is rounded up until the two grids share at least 4 samples per axis.
        cycles: the input contains waves of up to this many periods per axis.
        seed: seed of the random input.

    """
    if any(stride != 1 for stride in layer.stride) or layer.padding_mode != "zeros":
        raise ArgumentError(
            f"resolution_error needs a layer with stride 1 and padding_mode 'zeros'; got stride {layer.stride} and "
            f"padding_mode {layer.padding_mode!r}"
        )
    ratios = [
        Fraction(s).limit_denominator(64) for s in (scale if isinstance(scale, Sequence) else [scale] * layer.dims)
    ]
    sizes = [max(16, k - 1) for k in layer.kernel_size] if size is None else size
    sizes = list(sizes) if isinstance(sizes, Iterable) else [int(sizes)] * layer.dims
    sizes = [
        max(math.ceil(n / ratio.denominator), MIN_SHARED_SAMPLES) * ratio.denominator
        for n, ratio in zip(sizes, ratios, strict=True)
    ]
    other = at_resolution(layer, [float(ratio) for ratio in ratios], crop=crop, copy=False)
    here, there = (
        smooth_signal(layer.in_channels, counts, cycles, seed).to(layer.reference_tensor().device, layer.dtype)
        for counts in (sizes, [int(n * ratio) for n, ratio in zip(sizes, ratios, strict=True)])
    )
    y = layer(here)[(..., *(slice(None, None, ratio.denominator) for ratio in ratios))]
    z = other(there)[(..., *(slice(None, None, ratio.numerator) for ratio in ratios))]
    shared = (..., *(slice(min(a, b)) for a, b in zip(y.shape[2:], z.shape[2:], strict=True)))
    return ((z[shared] - y[shared]).norm() / y[shared].norm()).item()


def smooth_signal(channels: int, sizes: Sequence[int], cycles: float, seed: int, waves: int = 16) -> torch.Tensor:
    """A smooth random function on [0, 1)^D, sampled on a grid of `sizes` → [1, channels, *sizes].

    It is a sum of waves of up to `cycles` periods per axis, times a window that is 0 at the borders.
    """
    random = torch.Generator().manual_seed(seed)
    dims = len(sizes)
    frequency = (torch.rand(channels, waves, dims, generator=random, dtype=torch.float64) * 2 - 1) * cycles
    phase = torch.rand(channels, waves, generator=random, dtype=torch.float64)
    lines = [torch.arange(n, dtype=torch.float64) / n for n in sizes]
    points = torch.stack(torch.meshgrid(*lines, indexing="ij"))  # [D, *sizes]
    angle = torch.einsum("cwd,d...->cw...", frequency, points) + phase.view(channels, waves, *[1] * dims)
    signal = torch.sin(2 * math.pi * angle).sum(1)
    for axis, line in enumerate(lines):
        signal = signal * torch.sin(math.pi * line).square().view(-1, *[1] * (dims - 1 - axis))
    return signal.unsqueeze(0)


def _assert_close(result: torch.Tensor, expected: torch.Tensor, rtol: float, message: str) -> None:
    if result.shape != expected.shape:
        raise AssertionError(f"{message}: shapes {tuple(result.shape)} and {tuple(expected.shape)}")
    error = ((result - expected).norm() / expected.norm().clamp(min=torch.finfo(expected.dtype).tiny)).item()
    if not error <= rtol:
        raise AssertionError(f"{message}: relative error {error:.1e}, allowed is {rtol:.0e}")
