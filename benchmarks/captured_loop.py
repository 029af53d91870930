"""Milliseconds per training step of FlexNet-7 in a loop of one's own, with and without `flexconv.capture`.

    python -m benchmarks.captured_loop
    python -m benchmarks.captured_loop --ways eager captured --steps 20

Batches of 64 images of 3 × 32 × 32 pixels, bf16 autocast, fused Adam, masks at their initial size and on the whole
grid. The ways are: `eager`, the loop without capture; `captured`, with `compile=False`; `compiled`, with
`compile=True`; and `engine`, the engine of `flexconv train`, which also prepares the batches. `flexconv bench steps`
measures the same steps of the engine in epochs of 30 batches. Needs a GPU, and less than two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import flexconv
from flexconv import create_model
from flexconv.bench.steps import make_recipe, noise, open_masks
from flexconv.train import RunFolder, Trainer, build_model, make_fabric
from flexconv.train.display import Display

WAYS = ("eager", "captured", "compiled", "engine")
BATCH = 64
ROUNDS = 5
EPOCH = 240  # batches of the engine: an epoch begins with a copy to the device, for which the host waits


def own_loop(way: str, *, full: bool) -> tuple[Callable[[], object], Callable[[], int]]:
    """Return a function that trains on one batch, and one that counts captures."""
    torch.manual_seed(0)
    model = create_model("flexnet7", in_channels=3, num_classes=10, image_size=32, parametrization="paper").cuda()
    if full:
        open_masks(model)
    optimizer = torch.optim.Adam(flexconv.parameter_groups(model, lr=1e-3), fused=True)
    x = torch.randn(BATCH, 3, 32, 32, device="cuda")
    y = torch.randint(10, (BATCH,), device="cuda")

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if way == "eager":
        return lambda: train_step(x, y), lambda: 0
    step = flexconv.capture(train_step, model, optimizer, compile=way == "compiled")
    return lambda: step(x, y), lambda: step.captures


def engine(*, full: bool) -> tuple[Callable[[], object], Callable[[], int]]:
    """The same for the engine of `flexconv train`."""
    shape = (3, 32, 32)
    recipe = make_recipe({"name": "flexnet7"}, shape, {"batch_size": BATCH, "engine": "graph", "precision": "bf16"})
    images = noise(shape, BATCH * EPOCH)
    network: nn.Module = build_model(recipe, images)
    if full:
        open_masks(network)
    display = Display(None, epochs=1, steps_per_epoch=1)
    folder = RunFolder(tempfile.mkdtemp())
    trainer = Trainer(network, images, recipe, folder, make_fabric(recipe, "cuda"), display)
    trainer.forward_model.train()

    def endless():
        while True:
            trainer.progress.batch = 0
            yield from trainer.train_batches.iterate(epoch=0)

    batches = endless()
    return lambda: trainer.step(next(batches)), lambda: getattr(trainer.engine, "captures", 0)


def measure(step: Callable[[], object], steps: int) -> tuple[float, float]:
    """Return the seconds of the first three steps, and the median milliseconds of the others."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    first, times = time.perf_counter() - began, []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began) / steps)
    return first, statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--steps", type=int, default=40, help="per measurement; a quarter of it for the eager loop")
    arguments = parser.parse_args()
    rows = []
    for way in arguments.ways:
        for full in (False, True):
            step, captures = engine(full=full) if way == "engine" else own_loop(way, full=full)
            first, ms = measure(step, arguments.steps // 4 if way == "eager" else arguments.steps)
            masks = "whole grid" if full else "initial"
            rows.append((way, masks, f"{ms:.2f}", f"{first:.1f}", str(captures())))
            print(f"{way}, {masks}: {ms:.2f} ms", flush=True)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for row in (("way", "masks", "ms/step", "first 3 steps (s)", "captures"), *rows):
        print(" | ".join(cell.ljust(width) for cell, width in zip(row, (10, 12, 9, 18, 8), strict=True)).rstrip())


if __name__ == "__main__":
    main()
