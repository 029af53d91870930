"""Checks for models built of these layers: causality, equivariance, streaming. For users' test suites, and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from .nn import Streaming

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
        raise ValueError(f"margin {margin} and shift {tuple(shift)} leave nothing to compare of {tuple(x.shape[2:])}")
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
    sizes = chunks if isinstance(chunks, int) else list(chunks)
    stream = Streaming(model)
    pieces = [stream(chunk) for chunk in x.split(sizes, axis)]
    streamed = torch.cat(pieces, axis) if whole.ndim == x.ndim else pieces[-1]
    _assert_close(streamed, whole, rtol, f"streaming in chunks of {chunks} differs from the whole")


def _assert_close(result: torch.Tensor, truth: torch.Tensor, rtol: float, message: str) -> None:
    if result.shape != truth.shape:
        raise AssertionError(f"{message}: shapes {tuple(result.shape)} and {tuple(truth.shape)}")
    error = ((result - truth).norm() / truth.norm().clamp(min=torch.finfo(truth.dtype).tiny)).item()
    if not error <= rtol:
        raise AssertionError(f"{message}: relative error {error:.1e}, allowed {rtol:.0e}")
