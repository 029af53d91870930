"""Fit the constants of `algorithm="auto"` on this machine and print them, with the worst choice they lead to.

    python -m benchmarks.calibrate [cpu|cuda]

Times direct and FFT convolution over a sweep of shapes and fits nanoseconds per unit of work (flexconv.ops._select).
Paste the printed lines there. Takes some minutes; run it on an otherwise idle machine.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.timing import machine, measure
from flexconv import ops
from flexconv.ops._geometry import Geometry, resolve_padding
from flexconv.ops._select import Rates, predict, work

LONGEST = 1e10  # multiplications of a direct convolution worth waiting for (a second or so on two cores)


class Shape(NamedTuple):
    """One convolution: dims, batch, channels, size, taps, groups."""

    dims: int
    batch: int
    channels: int
    size: int
    taps: int
    groups: int


def sweep(device: str) -> Iterator[Shape]:
    """Shapes from tiny to large, dense and depthwise, around where the algorithms cross."""
    scale = 8 if device == "cuda" else 1
    one = itertools.product((1, 8 * scale), (16, 48), (128, 784, 4096, 16000), (5, 17, 65, 196, 784, 4000))
    two = itertools.product((1, 16 * scale), (8, 24, 48), (16, 32, 96), (3, 5, 9, 17, 33, 65))
    three = itertools.product((2,), (8,), (16, 32), (3, 7, 15))
    for dims, cases in ((1, one), (2, two), (3, three)):
        for batch, channels, size, taps in cases:
            for groups in (1, channels):
                macs = batch * channels**2 / groups * (size * taps) ** dims
                if taps <= size + 1 and macs < LONGEST * (150 if device == "cuda" else 1):
                    yield Shape(dims, batch, channels, size, taps, groups)


def tensors(shape: Shape, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    """Random input and kernel of a shape, and its geometry."""
    x = torch.randn(shape.batch, shape.channels, *[shape.size] * shape.dims, device=device)
    weight = torch.randn(shape.channels, shape.channels // shape.groups, *[shape.taps] * shape.dims, device=device)
    ones = (1,) * shape.dims
    pads = resolve_padding("causal" if shape.dims == 1 else "same", weight.shape[2:], ones)
    return x, weight, Geometry(ones, pads, ones, shape.groups)


def fit(rows: list[tuple[Shape, dict[str, float]]], device: torch.device) -> Rates:
    """Least squares on relative errors, with no constant below zero."""

    def solve(columns: list[list[float]], times: list[float]) -> list[float]:
        a = np.array(columns) / np.array(times)[:, None]
        weights = np.ones(len(times))
        active = list(range(a.shape[1]))
        solution = np.zeros(a.shape[1])
        while active:
            best, *_ = np.linalg.lstsq(a[:, active] * weights[:, None], weights, rcond=None)
            if (best >= 0).all():
                solution[active] = best
                break
            active = [i for i, value in zip(active, best, strict=True) if value >= 0]
        return [float(value) for value in solution]

    counted = [(work(*tensors(shape, device)), times) for shape, times in rows]
    direct = solve([[1, *amount.direct] for amount, _ in counted], [1e6 * t["direct"] for _, t in counted])
    fft = solve([[1, *amount.fft] for amount, _ in counted], [1e6 * t["fft"] for _, t in counted])
    return Rates(tuple(direct), tuple(fft))


def main(device_name: str) -> None:
    """Measure, fit, print."""
    device = torch.device(device_name)
    print(machine(device), file=sys.stderr)
    for training in (False, True):
        rows: list[tuple[Shape, dict[str, float]]] = []
        for shape in sweep(device_name):
            x, weight, geometry = tensors(shape, device)
            x.requires_grad_(training)
            weight.requires_grad_(training)
            conv = getattr(ops, f"conv{shape.dims}d")

            def run(algorithm: str, x=x, weight=weight, geometry=geometry, conv=conv) -> None:
                y = conv(x, weight, padding=geometry.pads, groups=geometry.groups, algorithm=algorithm)
                if y.requires_grad:
                    y.backward(y.detach())

            times = {
                name: measure(lambda name=name: run(name), device, seconds=0.05).median for name in ("direct", "fft")
            }
            rows.append((shape, times))
            print(json.dumps({**shape._asdict(), "training": training, **times}), file=sys.stderr)
        rates = fit(rows, device)
        regrets = []
        for shape, times in rows:
            guess = predict(rates, work(*tensors(shape, device)))
            regrets.append((times[min(guess, key=lambda name: guess[name])] / min(times.values()), shape))
        regrets.sort(reverse=True)
        print(f'("{device.type}", {training}): {rates},')
        print(f"# chosen / best: median {regrets[len(regrets) // 2][0]:.2f}, worst:")
        for regret, shape in regrets[:6]:
            print(f"#   {regret:.2f}  {tuple(shape)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
