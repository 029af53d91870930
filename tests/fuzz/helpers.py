"""What the tests of this folder share: how many examples they run, and slow computations to compare with."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

from flexconv.nn import FlexConvNd, mesh
from flexconv.nn._grid import tap_weights
from flexconv.nn._observed import LEAST_WEIGHT, _looks_back, _weights

EXAMPLES = int(os.environ.get("FLEXCONV_FUZZ_EXAMPLES", "0"))

#: largest error relative to the largest value, by the dtype of a layer. The generator of a scaled layer acts on
#: features that are nearly equal, which multiplies rounding errors in float32 by up to a thousand.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3, torch.bfloat16: 4e-2, torch.float16: 2e-2}

COUNTS: Counter[str] = Counter()  # what was compared, for logs
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def fuzz_settings(examples: int, *, cost: int = 1, **others: Any) -> settings:
    """Settings of a test: `examples` fixed examples in the suite, and more random ones in `make fuzz`.

    There are fewer random ones by the factor `cost`, for a test that takes longer.
    """
    return settings(
        max_examples=-(-EXAMPLES // cost) or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **others,
    )


def fuzz(examples: int, *strategies: Any, cost: int = 1, **named: Any) -> Callable[[Any], Any]:
    """Like `hypothesis.given` with these settings. Counts the examples."""

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            count(test.__name__.removeprefix("test_"))
            note(f"{test.__name__}(*{args!r}, **{kwargs!r})")
            test(*args, **kwargs)

        return fuzz_settings(examples, cost=cost)(given(*strategies, **named)(counted))

    return decorate


def count(what: str, number: int = 1) -> None:
    """Count cases. If FLEXCONV_FUZZ_COUNTS names a file, the counts are written to it at the end."""
    COUNTS[what] += number


def write_counts() -> None:
    if path := os.environ.get("FLEXCONV_FUZZ_COUNTS"):
        Path(path).write_text(json.dumps(COUNTS))


def note(case: str) -> None:
    """Write the case that runs now to the file FLEXCONV_FUZZ_LAST, so that it is known if it crashes Python."""
    if path := os.environ.get("FLEXCONV_FUZZ_LAST"):
        Path(path).write_text(case, errors="backslashreplace")


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def poison() -> None:
    """Free memory that is full of large numbers, so that the next tensors get it."""
    for entries in (16, 64, 256, 1024, 4096):
        blocks = [torch.full((entries,), 1e30) for _ in range(4)]
        del blocks


# --- slow computations ------------------------------------------------------------------------------------------------


def whole_kernel(layer: FlexConvNd) -> torch.Tensor:
    """The kernel on the whole grid in float64 → [out, in/groups, *kernel_size]. Cropped taps are 0.

    Everything is computed anew. Mask and coordinates are in the precision of the layer, because rounding decides
    whether a tap on the edge is kept.
    """
    axes, whole = layer.axes, [axis.whole for axis in layer.axes]
    precise = [axis.coordinates(axis.whole, device=torch.device("cpu"), dtype=torch.float64) for axis in axes]
    values = layer.generator.double()(mesh(precise))
    if layer.mask is not None:
        dtype = torch.promote_types(torch.float32, next(iter(layer.mask.size_parameters())).dtype)
        lines = [a.coordinates(a.whole, device=torch.device("cpu"), dtype=dtype) for a in axes]
        values = values * layer.mask(lines, axes).double()
    if layer.grid.resampled:
        values = values * layer.grid.scale * tap_weights(axes, whole, like=values)
    return values.unflatten(0, (layer.out_channels, layer.inputs_per_output))


def slow_forward(layer: FlexConvNd, x: torch.Tensor) -> torch.Tensor:
    """The output of a layer in float64, by a plain convolution with its whole kernel. Changes the layer to float64."""
    kernel, x = whole_kernel(layer), x.double()
    x = pad(x, layer.pads, {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode))
    bias = None if layer.bias is None else layer.bias.double()
    return CONV[layer.dims](x, kernel, bias, layer.stride, 0, layer.dilation, layer.groups)


def slow_fill(layer: FlexConvNd, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """x [batch, channels, *size] with every missing sample replaced by a mean of observed ones, one by one, in float64.

    `seen` [batch, channels, *size] is whether a sample was observed. The weights are those of the layer in float64.
    """
    fresh = copy.deepcopy(layer).double()
    weights = _weights(fresh, x.double())  # [1 or channels, 1, *taps]
    known = x.double().masked_fill(~seen, 0.0)
    result = known.clone()
    reach = [n - 1 if _looks_back(fresh, axis) else n // 2 for axis, n in enumerate(weights.shape[2:])]
    for place in (~seen).nonzero().tolist():
        b, c, *position = place
        kernel = weights[c % len(weights), 0]
        total = weight = 0.0
        for tap in itertools.product(*[range(n) for n in kernel.shape]):
            steps = zip(position, tap, reach, layer.dilation, strict=True)
            other = [p + (t - r) * dilation for p, t, r, dilation in steps]
            if all(0 <= p < n for p, n in zip(other, x.shape[2:], strict=True)) and seen[(b, c, *other)]:
                total += kernel[tap] * known[(b, c, *other)]
                weight += kernel[tap]
        result[(b, c, *position)] = total / weight if weight > LEAST_WEIGHT * kernel.sum() else 0.0
    return result


def pad(x: torch.Tensor, pads: Sequence[tuple[int, int]], mode: str = "constant") -> torch.Tensor:
    """Pad, and then remove samples where the padding is negative, also if there are fewer than that before."""
    amounts = [amount for pair in reversed(pads) for amount in pair]
    return F.pad(F.pad(x, [max(0, n) for n in amounts], mode=mode), [min(0, n) for n in amounts])


def slow_output(layer: FlexConvNd, x: torch.Tensor) -> torch.Tensor:
    """The output of a layer in float64, computed by a copy of it."""
    with torch.no_grad():
        return slow_forward(copy.deepcopy(layer), x)


def slow_gradients(layer: FlexConvNd, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor | None]:
    """The gradients of the parameters that require them, for the gradient of the output, in float64."""
    fresh = copy.deepcopy(layer)
    with torch.enable_grad():
        for parameter in fresh.parameters():
            parameter.grad = None
        slow_forward(fresh, x).backward(grad.double())
    return [p.grad for p in fresh.parameters() if p.requires_grad]


def assert_near(ours: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str, *, least: float = 1.0) -> None:
    """Raise unless the largest difference is at most `tolerance` times the largest value, or `least` if that is more.

    Sums may be 0, and have errors nevertheless.
    """
    assert ours.shape == wanted.shape, f"{what} has shape {tuple(ours.shape)} instead of {tuple(wanted.shape)}"
    if wanted.numel():
        error, size = (ours.double() - wanted).abs().max().item(), wanted.abs().max().item()
        assert error <= tolerance * max(size, least), f"{what} differs by {error:.3g}; the largest value is {size:.3g}"
