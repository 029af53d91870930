"""The time of a FlexConv layer, including its kernel, compared with a plain convolution of the same size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from .._registry import fast_version
from ..nn import FlexConv1d, FlexConv2d, GaussianMask
from .ceilings import DTYPES, Ceilings
from .timing import all_in_training, measure, peak_memory

MAX_PLAIN_TAPS = {"cpu": 17 * 17, "cuda": 64 * 64}  # plain convolutions with more taps take seconds


class Case(NamedTuple):
    """A layer with as many output as input channels. Its mask has its initial size, or covers the whole grid."""

    batch: int
    channels: int
    size: tuple[int, ...]
    full: bool


SHAPES = {
    "cuda": [(64, 24, (32, 32)), (64, 48, (32, 32)), (512, 48, (32, 32)), (64, 60, (1024,)), (32, 30, (16000,))],
    "cpu": [(16, 24, (32, 32)), (16, 48, (32, 32)), (8, 30, (1024,))],
    "small": [(2, 3, (8, 8)), (2, 3, (24,))],
}


def bench_layers(device: torch.device, ceilings: Ceilings, *, small: bool = False) -> Iterator[dict[str, Any]]:
    """Time forward and backward of a FlexConv layer, and of a `torch.nn` convolution with the same number of taps.

    Yields one row per case and precision. Inputs have that precision. On a GPU, the layers run as in a training step:
    as a replayed CUDA graph, with the compiled functions and kernel sampling of the fast engines. `eager_ms` is the
    time of the FlexConv layer in eager mode.
    """
    shapes = SHAPES["small" if small else "cuda" if device.type == "cuda" else "cpu"]
    for batch, channels, size in shapes:
        for full in (False, True):
            for precision in ("fp32", "bf16") if device.type == "cuda" else ("fp32",):
                yield _row(Case(batch, channels, size, full), device, ceilings, precision, 0.01 if small else 0.4)


def _row(case: Case, device: torch.device, ceilings: Ceilings, precision: str, seconds: float) -> dict[str, Any]:
    flex = _flex(case).to(device)
    x = torch.randn(case.batch, case.channels, *case.size, device=device, dtype=DTYPES[precision], requires_grad=True)
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
    alone = partial(_pass, flex, x, autocast)
    calls: dict[str, Callable[[], object]] = {"flexconv": alone if device.type == "cpu" else _as_in_step(flex, alone)}
    if math.prod(flex.extent) <= MAX_PLAIN_TAPS[device.type]:
        calls["torch"] = partial(_pass, _plain(case, flex.extent).to(device), x, autocast)
    times = measure(all_in_training(calls, device), device, seconds=seconds)
    eager = times["flexconv"] if device.type == "cpu" else measure({"": alone}, device, seconds=seconds)[""]
    return {
        "case": case._asdict(),
        "precision": precision,
        "extent": flex.extent,
        "ms": {name: time.ms for name, time in times.items()},
        "spread": {name: time.spread for name, time in times.items()},
        "eager_ms": eager.ms,
        "peak_mib": peak_memory(calls["flexconv"], device),
        "share_of_ceilings": ceilings.floor(alone, precision) / times["flexconv"].ms,
    }


def _as_in_step(layer: nn.Module, call: Callable[[], object]) -> Callable[[], object]:
    """Run `call` as the fast engines run a training step. Without `flexconv._fast`, run it unchanged."""
    make_step = fast_version("bench.step")
    step = nullcontext if make_step is None else make_step(layer)

    def within() -> object:
        with step():
            return call()

    return within


def _flex(case: Case) -> FlexConv1d | FlexConv2d:
    mask = GaussianMask(len(case.size), sigma=2.0 if case.full else 0.075, form="guarded")
    settings: dict[str, Any] = {"mask": mask, "parametrization": "paper"}  # older measurements have this one, too
    if len(case.size) == 1:
        return FlexConv1d(case.channels, case.channels, case.size[0], padding="causal", **settings)
    grid = tuple(size + 1 - size % 2 for size in case.size)
    return FlexConv2d(case.channels, case.channels, grid, **settings)


def _plain(case: Case, extent: tuple[int, ...]) -> nn.Module:
    if len(case.size) == 1:
        pad = nn.ConstantPad1d((extent[0] - 1, 0), 0.0)
        return nn.Sequential(pad, nn.Conv1d(case.channels, case.channels, extent[0]))
    return nn.Conv2d(case.channels, case.channels, (extent[0], extent[1]), padding=(extent[0] // 2, extent[1] // 2))


def _pass(layer: nn.Module, x: torch.Tensor, autocast: Any) -> object:
    with autocast():
        y = layer(x)
    return torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))
