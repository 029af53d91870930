"""Speed of the convolutions and of a stack of layers, as Markdown: `make bench`.

    python -m benchmarks.run [cpu|cuda] [--json FILE]

`plain` is torch's convolution with a ready kernel of that size: what a FlexConv costs if its kernel were free.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.timing import machine, measure
from flexconv import FlexConv2d, ops
from flexconv.nn import GaussianMask

# dims, batch, channels, size, extents
CASES = [
    (1, 8, 30, 784, (49, 98, 196, 392, 784)),
    (1, 8, 30, 1024, (64, 128, 256, 512, 1024)),
    (1, 1, 16, 16000, (125, 500, 2000, 8000, 16000)),
    (2, 16, 48, 32, (5, 9, 17, 25, 33)),
    (2, 4, 16, 96, (5, 13, 25, 49, 97)),
]
PATIENCE = 0.7  # seconds: once an algorithm takes longer, larger kernels are not tried
FLEXNET7 = [(3, 24), *[(24, 24)] * 4, (24, 36), *[(36, 36)] * 5, (36, 48), *[(48, 48)] * 3]
AUTHORS = {"init": "947 ms (one thread)", "full": "about 121,000 ms (two threads)"}


def bench_ops(device: torch.device) -> list[dict[str, object]]:
    """Milliseconds of one dense convolution by each algorithm, inference and training."""
    rows = []
    for dims, batch, channels, size, extents in CASES:
        for training in (False, True):
            slow: set[str] = set()
            for taps in extents:
                x = torch.randn(batch, channels, *[size] * dims, device=device, requires_grad=training)
                weight = torch.randn(channels, channels, *[taps] * dims, device=device, requires_grad=training)
                row: dict[str, object] = {"dims": dims, "batch": batch, "channels": channels, "size": size}
                row |= {"taps": taps, "training": training}
                calls = {name: partial(_step, call) for name, call in _calls(x, weight).items() if name not in slow}
                times = measure(calls, device, seconds=0.4)
                slow |= {name for name in ("direct", "plain") if times.get(name, 0.0) > 1e3 * PATIENCE}
                row |= times
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    return rows


def _calls(x: torch.Tensor, weight: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Causal in 1D, centred in 2D; `plain` gets its causal input padded beforehand."""
    dims, taps = x.ndim - 2, weight.shape[-1]
    conv, plain = getattr(ops, f"conv{dims}d"), getattr(F, f"conv{dims}d")
    kind = "causal" if dims == 1 else "same"
    calls = {name: partial(conv, x, weight, padding=kind, algorithm=name) for name in ("direct", "fft", "auto")}
    if dims == 1:
        ready = F.pad(x.detach(), (taps - 1, 0)).requires_grad_(x.requires_grad)
        calls["plain"] = partial(plain, ready, weight)
    else:
        calls["plain"] = partial(plain, x, weight, padding=taps // 2)
    return calls


def _step(call: Callable[[], torch.Tensor]) -> None:
    y = call()
    if y.requires_grad:
        y.backward(y.detach())


def bench_layers(device: torch.device) -> list[dict[str, object]]:
    """Milliseconds of forward + backward of 15 FlexConv2d with batch norm and ReLU, at the sizes of FlexNet-7."""
    rows = []
    threads = torch.get_num_threads()
    for masks, sigma, used in (("init", 0.075, 1), ("init", 0.075, threads), ("full", 1.0, 1), ("full", 1.0, threads)):
        torch.set_num_threads(used)
        stack = nn.Sequential()
        for fan_in, fan_out in FLEXNET7:
            layer = FlexConv2d(fan_in, fan_out, 33, mask=GaussianMask(2, sigma=sigma))
            stack.extend([layer, nn.BatchNorm2d(fan_out), nn.ReLU()])
        stack.to(device)
        x = torch.randn(16, 3, 32, 32, device=device)
        times = measure({"ms": partial(_step, partial(stack, x))}, device, seconds=4.0)
        rows.append({"masks": masks, "extent": stack[0].extent, "threads": used, **times})
        print(rows[-1], file=sys.stderr, flush=True)
    torch.set_num_threads(threads)
    return rows


def show_ops(rows: list[dict[str, object]]) -> None:
    """The table of convolutions, and the two claims made of it."""
    for training in (False, True):
        print(f"\n### {'Forward + backward' if training else 'Forward'}, ms\n")
        print("| | batch × channels | taps | direct | fft | auto | plain | auto / best |")
        print("|---|---|---|---|---|---|---|---|")
        for row in (r for r in rows if r["training"] == training):
            times = {name: float(str(row[name])) for name in ("direct", "fft", "auto", "plain") if name in row}
            best = min(value for name, value in times.items() if name != "auto")
            dims = int(str(row["dims"]))
            cells = [f"{times[name]:.3g}" if name in times else "–" for name in ("direct", "fft", "auto", "plain")]
            size = "×".join([str(row["size"])] * dims)
            taps = "×".join([str(row["taps"])] * dims)
            shape = f"{row['batch']} × {row['channels']}"
            print(f"| {size} | {shape} | {taps} | {' | '.join(cells)} | {times['auto'] / best:.2f} |")


def show_layers(rows: list[dict[str, object]]) -> None:
    """The table of the layer stack."""
    print("\n### 15 FlexConv2d layers of FlexNet-7, batch 16, 32×32, forward + backward\n")
    print("| masks | kernel | threads | ms | the authors' whole network |\n|---|---|---|---|---|")
    for row in rows:
        extent = "×".join(map(str, row["extent"])) if isinstance(row["extent"], tuple | list) else row["extent"]
        print(f"| {row['masks']} | {extent} | {row['threads']} | {row['ms']:.0f} | {AUTHORS[str(row['masks'])]} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of flexconv's convolutions and layers.")
    parser.add_argument("device", nargs="?", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    print(f"{machine(device)}")
    convolutions = bench_ops(device)
    show_ops(convolutions)
    layers = bench_layers(device)
    show_layers(layers)
    if arguments.json:
        content = {"machine": machine(device), "ops": convolutions, "layers": layers}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
