"""The time of one convolution by every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .. import ops
from .ceilings import DTYPES, Ceilings
from .timing import all_in_training, measure, peak_memory

MAX_MS = {"cpu": 700.0, "cuda": 200.0}  # if an algorithm takes longer, it is not measured with larger kernels
ALGORITHMS = ("direct", "fft", "dft", "auto")


class Case(NamedTuple):
    """A convolution with as many output as input channels: causal in 1D, centered in 2D and 3D."""

    batch: int
    channels: int
    size: tuple[int, ...]
    taps: int

    def tensors(self, device: torch.device, dtype: torch.dtype, *, training: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """An input and a kernel, scaled so that the output has about unit variance."""
        taps = (self.taps,) * len(self.size)
        x = torch.randn(self.batch, self.channels, *self.size, device=device)
        weight = torch.randn(self.channels, self.channels, *taps, device=device)
        weight = weight / weight[0].numel() ** 0.5
        return x.to(dtype).requires_grad_(training), weight.to(dtype).requires_grad_(training)


def _cases(batch: int, channels: int, size: tuple[int, ...], taps: Iterable[int]) -> list[Case]:
    return [Case(batch, channels, size, each) for each in taps]


#: lists of cases that differ only in their number of taps, in ascending order
CPU_CASES = [
    _cases(8, 30, (784,), (49, 98, 196, 392, 784)),
    _cases(8, 30, (1024,), (64, 128, 256, 512, 1024)),
    _cases(1, 16, (16000,), (125, 500, 2000, 8000, 16000)),
    _cases(16, 48, (32, 32), (5, 9, 17, 25, 33)),
    _cases(4, 16, (96, 96), (5, 13, 25, 49, 97)),
]
GPU_CASES = [
    _cases(64, 30, (784,), (49, 196, 784)),
    _cases(64, 60, (1024,), (64, 256, 1024)),
    _cases(32, 30, (16000,), (125, 2000, 16000)),
    *[_cases(64, channels, (32, 32), (5, 9, 17, 25, 33)) for channels in (24, 36, 48)],
    _cases(512, 48, (32, 32), (5, 9, 17, 25, 33)),
    _cases(64, 24, (96, 96), (5, 13, 49)),
    _cases(8, 16, (32, 32, 32), (3, 7, 17)),
]
SMALL_CASES = [_cases(2, 3, (24,), (3, 24)), _cases(2, 3, (8, 8), (3, 9))]


def bench_ops(device: torch.device, ceilings: Ceilings, *, small: bool = False) -> Iterator[dict[str, Any]]:
    """Time every algorithm, and compare the choice of "auto" with the fastest one.

    Yields one row per case, precision and pass (forward, or forward and backward). On a GPU, the convolutions run as in
    a training step, as replayed CUDA graphs. `eager_ms` is the time of "auto" without a graph.
    """
    groups = SMALL_CASES if small else GPU_CASES if device.type == "cuda" else CPU_CASES
    for cases in groups:
        for precision in ("fp32", "bf16") if device.type == "cuda" else ("fp32",):
            for training in (False, True):
                slow: set[str] = set()
                for case in cases:
                    seconds = 0.01 if small else 0.05 if device.type == "cuda" else 0.4
                    row = _row(case, device, ceilings, precision, seconds, training=training, leave_out=slow)
                    slow |= {name for name in ("torch", "direct") if row["ms"].get(name, 0.0) > MAX_MS[device.type]}
                    yield row


def _row(
    case: Case,
    device: torch.device,
    ceilings: Ceilings,
    precision: str,
    seconds: float,
    *,
    training: bool,
    leave_out: set[str],
) -> dict[str, Any]:
    tensors = case.tensors(device, DTYPES[precision], training=training)
    calls = {name: partial(_pass, call, tensors) for name, call in _calls(case).items() if name not in leave_out}
    with ops.launches_are_free():
        times = measure(all_in_training(calls, device), device, seconds=seconds)
    alone = {"auto": calls["auto"]}
    eager = times["auto"] if device.type == "cpu" else measure(alone, device, seconds=seconds)["auto"]
    best = min((name for name in times if name != "auto"), key=lambda name: times[name].ms)
    return {
        "case": case._asdict(),
        "precision": precision,
        "training": training,
        "ms": {name: time.ms for name, time in times.items()},
        "spread": {name: time.spread for name, time in times.items()},
        "peak_mib": {name: peak_memory(calls[name], device) for name in times},
        "eager_ms": eager.ms,
        "best": best,
        "auto_over_best": times["auto"].ms / times[best].ms,
        "share_of_ceilings": ceilings.floor(calls["auto"], precision) / times["auto"].ms,
    }


def _calls(case: Case) -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """The functions to time, by name. "torch" is the convolution of PyTorch."""
    dims = len(case.size)
    conv, padding = getattr(ops, f"conv{dims}d"), "causal" if dims == 1 else "same"
    calls: dict[str, Callable[..., torch.Tensor]] = {
        name: partial(conv, padding=padding, algorithm=name) for name in ALGORITHMS
    }
    return {"torch": _torch_conv, **calls}


def _torch_conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The convolution of PyTorch, causal in 1D and centered in 2D and 3D."""
    if x.ndim == 3:
        return F.conv1d(F.pad(x, (weight.shape[-1] - 1, 0)), weight)
    return (F.conv2d if x.ndim == 4 else F.conv3d)(x, weight, padding=weight.shape[-1] // 2)


def _pass(call: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, torch.Tensor]) -> object:
    """Run forward, and backward if the tensors require gradients."""
    y = call(*tensors)
    return torch.autograd.grad(y, tensors, torch.ones_like(y)) if y.requires_grad else y
