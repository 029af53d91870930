"""Milliseconds of depthwise convolutions, forward and backward, by every algorithm and by plain torch.

    python -m benchmarks.depthwise [--device cpu] [--precision fp32]

On a GPU in bf16, as replayed CUDA graphs, less than two minutes. `floor` is the time of three copies of the input:
a forward pass reads x and writes y, and a backward pass reads x and the gradient of y and writes that of x. `torch.fft`
is the usual three lines in float32. `torch` is its own convolution, which is left out where it takes too long. Errors
are those of y in the selected algorithm and in "monarch", relative to float64, of the first channels and samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from flexconv import ops
from flexconv.bench import measure
from flexconv.bench.ceilings import DTYPES
from flexconv.bench.timing import all_in_training

ALGORITHMS = ("monarch", "toeplitz", "dft", "fft")
MAX_TAPS = 1100  # of torch's own convolution, which takes seconds for more
SOME = 3  # samples and channels whose error is measured


class Case(NamedTuple):
    """A depthwise convolution: causal in 1D, centered in 2D."""

    batch: int
    channels: int
    size: tuple[int, ...]
    taps: int

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """The padding on both sides of each axis."""
        if len(self.size) == 1:
            return ((self.taps - 1, 0),)
        return ((self.taps // 2, self.taps // 2),) * len(self.size)


CASES = [
    Case(64, 768, (1024,), 1024),
    Case(64, 768, (1024,), 83),
    Case(64, 768, (4096,), 4096),
    Case(64, 768, (4096,), 512),
    Case(16, 768, (16384,), 16384),
    Case(16, 768, (16384,), 1024),
    Case(64, 140, (1024,), 1024),
    Case(64, 96, (32, 32), 33),
    Case(64, 96, (32, 32), 7),
    Case(64, 384, (56, 56), 13),
    Case(64, 384, (56, 56), 31),
    Case(64, 384, (14, 14), 13),
]
CPU_CASES = [Case(4, 48, (1024,), 83), Case(4, 48, (1024,), 1024), Case(4, 48, (32, 32), 7), Case(4, 48, (32, 32), 33)]


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--precision", default="bf16", choices=tuple(DTYPES))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    names = ("floor", "auto", *ALGORITHMS, "torch.fft", "torch")
    print(f"{'batch × channels × size, taps':32} " + " ".join(f"{name:>9}" for name in names) + "   auto is   errors")
    for case in CPU_CASES if device.type == "cpu" else CASES:
        x, w = tensors(case, device, DTYPES[arguments.precision if device.type == "cuda" else "fp32"])
        times, selected = time_case(case, x, w, device)
        shape = f"{case.batch} × {case.channels} × {' × '.join(map(str, case.size))}, {case.taps}"
        cells = " ".join(f"{times[name]:9.3f}" if name in times else f"{'–':>9}" for name in names)
        errors = " ".join(f"{error(case, x, w, name):.1e}" for name in ("auto", "monarch"))
        print(f"{shape:32} {cells}   {selected:9} {errors}", flush=True)


def tensors(case: Case, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs, and kernels for outputs of about unit variance."""
    x = torch.randn(case.batch, case.channels, *case.size, device=device)
    w = torch.randn(case.channels, 1, *(case.taps,) * len(case.size), device=device)
    w = w / w[0].numel() ** 0.5
    return x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()


def time_case(case: Case, x: torch.Tensor, w: torch.Tensor, device: torch.device) -> tuple[dict[str, float], str]:
    """Milliseconds by name, and the algorithm that "auto" selects."""
    grad = torch.randn_like(convolve(case, x, w, "auto"))
    calls: dict[str, Callable[[], object]] = {"floor": lambda: [x.detach().clone() for _ in range(3)]}
    for name in ("auto", *ALGORITHMS):
        if name == "auto" or device.type == "cuda" or name == "fft":
            calls[name] = partial(_train, partial(convolve, case, x, w, name), (x, w), grad)
    calls["torch.fft"] = partial(_train, partial(_three_lines, case, x, w), (x, w), grad)
    if w[0].numel() <= MAX_TAPS:
        calls["torch"] = partial(_train, partial(_by_torch, case, x, w), (x, w), grad)
    with ops.launches_are_free():
        found = measure(all_in_training(calls, device), device, seconds=0.05)
    times = {name: timing.ms for name, timing in found.items()}
    algorithms = [name for name in ALGORITHMS if name in times]
    selected = min(algorithms, key=lambda name: abs(times[name] - times["auto"]), default="direct")
    return times, selected if device.type == "cuda" else "direct, fft"


def convolve(case: Case, x: torch.Tensor, w: torch.Tensor, algorithm: str) -> torch.Tensor:
    """The convolution by an algorithm of flexconv."""
    conv = {1: ops.conv1d, 2: ops.conv2d}[len(case.size)]
    return conv(x, w, padding=case.pads, groups=case.channels, algorithm=algorithm)


def error(case: Case, x: torch.Tensor, w: torch.Tensor, algorithm: str) -> float:
    """The error of an algorithm for some samples and channels, relative to the FFT in float64."""
    with torch.no_grad(), ops.launches_are_free():
        y = convolve(case, x, w, algorithm)[:SOME, :SOME].double()
        expected = convolve(case._replace(channels=SOME), x[:SOME, :SOME].double(), w[:SOME].double(), "fft")
        return float((y - expected).norm() / expected.norm())


def _train(forward: Callable[[], torch.Tensor], inputs: tuple[torch.Tensor, ...], grad: torch.Tensor) -> object:
    return torch.autograd.grad(forward(), inputs, grad)


def _three_lines(case: Case, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What one would write with torch.fft: pad both to the sum of their sizes, multiply, and crop."""
    axes = tuple(range(-len(case.size), 0))
    lengths = [n + case.taps for n in case.size]
    spectrum = torch.fft.rfftn(x.float(), lengths, axes) * torch.fft.rfftn(w.float().squeeze(1), lengths, axes).conj()
    y = torch.fft.irfftn(spectrum, lengths, axes).roll([left for left, _ in case.pads], axes)
    return y[(..., *(slice(n) for n in case.size))].to(x.dtype)


def _by_torch(case: Case, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    conv = {1: F.conv1d, 2: F.conv2d}[len(case.size)]
    return conv(F.pad(x, [a for pair in reversed(case.pads) for a in pair]), w, groups=case.channels)


if __name__ == "__main__":
    main()
