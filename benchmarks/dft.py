"""The transform as a matrix product against cuDNN and cuFFT: forward + backward of one convolution, as Markdown.

    python -m benchmarks.dft [cpu|cuda] [--smoke] [--json FILE]

`graph` is milliseconds inside a replayed CUDA graph, `eager` without one; `floor` the time the same products and copies
would take at the card's ceilings (measured first), each at the slower of its two; `share` is floor / graph. Errors are
relative, ‖·‖, against float64, of output, input gradient and kernel gradient; those of half precision contain the
rounding of the inputs. About two minutes on an H200; `--smoke` runs tiny shapes anywhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.timing import machine
from flexconv.ops._dft import dft_conv
from flexconv.ops._fft import fft_conv
from flexconv.ops._geometry import Geometry, resolve_padding

Tensors = tuple[torch.Tensor, ...]


class Case(NamedTuple):
    """A convolution with as many inputs as outputs: centred for images, causal for sequences."""

    batch: int
    channels: int
    size: tuple[int, ...]
    taps: int

    @property
    def geometry(self) -> Geometry:
        ones = (1,) * len(self.size)
        kind = "causal" if len(self.size) == 1 else "same"
        return Geometry(ones, resolve_padding(kind, (self.taps,) * len(self.size), ones), ones, 1)

    def tensors(self, device: torch.device) -> Tensors:
        """Input, kernel and cotangent of about unit size."""
        many, taps = self.channels, (self.taps,) * len(self.size)
        x = torch.randn(self.batch, many, *self.size, device=device)
        weight = torch.randn(many, many, *taps, device=device)
        return x, weight / weight[0].numel() ** 0.5, torch.randn_like(x)


IMAGES = [Case(batch, channels, (32, 32), k) for batch in (64, 512) for channels in (24, 36, 48) for k in (5, 17, 33)]
SEQUENCES = [Case(64, 30, (1024,), 1024), Case(64, 60, (1024,), 1024), Case(32, 30, (16000,), 16000)]
SMOKE = [Case(2, 3, (6, 6), 5), Case(2, 3, (40,), 40)]


class Method(NamedTuple):
    """A way to compute it; `products` names the ceiling that applies."""

    name: str
    call: Callable[[torch.Tensor, torch.Tensor, Geometry], torch.Tensor]
    dtype: torch.dtype
    products: str
    channels_last: bool = False


def methods(case: Case) -> Iterator[Method]:
    """What to compare: cuDNN where it is not hopeless, the FFT, the matrix products by dtype and style."""
    images = len(case.size) == 2
    if images and (case.taps < 33 or case.batch < 512 or case.channels == 48):
        yield Method("cuDNN bf16", _direct, torch.bfloat16, "bf16", channels_last=True)
    yield Method("fft", lambda x, w, g: fft_conv(x, w, None, g), torch.float32, "fp32")
    styles = ("whole", "axes", "coarse", "mixed") if images else ("long",) if case.size[0] > 4096 else ("whole", "long")
    for products, dtype in DTYPES.items():
        for style in styles:
            if style not in ("mixed", "coarse") or products == "bf16":
                yield Method(f"dft {products} {style}", partial(_dft, style=style), dtype, products)


DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _direct(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    return F.conv2d(x, weight, padding=[left for left, _ in geometry.pads])


def _dft(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry, *, style: str) -> torch.Tensor:
    return dft_conv(x, weight, None, geometry, style=style)


def run_case(case: Case, device: torch.device, ceilings: dict[str, float]) -> list[dict[str, Any]]:
    """One row per method."""
    tensors = case.tensors(device)
    truth = _step(lambda x, w, g: fft_conv(x, w, None, g), case.geometry, tuple(each.double() for each in tensors))
    rows = []
    for method in methods(case):
        row: dict[str, Any] = {"case": case._asdict(), "method": method.name}
        torch.set_float32_matmul_precision("high" if method.products == "tf32" else "highest")
        try:
            given = tuple(each.to(method.dtype) for each in tensors)
            if method.channels_last:
                given = tuple(each.to(memory_format=torch.channels_last) for each in given)
            step = partial(_step, method.call, case.geometry, given)
            row["errors"] = [_error(*pair) for pair in zip(step(), truth, strict=True)]
            row["eager"] = _milliseconds(step, device)
            if device.type == "cuda":
                row["graph"] = _milliseconds(_captured(step), device)
            if method.name.startswith("dft"):
                row["floor"] = _floor(step, ceilings, method.products)
        except (RuntimeError, torch.OutOfMemoryError) as failure:
            row["failure"] = str(failure).splitlines()[0][:120]
        rows.append(row)
    torch.set_float32_matmul_precision("highest")
    return rows


def _step(call: Callable[..., torch.Tensor], geometry: Geometry, tensors: Tensors) -> Tensors:
    """Output and both gradients."""
    x, weight, cotangent = tensors
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = call(x, weight, geometry)
    return y.detach(), *torch.autograd.grad(y, (x, weight), cotangent)


def _error(result: torch.Tensor, truth: torch.Tensor) -> float:
    return ((result.double() - truth).norm() / truth.norm()).item()


def _captured(step: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.kept = step()  # type: ignore[attr-defined]
    return graph.replay


def _milliseconds(step: Callable[[], object], device: torch.device) -> float:
    """Median of up to 7 stretches of about 10 ms each."""
    once = min(_stretch(step, device, 1) for _ in range(3))
    repeats = max(1, min(50, int(10 / max(once, 1e-3))))
    return statistics.median(_stretch(step, device, repeats) for _ in range(3 if once > 20 else 7))


def _stretch(step: Callable[[], object], device: torch.device, repeats: int) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1e3 * (time.perf_counter() - begin) / repeats


class _Floor(TorchDispatchMode):
    """Adds up, over all operations that move data, the larger of arithmetic / ceiling and bytes / ceiling."""

    def __init__(self, per_second: float, bytes_per_second: float) -> None:
        super().__init__()
        self.per_second, self.bytes_per_second, self.milliseconds = per_second, bytes_per_second, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        view = any(each.alias_info and not each.alias_info.is_write for each in schema.returns)
        if not view and schema.name != "aten::_unsafe_view" and "empty" not in schema.name:
            tensors = [each for each in tree_leaves((args, result)) if isinstance(each, torch.Tensor)]
            moved = sum(map(_bytes, tensors)) / self.bytes_per_second
            work = 2.0 * args[0].numel() * args[1].shape[2] / self.per_second if schema.name == "aten::bmm" else 0.0
            self.milliseconds += 1e3 * max(moved, work)
        return result


def _bytes(tensor: torch.Tensor) -> int:
    """Of what is there: an expanded matrix is read once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()


