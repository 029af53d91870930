"""Time a function on a CPU or a GPU: warm up, repeat, take the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch


class Timing(NamedTuple):
    """Milliseconds: the median, and the spread between the quarter points."""

    median: float
    spread: float


def measure(function: Callable[[], object], device: torch.device, *, seconds: float = 0.5, most: int = 30) -> Timing:
    """Repeat `function` for about `seconds`, at least 3 times after one run to warm up."""

    def once() -> float:
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            end.synchronize()
            return start.elapsed_time(end)
        begin = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - begin)

    once()
    first = once()
    times = [first, *(once() for _ in range(min(most, max(2, int(1e3 * seconds / max(first, 1e-3))))))]
    quarters = statistics.quantiles(times, n=4)
    return Timing(statistics.median(times), quarters[2] - quarters[0])


def machine(device: torch.device) -> str:
    """What the numbers were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"
