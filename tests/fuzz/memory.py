"""Measure the resident memory of a process that trains and evaluates on inputs of changing sizes.

    python -m tests.fuzz.memory STEPS SIZES [LOG]

Trains a network with 1D and 2D FlexConvs for STEPS steps, then evaluates it STEPS times. There are SIZES different
inputs, by length or image size, batch size, algorithm and size of the kernels. Each of them is used a few times before,
so that what is kept for each size is there at the beginning. Prints the memory in MiB at the beginning and after each
tenth, and how much of it tensors have that Python can reach: parameters, and the matrices of "dft". The environment
variable ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 disables the cache of oneDNN, which torch's direct convolutions use.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import flexconv
from flexconv import FlexConv1d, FlexConv2d, at_resolution, refresh_extents

PARTS = 10
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
ROUNDS = 2  # over all sizes before memory is measured


def resident() -> float:
    """The resident memory of this process in MiB, without what is freed but not yet returned to the system."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # other C libraries than that of GNU
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Network(nn.Module):
    """Filters sequences and images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences = nn.Sequential(FlexConv1d(1, 4, 65), nn.GELU(), FlexConv1d(4, 1, 65, padding="causal"))
        self.images = nn.Sequential(FlexConv2d(1, 4, 17), nn.GELU(), FlexConv2d(4, 1, 17))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sequences(x) if x.ndim == 3 else self.images(x)


class Inputs:
    """Random choices among a number of inputs and settings."""

    def __init__(self, sizes: int) -> None:
        self.sizes, self.chance = sizes, random.Random(0)

    def choose(self, model: nn.Module, number: int | None = None) -> torch.Tensor:
        """Set algorithms and widths of masks, and return an input: that of a number, or any."""
        case = random.Random(self.chance.randrange(self.sizes) if number is None else number)
        for layer in model.modules():
            if isinstance(layer, flexconv.nn.FlexConvNd):
                layer.algorithm = case.choice(["auto", "direct", "fft", "dft"])
                assert layer.mask is not None
                # the center as well, which training moves: other sizes would follow
                layer.mask.set_(mean=layer.mask.initial_mean, sigma=case.uniform(0.05, 0.6))
        batch = case.randrange(1, 5)
        if case.random() < 0.5:
            return torch.randn(batch, 1, case.randrange(20, 300))
        return torch.randn(batch, 1, case.randrange(5, 24), case.randrange(5, 24))


def train(model: nn.Module, steps: int, inputs: Inputs, *, in_order: bool = False) -> None:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    for step in range(steps):
        x = inputs.choose(model, step if in_order else None)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def evaluate(model: nn.Module, steps: int, inputs: Inputs, *, in_order: bool = False) -> None:
    model.eval()
    with torch.no_grad():
        for step in range(steps):
            x = inputs.choose(model, step if in_order else None)
            if step % 7 == 0:
                refresh_extents(model)
            if in_order or step % 29 == 0:
                at_resolution(model, 1.5, copy=False)(x)
            if in_order or step % 29:
                model(x)


def in_tensors() -> float:
    """MiB of all tensors that Python can reach."""
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()) / 2**20


def measure(steps: int, sizes: int) -> dict[str, Any]:
    """Memory in MiB before and after each tenth of the steps, and that of tensors at the end."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs, model = Inputs(sizes), Network()
    for _ in range(ROUNDS):
        train(model.train(), sizes, inputs, in_order=True)
        evaluate(model, sizes, inputs, in_order=True)
    model.train()
    result: dict[str, Any] = {"tensors": [round(in_tensors(), 1)]}
    for name, work in (("training", train), ("evaluation", evaluate)):
        memory = [resident()]
        for _ in range(PARTS):
            work(model, steps // PARTS, inputs)
            memory.append(resident())
        result[name] = [round(size, 1) for size in memory]
        result["tensors"].append(round(in_tensors(), 1))
    return result


def main(steps: int, sizes: int, log: Path | None = None) -> None:
    began, capacity = time.monotonic(), os.environ.get(CAPACITY)
    setting = "" if capacity is None else f"{CAPACITY}={capacity} "
    summary = {
        "what": "resident memory in MiB before and after each tenth of the steps, with inputs, kernels and algorithms "
        "of changing sizes, all of which were used before; and that of all tensors before, between and after the two",
        "command": f"{setting}python -m tests.fuzz.memory {steps} {sizes}",
        "primitives kept by oneDNN": int(capacity or 1024),
        "sizes": sizes,
        "steps": {"training": steps, "evaluation": steps},
        **measure(steps, sizes),
        "seconds": round(time.monotonic() - began),
        "flexconv": flexconv.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    text = json.dumps(summary, indent=2) + "\n"
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
