"""Training steps of FlexNet-7 under `torch.compile`: seconds to compile, milliseconds per step, graphs and recompiles.

    python -m benchmarks.compiled_loop                                  all rows, each in a process of its own
    python -m benchmarks.compiled_loop --ways cold overhead --count     also the kernels and operations of a step
    python -m benchmarks.compiled_loop --ways cold warm --profile FILE

Batches of 64 images of 3 × 32 × 32 pixels, bf16 autocast, fused Adam, a loop of one's own. The ways are:

    cold       torch.compile(model) with an empty Inductor cache; the kernels cover the whole grid
    warm       the same in a second process with the cache of the first
    overhead   torch.compile(model, mode="reduce-overhead")
    cpp        torch.compile(model, options={"cpp_wrapper": True}), in which C++ launches the kernels
    sizes      `refresh_extents` before the first step; then the masks of one layer, and of all, get another size
    captured   flexconv.capture with compile=False
    compiled   flexconv.capture with compile=True
    engine     the engine of `flexconv train`
    eager      the loop without any of these

All but `sizes` have masks that keep the whole grid. Needs a GPU, and less than four minutes in total; a way that takes
longer than its limit is reported as such. `--device cpu` with `--network flexnet3` checks that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from flexconv import create_model, refresh_extents
from flexconv.bench.steps import open_masks
from flexconv.nn import FlexConvNd

WAYS = ("cold", "warm", "overhead", "cpp", "captured", "compiled", "engine", "eager", "sizes")
COMPILED = ("cold", "warm", "overhead", "cpp", "sizes")
BATCH, ROUNDS = 64, 5
PROFILED = 5  # steps of a profile


# --- one way, in a process of its own ---------------------------------------------------------------------------------


def run(way: str, network: str, device: str, steps: int, profile: str, count: bool) -> dict[str, Any]:
    """Measure one way, and return the columns of its row."""
    if way == "engine":
        from .captured_loop import engine

        step = engine(full=True)[0]
        return {"first_s": first_steps(step, device), "ms": milliseconds(step, steps, device)}
    torch.manual_seed(0)
    shape = {"in_channels": 3, "num_classes": 10, "image_size": 32, "parametrization": "paper"}
    model = create_model(network, **shape).to(device)
    if way != "sizes":
        open_masks(model)
    step, model = training_step(model, way, device)
    row: dict[str, Any] = {"first_s": first_steps(step, device), **compilations()}
    row["ms"] = milliseconds(step, max(3, steps // 4) if way == "eager" else steps, device)
    row["later_graphs"] = compilations().get("graphs", 0) - row.get("graphs", 0)
    if way == "sizes":
        row["changes"] = [change(model, step, device, share) for share in (1, None)]
    if profile or count:
        found = record_steps(step, device)
        row |= counts(found, device) if count else {}
        if profile:
            write_profile(found, device, f"{profile}-{way}.txt")
    return row


def training_step(model: torch.nn.Module, way: str, device: str) -> tuple[Callable[[], object], torch.nn.Module]:
    import flexconv

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=device == "cuda")
    x = torch.randn(BATCH, 3, 32, 32, device=device)
    labels = torch.randint(10, (BATCH,), device=device)
    mode = "reduce-overhead" if way == "overhead" else None
    options: dict[str, Any] | None = {"cpp_wrapper": True} if way == "cpp" else None
    forward = torch.compile(model, mode=mode, options=options) if way in COMPILED else model
    if way == "sizes":
        refresh_extents(model)

    def step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(forward(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    if way in ("captured", "compiled"):
        captured = flexconv.capture(step, model, optimizer, compile=way == "compiled")
        return lambda: captured(x, labels), model
    return lambda: step(x, labels), model


def change(model: torch.nn.Module, step: Callable[[], object], device: str, layers: int | None) -> dict[str, Any]:
    """Widen the masks of the first layers (None: of all), refresh, and return what the next steps compile."""
    before = compilations().get("graphs", 0)
    masks = [module.mask for module in model.modules() if isinstance(module, FlexConvNd) and module.mask is not None]
    for mask in masks[:layers]:
        mask.set_(sigma=0.2 if layers else 0.3)
    refresh_extents(model)
    seconds = first_steps(step, device)
    return {"layers": layers or len(masks), "s": seconds, "graphs": compilations().get("graphs", 0) - before}


def compilations() -> dict[str, int]:
    """What Dynamo has compiled so far."""
    if "torch._dynamo" not in sys.modules:
        return {}
    from torch._dynamo.utils import counters

    return {
        "graphs": counters["stats"]["unique_graphs"],
        "nodes": counters["stats"]["calls_captured"],
        "breaks": sum(counters["graph_break"].values()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
        "cache_hits": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
    }


def first_steps(step: Callable[[], object], device: str) -> float:
    """The seconds of the first three steps, most of which are for compilation."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    synchronize(device)
    return time.perf_counter() - began


def milliseconds(step: Callable[[], object], steps: int, device: str) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - began) / steps)
    return statistics.median(times)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def record_steps(step: Callable[[], object], device: str) -> Any:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with record(activities=activities) as found:
        for _ in range(PROFILED):
            step()
        synchronize(device)
    return found


