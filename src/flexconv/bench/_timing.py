"""Milliseconds and memory of functions that are called in turn."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

STRETCH = 10.0  # ms: short functions are called so often in a row that a clock can see them
MOST_CALLS = 50  # in a stretch
MOST_ROUNDS = 15


class Timing(NamedTuple):
    """Milliseconds of one call: the median, and how far apart the quarters lie."""

    ms: float
    spread: float


def measure(
    functions: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float
) -> dict[str, Timing]:
    """Time functions in turn, so that drift hits all alike; about `seconds` each, and at least one call."""
    warm = {name: min(_stretch(f, device, 1) for _ in range(2)) for name, f in functions.items()}
    calls = {name: max(1, min(MOST_CALLS, int(STRETCH / max(ms, 1e-3)))) for name, ms in warm.items()}
    rounds = {
        name: max(1, min(MOST_ROUNDS, int(1e3 * seconds / max(ms * calls[name], 1e-3)))) for name, ms in warm.items()
    }
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(max(rounds.values(), default=0)):
        for name, function in functions.items():
            if turn < rounds[name]:
                times[name].append(_stretch(function, device, calls[name]))
    return {name: _timing(each) for name, each in times.items()}


def as_in_training(function: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same work as it runs inside a training step: on a GPU as a replayed CUDA graph, on a CPU as it is."""
    if device.type != "cuda":
        return function
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = function()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def all_in_training(
    functions: Mapping[str, Callable[[], object]], device: torch.device
) -> dict[str, Callable[[], object]]:
    """`as_in_training` of each; what fails, such as for lack of memory, is left out with a warning."""
    ready = {}
    for name, function in functions.items():
        try:
            ready[name] = as_in_training(function, device)
        except RuntimeError as failure:
            warnings.warn(f"{name} is left out: {str(failure).splitlines()[0][:120]}", stacklevel=2)
    return ready


def peak_memory(function: Callable[[], object], device: torch.device) -> float | None:
    """MiB that a call allocates beyond what was there before it; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _timing(times: list[float]) -> Timing:
    quarters = statistics.quantiles(times, n=4) if len(times) > 1 else [0.0, 0.0, 0.0]
    return Timing(statistics.median(times), quarters[2] - quarters[0])


def _stretch(function: Callable[[], object], device: torch.device, calls: int) -> float:
    """Milliseconds per call."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return 1e3 * (time.perf_counter() - begin) / calls