def _floor(step: Callable[[], object], ceilings: dict[str, float], products: str) -> float:
    with _Floor(ceilings[products], ceilings["bytes"]) as floor:
        step()
    return floor.milliseconds


def measure_ceilings(device: torch.device, smoke: bool) -> dict[str, float]:
    """Multiply-adds × 2 per second of a large product in each dtype, and bytes per second of a large copy."""
    n = 64 if smoke else 8192
    found = {}
    for name, dtype in DTYPES.items():
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        a = torch.randn(n, n, device=device, dtype=dtype)
        found[name] = 2 * n**3 / (1e-3 * _milliseconds(partial(torch.mm, a, a), device))
    torch.set_float32_matmul_precision("highest")
    source = torch.empty(n * n * (1 if smoke else 8), device=device)
    target = torch.empty_like(source)
    found["bytes"] = 2 * source.nbytes / (1e-3 * _milliseconds(partial(target.copy_, source), device))
    return found


def show(case: Case, rows: list[dict[str, Any]]) -> None:
    """One case, one line a method."""
    size = "×".join(map(str, case.size))
    for row in rows:
        head = f"| {case.batch} | {case.channels} | {size} | {case.taps} | {row['method']} |"
        if "failure" in row:
            print(head, row["failure"], "|", flush=True)
            continue
        graph, floor = row.get("graph", row["eager"]), row.get("floor")
        share = f"{floor:.3f} | {floor / graph:.0%}" if floor else "– | –"
        errors = " / ".join(f"{each:.1e}" for each in row["errors"])
        print(f"{head} {graph:.3f} | {row['eager']:.3f} | {share} | {errors} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed and errors of the DFT as a matrix product.")
    parser.add_argument("device", nargs="?", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, to see that everything runs")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if arguments.smoke:
        torch.set_num_threads(1)
    begin = time.perf_counter()
    ceilings = measure_ceilings(device, arguments.smoke)
    print(machine(device), "; ".join(f"{name} {value / 1e12:.3g} T/s" for name, value in ceilings.items()))
    print("\n| batch | channels | size | taps | method | graph | eager | floor | share | errors y / dx / dw |")
    print("|" + "---|" * 10)
    rows = []
    for case in SMOKE if arguments.smoke else [*IMAGES, *SEQUENCES]:
        rows += run_case(case, device, ceilings)
        show(case, [row for row in rows if row["case"] == case._asdict()])
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    if arguments.json:
        content = {"machine": machine(device), "ceilings": ceilings, "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
