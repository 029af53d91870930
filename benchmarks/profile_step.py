"""Profile training steps that are replayed as a CUDA graph: milliseconds per step, and the time of each GPU kernel.

    python -m benchmarks.profile_step [NETWORK ...] [--rows 20]

The networks are those of `flexconv bench steps`, selected by any part of their name.
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
from flexconv.bench.steps import CASES, make_recipe, noise, open_masks
from flexconv.train import build_model, make_fabric
from flexconv.train.display import Display

STEPS = 20  # per epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="parts of names; by default, all networks")
    parser.add_argument("--precision", default="bf16", help="bf16 (the default) or fp32")
    parser.add_argument("--rows", type=int, default=0, help="number of GPU kernels to list (default: 0)")
    parser.add_argument("--traces", type=Path, help="folder for Chrome traces of the replayed steps")
    arguments = parser.parse_args()
    if arguments.traces:
        arguments.traces.mkdir(parents=True, exist_ok=True)
    for name, model, shape, settings, _ in CASES:
        if arguments.networks and not any(part in name for part in arguments.networks):
            continue
        recipe = make_recipe(model, shape, {**settings, "engine": "graph", "precision": arguments.precision})
        for full in (False, True):
            title = f"{name}, {'masks on the whole grid' if full else 'initial masks'}"
            trace = arguments.traces and arguments.traces / f"{re.sub(r'[^0-9A-Za-z]+', '-', title)}.json.gz"
            print(f"{title}: {profile_step(recipe, shape, full, arguments.rows, trace)}", flush=True)


def profile_step(recipe: train.Recipe, shape: tuple[int, ...], full: bool, rows: int, trace: Path | None) -> str:
    """Measure a few epochs, profile one replayed step, and return a table of its GPU kernels."""
    start = time.perf_counter()
    images = noise(shape, recipe.batch_size * STEPS)
    fabric = make_fabric(recipe, "cuda")
    network = build_model(recipe, images)
    if full:
        open_masks(network)
    with tempfile.TemporaryDirectory() as folder:
        display = Display(None, epochs=1, steps_per_epoch=1)
        trainer = train.Trainer(network, images, recipe, train.RunFolder(folder), fabric, display)
        trainer.forward_model.train()
        _epoch(trainer, 0)
        startup = time.perf_counter() - start
        step_ms = statistics.median(_epoch(trainer, epoch) for epoch in range(1, 5))
        graph: Any = trainer.engine._captured.graph  # type: ignore[attr-defined]
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
    lines = [f"{step_ms:.2f} ms per step, {busy / 1e3:.2f} ms of it in {count} GPU kernels; startup {startup:.0f} s"]
    for kernel, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:rows]:
        lines.append(f"{sum(times):9.1f} µs {len(times):4d} × {kernel}")
    return "\n".join(lines)


def _epoch(trainer: train.Trainer, epoch: int) -> float:
    """Train for one epoch and return the milliseconds per step."""
    trainer.progress.batch = 0
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in trainer.train_batches.iterate(epoch=epoch):
        trainer.step(batch)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / STEPS


if __name__ == "__main__":
    main()