def write_profile(found: Any, device: str, path: str) -> None:
    """The operations that take the longest, on the device and on the host."""
    keys = [f"self_{device}_time_total", "self_cpu_time_total"]
    tables = [found.key_averages().table(sort_by=k, row_limit=40, max_name_column_width=70) for k in keys]
    Path(path).write_text(f"{PROFILED} steps\n" + "\n\n".join(tables))


def counts(found: Any, device: str) -> dict[str, Any]:
    """Kernels per step, the ten that take the longest, and the ten most frequent operations of the host."""
    averages = found.key_averages()
    on_device = [event for event in averages if event.device_type != torch.autograd.DeviceType.CPU]
    kernels = [event for event in on_device if not event.is_user_annotation]  # spans of kernels that are also listed
    if device == "cpu":
        kernels = averages
    time_of = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    slowest = sorted(kernels, key=lambda event: -getattr(event, time_of))[:10]
    on_host = [event for event in averages if event.device_type == torch.autograd.DeviceType.CPU]
    frequent = sorted(on_host, key=lambda event: -event.count)[:10]
    longest = sorted(on_host, key=lambda event: -event.self_cpu_time_total)[:10]
    return {
        "kernels": sum(event.count for event in kernels) / PROFILED,
        "device_ms": sum(getattr(event, time_of) for event in kernels) / PROFILED / 1e3,
        "slowest": [_described(event, getattr(event, time_of)) for event in slowest],
        "frequent": [_described(event, event.self_cpu_time_total) for event in frequent],
        "longest": [_described(event, event.self_cpu_time_total) for event in longest],
    }


def _described(event: Any, time_us: float) -> str:
    return f"{time_us / PROFILED:9.1f} us {event.count / PROFILED:6.1f} calls  {event.key[:90]}"


# --- all ways ---------------------------------------------------------------------------------------------------------


def measure_all(arguments: argparse.Namespace) -> None:
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as cache:
        for way in arguments.ways:
            command = [sys.executable, "-m", "benchmarks.compiled_loop", "--only", way, "--network", arguments.network]
            command += ["--device", arguments.device, "--steps", str(arguments.steps)]
            command += ["--profile", arguments.profile] if arguments.profile else []
            command += ["--count"] if arguments.count else []
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
            began = time.perf_counter()
            row: dict[str, Any] = {}
            try:
                done = subprocess.run(command, env=environment, timeout=arguments.limit, capture_output=True, text=True)
                lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
                row = json.loads(lines[-1]) if lines else {"failed": (done.stderr.strip().splitlines() or [""])[-1]}
            except subprocess.TimeoutExpired:
                row = {"failed": f"not finished after {arguments.limit} s"}
            row["process_s"] = time.perf_counter() - began
            print(way, json.dumps({key: row[key] for key in row if not isinstance(row[key], list)}), flush=True)
            rows.append(cells(way, row))
            notes += described_counts(way, row)
            if "failed" in row:
                notes.append(f"{way}: {row['failed'][:300]}")
            for each in row.get("changes", ()):
                notes.append(f"{way}: {each['layers']} layers resized: {each['s']:.1f} s, {each['graphs']} new graphs")
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"\n{name}, torch {torch.__version__}, {arguments.network}")
    head = (
        "way     ",
        "ms/step",
        "first 3 steps (s)",
        "process (s)",
        "graphs",
        "nodes",
        "breaks",
        "cache hits",
        "later",
    )
    for line in (head, *rows):
        print(" | ".join(cell.ljust(len(title)) for cell, title in zip(line, head, strict=True)).rstrip())
    print("\n".join(notes))


def described_counts(way: str, row: dict[str, Any]) -> list[str]:
    if "kernels" not in row:
        return []
    lines = [f"\n{way}: {row['kernels']:.0f} kernels in a step take {row['device_ms']:.2f} ms on the device"]
    titles = {"slowest": "on the device", "frequent": "most frequent on the host", "longest": "longest on the host"}
    for key, title in titles.items():
        lines += [f"{way}, {title}, per step:", *row[key]]
    return lines


def cells(way: str, row: dict[str, Any]) -> tuple[str, ...]:
    def text(key: str, form: str) -> str:
        return format(row[key], form) if key in row else "-"

    numbers = [text(key, "d") for key in ("graphs", "nodes", "breaks", "cache_hits", "later_graphs")]
    return way, text("ms", ".2f"), text("first_s", ".1f"), text("process_s", ".1f"), *numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--steps", type=int, default=40, help="per measurement; a quarter of it for the eager loop")
    parser.add_argument("--limit", type=int, default=100, help="seconds after which a way is given up")
    parser.add_argument(
        "--profile", default="", metavar="PREFIX", help="write PREFIX-WAY.txt with a profile of each way"
    )
    parser.add_argument("--count", action="store_true", help="count the kernels of a step and list the longest")
    parser.add_argument("--network", default="flexnet7")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is None:
        measure_all(arguments)
        return
    settings = arguments.network, arguments.device, arguments.steps, arguments.profile, arguments.count
    print(json.dumps(run(arguments.only, *settings)))


if __name__ == "__main__":
    main()
