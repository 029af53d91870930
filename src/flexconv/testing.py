"""Checks for models built of these layers: causality, equivariance, streaming, other resolutions.

For users' test suites, and ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import torch
from torch import nn

from .errors import ArgumentError
from .nn import FlexConvNd, Streaming
from .resolution import at_resolution

FEWEST_SHARED = 4  # samples per axis at which two resolutions are compared: the first is on the border, where all is 0

Model = Callable[[torch.Tensor], torch.Tensor]


def assert_causal(model: Model, x: torch.Tensor, *, axis: int = -1) -> None:
    """Fail unless output n of `model(x)` depends on inputs ≤ n only, by gradient: ∂y[n]/∂x[m] = 0 for m > n.

    `axis` is the time axis of both. Looks at every output step, so use a short `x`.
    """
    x = x.detach().clone().requires_grad_(True)
    y = model(x)
    if y.shape[axis] != x.shape[axis]:
        raise AssertionError(f"outputs ({y.shape[axis]} steps) and inputs ({x.shape[axis]}) do not correspond")
    # [output step, input step]: the largest influence, over batch and channels
    influence = torch.stack([_gradient(y.select(axis, step), x, axis) for step in range(y.shape[axis])])
    noise = 1e3 * torch.finfo(x.dtype).eps * influence.max()  # what the rounding of an FFT leaves
    ahead = influence.triu(1).nan_to_num(nan=float("inf")) > noise
    if ahead.any():
        step, seen = (int(index) for index in ahead.nonzero()[0])
        raise AssertionError(f"output {step} depends on input {seen}, which is {seen - step} steps in its future")


def _gradient(output: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    return gradient.abs().movedim(axis, -1).flatten(0, -2).amax(0)


def assert_translation_equivariant(
    model: Model, x: torch.Tensor, shift: Sequence[int], *, margin: int, rtol: float = 1e-4
) -> None:
    """Fail unless moving the input by `shift` (one int per spatial axis) moves the output, away from the edges."""
    axes = tuple(range(-len(shift), 0))
    moved = model(torch.roll(x, tuple(shift), axes))
    expected = torch.roll(model(x), tuple(shift), axes)
    inner = (..., *(slice(margin + abs(s), size - margin - abs(s)) for s, size in zip(shift, x.shape[2:], strict=True)))
    if not expected[inner].numel():
        raise ArgumentError(
            f"margin {margin} and shift {tuple(shift)} leave nothing to compare of {tuple(x.shape[2:])}"
        )
    _assert_close(
        moved[inner], expected[inner], rtol, f"shifting the input by {tuple(shift)} does not shift the output"
    )


def assert_streaming_matches(
    model: nn.Module, x: torch.Tensor, chunks: Sequence[int] | int = 1, *, axis: int = -1, rtol: float = 1e-4
) -> None:
    """Fail unless `Streaming(model)`, fed `x` in `chunks` (a size, or sizes that add up), equals `model.eval()(x)`.

    Where outputs have no time axis (a classifier of the last step), the last chunk's output is compared.
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
    _assert_close(streamed, whole, rtol, f"streaming in chunks of {chunks} differs from the whole")


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
    """Fail unless the layer at `scale` times the resolution gives what it gives now, at the samples both have.

    The input is a smooth random signal, the same function sampled at either resolution; see `resolution_error`.
    """
    error = resolution_error(layer, scale, crop=crop, size=size, cycles=cycles, seed=seed)
    if not error <= rtol:
        raise AssertionError(f"at {scale} times the resolution outputs differ by {error:.1e}; allowed {rtol:.0e}")


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
    """‖y' − y‖ / ‖y‖ for the outputs y' of `at_resolution(layer, scale, crop=crop)`, where the samples of both meet.

    The input is a sum of waves of up to `cycles` periods per axis, which fades to 0 at the borders, where zero padding
    would be a step. `size` is that of the input at the layer's own resolution; None: as many samples as the kernel
    grid has intervals, at least 16. It is rounded up, so that both meet at 4 samples per axis or more: `scale` must be
    a ratio of small whole numbers, such as 2, 0.5 or 1.75.
    """
    if any(stride != 1 for stride in layer.stride) or layer.padding_mode != "zeros":
        raise ArgumentError("resolution_error compares sample by sample: it wants stride 1 and padding_mode 'zeros'")
    ratios = [
        Fraction(s).limit_denominator(64) for s in (scale if isinstance(scale, Sequence) else [scale] * layer.dims)
    ]
    sizes = [max(16, k - 1) for k in layer.kernel_size] if size is None else size
    sizes = list(sizes) if isinstance(sizes, Iterable) else [int(sizes)] * layer.dims
    sizes = [
        max(math.ceil(n / ratio.denominator), FEWEST_SHARED) * ratio.denominator
        for n, ratio in zip(sizes, ratios, strict=True)
    ]
    other = at_resolution(layer, [float(ratio) for ratio in ratios], crop=crop, copy=False)
    like = layer._like()
    here, there = (
        _smooth_signal(layer.in_channels, counts, cycles, seed).to(like)
        for counts in (sizes, [int(n * ratio) for n, ratio in zip(sizes, ratios, strict=True)])
    )
    y = layer(here)[(..., *(slice(None, None, ratio.denominator) for ratio in ratios))]
    z = other(there)[(..., *(slice(None, None, ratio.numerator) for ratio in ratios))]
    shared = (..., *(slice(min(a, b)) for a, b in zip(y.shape[2:], z.shape[2:], strict=True)))
    return ((z[shared] - y[shared]).norm() / y[shared].norm()).item()


def _smooth_signal(channels: int, sizes: Sequence[int], cycles: float, seed: int, waves: int = 16) -> torch.Tensor:
    """A random function on [0, 1)^D, sampled `sizes` times per axis → [1, channels, *sizes]."""
    random = torch.Generator().manual_seed(seed)
    dims = len(sizes)
    frequency = (torch.rand(channels, waves, dims, generator=random, dtype=torch.float64) * 2 - 1) * cycles
    phase = torch.rand(channels, waves, generator=random, dtype=torch.float64)
    lines = [torch.arange(n, dtype=torch.float64) / n for n in sizes]
    places = torch.stack(torch.meshgrid(*lines, indexing="ij"))  # [D, *sizes]
    turns = torch.einsum("cwd,d...->cw...", frequency, places) + phase.view(channels, waves, *[1] * dims)
    signal = torch.sin(2 * math.pi * turns).sum(1)
    for axis, line in enumerate(lines):
        signal = signal * torch.sin(math.pi * line).square().view(-1, *[1] * (dims - 1 - axis))
    return signal.unsqueeze(0)


def _assert_close(result: torch.Tensor, truth: torch.Tensor, rtol: float, message: str) -> None:
    if result.shape != truth.shape:
        raise AssertionError(f"{message}: shapes {tuple(result.shape)} and {tuple(truth.shape)}")
    error = ((result - truth).norm() / truth.norm().clamp(min=torch.finfo(truth.dtype).tiny)).item()
    if not error <= rtol:
        raise AssertionError(f"{message}: relative error {error:.1e}, allowed {rtol:.0e}")
