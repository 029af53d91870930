"""Forward and backward of layers on a CPU in float32, with the fast versions of convolutions and without them.

    python -m benchmarks.cpu_layers [--threads 2] [--rounds 7] [--batch 16] [--depthwise]

The layers are the 15 FlexConv2d of FlexNet-7, one after the other. Masks are at their initial size, or keep the whole
grid. With `--depthwise`, they are single depthwise convolutions by the FFT instead, and the peak of the memory is
printed, too. Direct ones follow, without gradients, next to `torch.nn.functional.conv1d` and `conv2d`.
"plain" is without the fast versions of direct and FFT convolutions on a CPU. The two take turns. Times are medians in
milliseconds, and the time of all threads in brackets, which other programs on the machine affect less.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import _registry as registry
from flexconv import create_model, ops
from flexconv.bench.memory import LiveBytes
from flexconv.bench.steps import open_masks
from flexconv.nn import FlexConvNd

FAST = "ops.factored_conv", "ops.tensor_conv", "ops.convolve"
DEPTHWISE = [  # channels, size, taps, padding
    (140, (1024,), (83,), "causal"),
    (140, (1024,), (1023,), "causal"),
    (96, (32, 32), (9, 9), "same"),
    (96, (32, 32), (33, 33), "same"),
]
DIRECT = [(64, (182,), 41), (140, (1024,), 33), (96, (32, 32), 9), (96, (32, 32), 17), (96, (32, 32), 31)]

Layers = list[tuple[nn.Module, torch.Tensor]]


def layers_of_flexnet(batch: int, *, full: bool) -> Layers:
    """Every FlexConv with an input of the shape that it has in the network."""
    torch.manual_seed(0)
    net = create_model("flexnet7", in_channels=3, num_classes=10, image_size=32, parametrization="paper")
    if full:
        open_masks(net)
    found: Layers = []
    hooks = [
        module.register_forward_pre_hook(lambda layer, given: found.append((layer, torch.randn_like(given[0]))))
        for module in net.modules()
        if isinstance(module, FlexConvNd)
    ]
    with torch.no_grad():
        net(torch.randn(batch, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return [(layer, x.requires_grad_()) for layer, x in found]


def step(layers: Layers) -> None:
    for layer, x in layers:
        y = layer(x)
        torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))


@contextlib.contextmanager
def without_fast_versions() -> Iterator[None]:
    removed = {name: registry._versions.pop(name) for name in FAST}
    try:
        yield
    finally:
        registry._versions.update(removed)


def alternate(step: Callable[[], object], rounds: int) -> tuple[str, dict[str, float]]:
    """Times of a step with and without fast versions, as text, and the peaks of its memory in MiB."""
    times: dict[str, list[tuple[float, float]]] = {"fast": [], "plain": []}
    peaks = {}
    for _ in range(rounds + 1):
        for name, each in times.items():
            with contextlib.nullcontext() if name == "fast" else without_fast_versions():
                wall, used = time.perf_counter(), time.process_time()
                step()
                each.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - used)))
                if name not in peaks:
                    with LiveBytes() as live:
                        step()
                    peaks[name] = live.most / 2**20
    texts = []
    for name, each in times.items():
        wall, used = (statistics.median(column) for column in zip(*each[1:], strict=True))
        texts.append(f"{name} {wall:.0f} [{used:.0f}]")
    return ", ".join(texts), peaks


def depthwise_step(x: torch.Tensor, kernel: torch.Tensor, padding: str) -> None:
    conv = ops.conv1d if x.ndim == 3 else ops.conv2d
    y = conv(x, kernel, padding=padding, groups=len(kernel), algorithm="fft")
    torch.autograd.grad(y, (x, kernel), torch.ones_like(y))


@torch.no_grad()
def print_direct(batch: int, rounds: int) -> None:
    """Print milliseconds of direct depthwise convolutions in inference."""
    for channels, size, taps in DIRECT:
        x, kernel = torch.randn(batch, channels, *size), torch.randn(channels, 1, *(taps,) * len(size))
        ours, torchs = (ops.conv1d, F.conv1d) if len(size) == 1 else (ops.conv2d, F.conv2d)
        calls = {
            "flexconv": partial(ours, x, kernel, groups=channels, algorithm="direct"),
            "torch": partial(torchs, x, kernel, padding=taps // 2, groups=channels),
        }
        texts = []
        for name, call in calls.items():
            times = []
            for _ in range(rounds + 1):
                began = time.perf_counter()
                call()
                times.append(1e3 * (time.perf_counter() - began))
            texts.append(f"{name} {statistics.median(times[1:]):.1f}")
        shape = " × ".join(map(str, (channels, *size)))
        print(
            f"inference, direct, {shape}, {'×'.join([str(taps)] * len(size))} taps: {', '.join(texts)} ms", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--depthwise", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"CPU, {arguments.threads} threads, batch {arguments.batch}, torch {torch.__version__}")
    if arguments.depthwise:
        for channels, size, taps, padding in DEPTHWISE:
            x = torch.randn(arguments.batch, channels, *size, requires_grad=True)
            kernel = torch.randn(channels, 1, *taps, requires_grad=True)
            text, peaks = alternate(partial(depthwise_step, x, kernel, padding), arguments.rounds)
            shape = " × ".join(map(str, (channels, *size)))
            memory = ", ".join(f"{name} {peak:.0f}" for name, peak in peaks.items())
            print(f"{shape}, {'×'.join(map(str, taps))} taps: {text} ms; {memory} MiB", flush=True)
        print_direct(arguments.batch, arguments.rounds)
        return
    for full in (False, True):
        layers = layers_of_flexnet(arguments.batch, full=full)
        text, _ = alternate(partial(step, layers), arguments.rounds)
        print(f"{len(layers)} layers, {'whole grid' if full else 'initial':10}: {text} ms", flush=True)


if __name__ == "__main__":
    main()
