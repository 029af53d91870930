"""Forward and backward of the 15 FlexConv2d of FlexNet-7 on a CPU, one after the other, in float32.

    python -m benchmarks.cpu_layers [--threads 2] [--rounds 7] [--batch 16]

Masks are at their initial size, or keep the whole grid. "plain" is without the fast versions of direct and FFT
convolutions on a CPU. The two take turns. Times are medians in milliseconds, and the time of all threads in brackets,
which other programs on the machine affect less.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator

import torch
from torch import nn

from flexconv import _registry as registry
from flexconv import create_model
from flexconv.bench.steps import open_masks
from flexconv.nn import FlexConvNd

FAST = "ops.factored_conv", "ops.convolve"

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"CPU, {arguments.threads} threads, batch {arguments.batch}, torch {torch.__version__}")
    for full in (False, True):
        layers = layers_of_flexnet(arguments.batch, full=full)
        times: dict[str, list[tuple[float, float]]] = {"fast": [], "plain": []}
        for _ in range(arguments.rounds + 1):
            for name, each in times.items():
                with contextlib.nullcontext() if name == "fast" else without_fast_versions():
                    wall, used = time.perf_counter(), time.process_time()
                    step(layers)
                    each.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - used)))
        texts = []
        for name, each in times.items():
            wall, used = (statistics.median(column) for column in zip(*each[1:], strict=True))
            texts.append(f"{name} {wall:.0f} [{used:.0f}]")
        print(f"{len(layers)} layers, {'whole grid' if full else 'initial':10}: {', '.join(texts)} ms", flush=True)


if __name__ == "__main__":
    main()
