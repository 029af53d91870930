"""Compare the DFT as a matrix product with cuDNN and cuFFT: forward and backward of one convolution, as Markdown.

    python -m benchmarks.dft [cpu|cuda] [--smoke] [--json FILE]

`graph` is the time in milliseconds inside a replayed CUDA graph, `eager` the time without one. `floor` is the least
time that the same operations can take, by the arithmetic throughput and memory bandwidth of the GPU, which are measured
first. `share` is floor / graph. The errors of output, input gradient and kernel gradient are relative to float64 in the
Euclidean norm; in half precision they include the rounding of the inputs. This takes about two minutes on an H200.
`--smoke` runs tiny shapes on any machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from flexconv.bench import Ceilings, measure, measure_ceilings
from flexconv.bench.ceilings import DTYPES
from flexconv.bench.report import machine
from flexconv.bench.timing import as_in_training
from flexconv.ops._dft import dft_conv
from flexconv.ops._fft import fft_conv
from flexconv.ops._geometry import Geometry, resolve_padding

Tensors = tuple[torch.Tensor, ...]


class Case(NamedTuple):
    """A convolution with equally many input and output channels: centered for images, causal for sequences."""

    batch: int
    channels: int
    size: tuple[int, ...]
    taps: int

    @property
    def geometry(self) -> Geometry:
        ones = (1,) * len(self.size)
        padding = "causal" if len(self.size) == 1 else "same"
        return Geometry(ones, resolve_padding(padding, (self.taps,) * len(self.size), ones), ones, 1)

    def tensors(self, device: torch.device) -> Tensors:
        """Return input, kernel and cotangent with outputs of about unit variance."""
        many, taps = self.channels, (self.taps,) * len(self.size)
        x = torch.randn(self.batch, many, *self.size, device=device)
        weight = torch.randn(many, many, *taps, device=device)
        return x, weight / weight[0].numel() ** 0.5, torch.randn_like(x)


IMAGES = [Case(batch, channels, (32, 32), k) for batch in (64, 512) for channels in (24, 36, 48) for k in (5, 17, 33)]
SEQUENCES = [Case(64, 30, (1024,), 1024), Case(64, 60, (1024,), 1024), Case(32, 30, (16000,), 16000)]
SMOKE = [Case(2, 3, (6, 6), 5), Case(2, 3, (40,), 40)]


class Method(NamedTuple):
    """A way to compute the convolution."""

    name: str
    call: Callable[[torch.Tensor, torch.Tensor, Geometry], torch.Tensor]
    precision: str
    channels_last: bool = False


def methods(case: Case) -> Iterator[Method]:
    """Yield what to compare: cuDNN unless it is far too slow, the FFT, and the DFT by dtype and kind of transform."""
    images = len(case.size) == 2
    if images and (case.taps < 33 or case.batch < 512 or case.channels == 48):
        yield Method("cuDNN bf16", _direct, "bf16", channels_last=True)
    yield Method("fft", lambda x, w, g: fft_conv(x, w, None, g), "fp32")
    kinds = ("single", "separable") if images else ("two-level",) if case.size[0] > 4096 else ("single", "two-level")
    for precision in DTYPES:
        for kind in kinds:
            yield Method(f"dft {precision} {kind}", partial(_dft, kind=kind), precision)


def _direct(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    return F.conv2d(x, weight, padding=[left for left, _ in geometry.pads])


def _dft(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry, *, kind: str) -> torch.Tensor:
    return dft_conv(x, weight, None, geometry, kind=kind)


def run_case(case: Case, device: torch.device, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Measure one row per method."""
    tensors = case.tensors(device)
    truth = _step(lambda x, w, g: fft_conv(x, w, None, g), case.geometry, tuple(each.double() for each in tensors))
    rows = []
    for method in methods(case):
        row: dict[str, Any] = {"case": case._asdict(), "method": method.name}
        try:
            given = tuple(each.to(DTYPES[method.precision]) for each in tensors)
            if method.channels_last:
                given = tuple(each.to(memory_format=torch.channels_last) for each in given)
            step = partial(_step, method.call, case.geometry, given)
            row["errors"] = [_error(*pair) for pair in zip(step(), truth, strict=True)]
            times = measure({"eager": step, "graph": as_in_training(step, device)}, device, seconds=0.1)
            row |= {name: time.ms for name, time in times.items()}
            row["floor"] = ceilings.floor(step, method.precision)
        except (RuntimeError, torch.OutOfMemoryError) as failure:
            row["failure"] = str(failure).splitlines()[0][:120]
        rows.append(row)
    return rows


def _step(call: Callable[..., torch.Tensor], geometry: Geometry, tensors: Tensors) -> Tensors:
    """Return the output and both gradients."""
    x, weight, cotangent = tensors
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = call(x, weight, geometry)
    return y.detach(), *torch.autograd.grad(y, (x, weight), cotangent)


def _error(result: torch.Tensor, truth: torch.Tensor) -> float:
    return ((result.double() - truth).norm() / truth.norm()).item()


def show(case: Case, rows: list[dict[str, Any]]) -> None:
    """Print one line per method."""
    size = "×".join(map(str, case.size))
    for row in rows:
        head = f"| {case.batch} | {case.channels} | {size} | {case.taps} | {row['method']} |"
        if "failure" in row:
            print(head, row["failure"], "|", flush=True)
            continue
        graph, floor = row["graph"], row["floor"]
        errors = " / ".join(f"{each:.1e}" for each in row["errors"])
        print(f"{head} {graph:.3f} | {row['eager']:.3f} | {floor:.3f} | {floor / graph:.0%} | {errors} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure speed and errors of the DFT as a matrix product.")
    parser.add_argument("device", nargs="?", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--smoke", action="store_true", help="run tiny shapes, to test that everything works")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if arguments.smoke:
        torch.set_num_threads(1)
    begin = time.perf_counter()
    ceilings = measure_ceilings(device, small=arguments.smoke)
    print(machine(device), "; ".join(f"{name} {value / 1e12:.3g} T/s" for name, value in ceilings.products.items()))
    print("\n| batch | channels | size | taps | method | graph | eager | floor | share | errors y / dx / dw |")
    print("|" + "---|" * 10)
    rows = []
    for case in SMOKE if arguments.smoke else [*IMAGES, *SEQUENCES]:
        rows += run_case(case, device, ceilings)
        show(case, [row for row in rows if row["case"] == case._asdict()])
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    if arguments.json:
        content = {"machine": machine(device), "ceilings": ceilings._asdict(), "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
