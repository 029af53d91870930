"""Replayed training steps on a GPU: milliseconds, and which kernels they are spent in.

python -m benchmarks.profile_step [CASE ...] [--rows 20]      (cases of `flexconv bench steps`, by any part of a name)
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from flexconv import train
from flexconv.bench._steps import CASES, make_recipe, noise, open_masks
from flexconv.train import build_model, make_fabric
from flexconv.train.display import Display

STEPS = 20  # in a window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rows", type=int, default=0, help="kernels to list")
    parser.add_argument("--traces", type=Path, help="a folder for the order in which they ran")
    arguments = parser.parse_args()
    if arguments.traces:
        arguments.traces.mkdir(parents=True, exist_ok=True)
    for name, model, shape, settings, _ in CASES:
        if arguments.cases and not any(part in name for part in arguments.cases):
            continue
        recipe = make_recipe(model, shape, {**settings, "engine": "graph", "precision": arguments.precision})
        for full in (False, True):
            title = f"{name}, masks {'full' if full else 'at init'}"
            trace = arguments.traces and arguments.traces / f"{re.sub(r'[^0-9A-Za-z]+', '-', title)}.json.gz"
            print(f"{title}: {measured(recipe, shape, full, arguments.rows, trace)}", flush=True)


def measured(recipe: train.Recipe, shape: tuple[int, ...], full: bool, rows: int, trace: Path | None) -> str:
    began = time.perf_counter()
    images = noise(shape, recipe.batch_size * STEPS)
    fabric = make_fabric(recipe, "cuda")
    network = build_model(recipe, images)
    if full:
        open_masks(network)
    with tempfile.TemporaryDirectory() as folder:
        display = Display(None, epochs=1, steps_per_epoch=1)
        trainer = train.Trainer(network, images, recipe, train.RunFolder(folder), fabric, display)
        trainer.forward_model.train()
        _window(trainer, 0)
        ready = time.perf_counter() - began
        steps = statistics.median(_window(trainer, epoch) for epoch in range(1, 5))
        graph: Any = trainer.engine._graph  # type: ignore[attr-defined]
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            graph.replay()
            torch.cuda.synchronize()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.device_time_total > 0:
            kernels[event.name[:110]].append(event.device_time_total)
    busy, count = sum(map(sum, kernels.values())), sum(map(len, kernels.values()))
    lines = [f"{steps:.2f} ms a step, {busy / 1e3:.2f} of them in {count} kernels; ready after {ready:.0f} s"]
    for kernel, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:rows]:
        lines.append(f"{sum(times):9.1f} µs {len(times):4d} × {kernel}")
    return "\n".join(lines)


def _window(trainer: train.Trainer, epoch: int) -> float:
    """Milliseconds per step over an epoch of steps."""
    trainer.progress.batch = 0
    torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in trainer.train_batches.iterate(epoch=epoch):
        trainer._step(batch)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / STEPS


if __name__ == "__main__":
    main()
