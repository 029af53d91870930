"""Measure the time and the memory of functions."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

BLOCK_MS = 10.0  # short functions are called several times in a row, to take about this long
MAX_CALLS = 50  # in a row
MAX_ROUNDS = 15


class Timing(NamedTuple):
    """The time of one call in milliseconds: the median and the interquartile range."""

    ms: float
    spread: float


def measure(
    functions: Mapping[str, Callable[[], object]], device: torch.device, *, seconds: float
) -> dict[str, Timing]:
    """Time each function for about `seconds`, and at least once.

    The functions take turns, so that changes in the speed of the machine affect all of them.
    """
    warm = {name: min(_time_calls(f, device, 1) for _ in range(2)) for name, f in functions.items()}
    calls = {name: max(1, min(MAX_CALLS, int(BLOCK_MS / max(ms, 1e-3)))) for name, ms in warm.items()}
    rounds = {
        name: max(1, min(MAX_ROUNDS, int(1e3 * seconds / max(ms * calls[name], 1e-3)))) for name, ms in warm.items()
    }
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(max(rounds.values(), default=0)):
        for name, function in functions.items():
            if number < rounds[name]:
                times[name].append(_time_calls(function, device, calls[name]))
    return {name: _timing(each) for name, each in times.items()}


def as_in_training(function: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return a function that runs as in a training step: as a replayed CUDA graph on a GPU, unchanged on a CPU."""
    if device.type != "cuda":
        return function
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay() -> object:
        graph.replay()
        return result

    return replay


def all_in_training(
    functions: Mapping[str, Callable[[], object]], device: torch.device
) -> dict[str, Callable[[], object]]:
    """Apply `as_in_training` to each function. Functions that fail, such as for lack of memory, are omitted."""
    ready = {}
    for name, function in functions.items():
        try:
            ready[name] = as_in_training(function, device)
        except RuntimeError as failure:
            warnings.warn(f"{name} is omitted, because it failed: {str(failure).splitlines()[0][:120]}", stacklevel=2)
    return ready


def peak_memory(function: Callable[[], object], device: torch.device) -> float | None:
    """The peak memory in MiB that a call allocates in addition to existing tensors. None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _timing(times: list[float]) -> Timing:
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [0.0, 0.0, 0.0]
    return Timing(statistics.median(times), quartiles[2] - quartiles[0])


def _time_calls(function: Callable[[], object], device: torch.device, calls: int) -> float:
    """The milliseconds per call."""
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
