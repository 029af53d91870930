"""Time functions on a CPU or a GPU: warm up, repeat, take the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def measure(functions: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float) -> dict[str, float]:
    """Median milliseconds of each function, called in turn (so that drift hits all alike), about `seconds` each.

    One round to warm up, then 3 to 30; just one for a function that takes longer than `seconds`.
    """
    warm = {name: _once(function, device) for name, function in functions.items()}
    rounds = {name: 1 if t > 1e3 * seconds else min(30, max(3, int(1e3 * seconds / t))) for name, t in warm.items()}
    times = {name: [] for name in functions}
    for turn in range(max(rounds.values())):
        for name, function in functions.items():
            if turn < rounds[name]:
                times[name].append(_once(function, device))
    return {name: statistics.median(each) for name, each in times.items()}


def _once(function: Callable[[], object], device: torch.device) -> float:
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


def machine(device: torch.device) -> str:
    """What the numbers were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"
