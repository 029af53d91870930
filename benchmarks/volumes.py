"""Time and memory of layers for volumes of 64³ voxels, with gradients.

    python -m benchmarks.volumes [--device cpu] [--size 64] [--channels 16] [--batch 2]

The layers have kernels of 7³ taps: a plain 3D convolution, a plain depthwise one with a 1×1 convolution, a separable
FlexConv, and a dense FlexConv. The FlexConvs can grow up to 33³ taps; the separable one is also measured at that size.
Memory is the peak of a forward and backward pass, with input and output. On a CPU, allocations of tensors are counted,
and times are the shortest that the processor spends, over all threads, so that other programs matter little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from flexconv import FlexConv3d, SeparableFlexConv3d
from flexconv.bench import measure
from flexconv.bench.memory import Case, peak
from flexconv.bench.steps import open_masks

TAPS, GRID = 7, 33


def layers(channels: int) -> dict[str, Callable[[], nn.Module]]:
    """Functions that make the layers, so that one at a time is in memory."""

    def depthwise() -> nn.Module:
        spatial = nn.Conv3d(channels, channels, TAPS, padding=TAPS // 2, groups=channels)
        return nn.Sequential(spatial, nn.Conv3d(channels, channels, 1))

    def recomputed() -> nn.Module:
        layer = SeparableFlexConv3d(channels, channels, GRID)
        layer.depthwise.recompute = True
        return layer

    def whole_grid() -> nn.Module:
        layer = SeparableFlexConv3d(channels, channels, GRID)
        open_masks(layer)
        return layer

    return {
        f"nn.Conv3d, {TAPS}³": lambda: nn.Conv3d(channels, channels, TAPS, padding=TAPS // 2),
        f"nn.Conv3d, depthwise {TAPS}³ and 1×1": depthwise,
        f"SeparableFlexConv3d, {TAPS}³ of {GRID}³": lambda: SeparableFlexConv3d(channels, channels, GRID),
        "the same with recompute=True": recomputed,
        f"SeparableFlexConv3d, {GRID}³": whole_grid,
        f"FlexConv3d, {TAPS}³ of {GRID}³": lambda: FlexConv3d(channels, channels, GRID),
    }


def milliseconds(step: Callable[[], None], device: torch.device, seconds: float) -> float:
    """The median time of a step on a GPU, or the shortest time of the processor."""
    if device.type == "cuda":
        return measure({"step": step}, device, seconds=seconds)["step"].ms
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        began = time.process_time()
        step()
        times.append(1e3 * (time.process_time() - began))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="per layer")
    arguments = parser.parse_args()
    device, size = torch.device(arguments.device), (arguments.size,) * 3
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}: {arguments.batch} × {arguments.channels} × {'×'.join(map(str, size))}")
    case = Case(arguments.batch, arguments.channels, size)  # type: ignore[arg-type]  (made for images)
    for precision in ("fp32", "bf16") if device.type == "cuda" else ("fp32",):
        for label, make in layers(arguments.channels).items():
            torch.manual_seed(0)
            layer = make().to(device)
            x = torch.randn(case.batch, case.channels, *size, device=device, requires_grad=True)

            def step(layer: nn.Module = layer, x: torch.Tensor = x, half: bool = precision == "bf16") -> None:
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    y = layer(x)
                y.backward(torch.ones_like(y))

            step()
            spent = milliseconds(step, device, arguments.seconds)
            memory = peak(layer, case, precision, device)
            numbers = sum(p.numel() for p in layer.parameters())
            print(f"{precision}  {label:38} {numbers:7,} parameters {spent:9.1f} ms {memory:7.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
