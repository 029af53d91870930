"""Time on the host of FlexConvs in eager code, without a GPU: one layer in a training step, a network in evaluation.

    python -m benchmarks.host_overhead [--profile CASE]
    python -m benchmarks.host_overhead --evaluation

In a training step, the layer takes the path that it takes on a GPU, with inputs so small that arithmetic hardly counts.
Launches of Triton kernels do nothing, so their own time is missing. The numbers are microseconds of the forward and of
the backward pass, and calls of Python functions, of one layer; "plain" is `nn.Conv2d`. "dft" and "fft" are with masks
that keep the whole grid. Needs Triton, of which only the import is used.

With --evaluation, FlexNet-7 with few channels takes turns with its materialized network, without gradients and with
one image of 4 × 4 pixels. The numbers are microseconds of one forward pass on one core, the fastest tenth of many, and
calls of Python functions. "as on a GPU" is without what only a CPU needs: comparing the values of parameters, and
avoiding faults of oneDNN.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

from torch import nn

from flexconv import FlexConv2d, create_model, materialize
from flexconv._fast import evaluation, fused_sampler, launches, sizes
from flexconv.nn import _cache, _extent
from flexconv.ops import _direct

LAUNCHED = "features_forward", "features_backward", "mask_forward", "mask_backward", "mask_finish"
CHANNELS, IMAGE, GRID = 4, 16, 17


class NoLaunch:
    """Stands for a Triton kernel, and for the compiled kernel that a launch returns."""

    def __init__(self, kernel: Any) -> None:
        self.arg_names = kernel.arg_names
        self.function, self.packed_metadata = 0, ()

    def __getitem__(self, grid: object) -> Callable[..., NoLaunch]:
        return lambda *_, **__: self

    def run(self, *arguments: Any) -> None:
        pass


class HostCopy(sizes.Copy):
    """A copy of CPU tensors, which has arrived at once."""

    def _start(self, tensors: Any) -> None:
        self._host = torch.cat([t.detach().flatten() for t in tensors])

    def _finish(self) -> list[float]:
        return self._host.tolist()


def symmetric_padding(x: Any, weight: Any, pads: Any, geometry: Any) -> tuple[int, ...]:  # noqa: ARG001
    """`padding_by_torch` without what avoids faults of libraries on a CPU."""
    return tuple(map(min, pads))


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let layers on a CPU take the path of a GPU, without launches."""
    from flexconv._fast import fused_mask_triton, fused_sampler_triton

    modules = fused_sampler_triton, fused_mask_triton
    found = [(module, name, getattr(module, name)) for module in modules for name in LAUNCHED if hasattr(module, name)]
    supports_device, supports, copy = fused_sampler.supports_device, sizes.copies.supports, sizes.copies.copy
    for module, name, kernel in found:
        setattr(module, name, NoLaunch(kernel))
    fused_sampler.supports_device = lambda _: True
    device, stream = launches._current_device, launches._current_stream
    launches._current_device, launches._current_stream = (lambda: -1), (lambda _: 0)
    sizes.copies.supports = lambda _: True  # type: ignore[method-assign]
    sizes.copies.copy = HostCopy
    remember, _extent._remember = _extent._remember, _extent.Versions  # values on a GPU are not compared
    padding, _direct.padding_by_torch = _direct.padding_by_torch, symmetric_padding
    try:
        yield
    finally:
        for module, name, kernel in found:
            setattr(module, name, kernel)
        fused_sampler.supports_device = supports_device
        _extent._remember, _direct.padding_by_torch = remember, padding
        launches._current_device, launches._current_stream = device, stream
        sizes.copies.supports, sizes.copies.copy = supports, copy  # type: ignore[method-assign]


@contextlib.contextmanager
def evaluation_as_on_a_gpu() -> Iterator[None]:
    """The same for layers in evaluation with direct convolutions. Changes through `.data` are not noticed."""
    make_way, values_of = evaluation._make_way, _cache._Seen

    def way_on_a_gpu(layer: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        way = make_way(layer, x.to("meta"), weight.to("meta"))
        return way and way._replace(weight=weight)

    def versions_only(tensors: Any) -> Any:
        seen = values_of(tensors)
        seen.values = [None] * len(tensors)  # type: ignore[assignment]
        return seen

    evaluation._make_way, _cache._Seen = way_on_a_gpu, versions_only  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        evaluation._make_way, _cache._Seen = make_way, values_of  # type: ignore[misc]


class Case:
    """One layer, its input and its optimizer."""

    def __init__(self, kind: str, algorithm: str, *, half: bool) -> None:
        torch.manual_seed(0)
        if kind == "plain":
            self.layer: nn.Module = nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2)
        else:
            self.layer = FlexConv2d(CHANNELS, CHANNELS, GRID, parametrization=kind, algorithm=algorithm)
            if algorithm != "direct":
                self.layer.mask.set_(sigma=2.0)  # type: ignore[union-attr]  # the whole grid
        self.x = torch.randn(2, CHANNELS, IMAGE, IMAGE, requires_grad=True)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), 1e-9)  # sizes are read, but stay
        self.half = half
        self.gradient = torch.ones_like(self.forward())

    def forward(self) -> torch.Tensor:
        if not self.half:
            return self.layer(self.x)
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(self.x)

    def update(self) -> None:
        for parameter in self.layer.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)  # launches that do nothing leave garbage
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.x.grad = None


def microseconds(case: Case, steps: int) -> tuple[float, float]:
    forward, backward = [], []
    for _ in range(steps):
        start = time.perf_counter()
        y = case.forward()
        middle = time.perf_counter()
        y.backward(case.gradient)
        end = time.perf_counter()
        forward.append(1e6 * (middle - start))
        backward.append(1e6 * (end - middle))
        case.update()
    return statistics.median(forward), statistics.median(backward)


def calls(function: Callable[[], Any]) -> tuple[int, Any]:
    """The number of Python functions that are called, and the result."""
    number = 0

    def count(frame: Any, event: str, argument: Any) -> None:  # noqa: ARG001
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return number, result


def small_networks() -> dict[str, nn.Module]:
    """FlexNet-7 with few channels, and its materialized network."""
    torch.manual_seed(0)
    widths = (4, 4, 6, 6, 6, 8, 8)
    net = create_model("flexnet7", in_channels=3, num_classes=10, image_size=8, widths=widths, algorithm="direct")
    return {"FlexNet-7": net.eval(), "materialized": materialize(net)}


@torch.inference_mode()
def measure_evaluation(title: str, nets: dict[str, nn.Module], rounds: int) -> None:
    x = torch.randn(1, 3, 4, 4)
    times: dict[str, list[float]] = {name: [] for name in nets}
    for _ in range(rounds):
        for name, net in nets.items():
            net(x)
            began = time.thread_time()
            for _ in range(4):
                net(x)
            times[name].append(1e6 * (time.thread_time() - began) / 4)
    fastest = {name: statistics.quantiles(each, n=10)[0] for name, each in times.items()}
    for name, net in nets.items():
        number, _ = calls(lambda net=net: net(x))
        ratio = fastest[name] / fastest["materialized"]
        print(f"{title:12} {name:12} {fastest[name]:6.0f} us {number:5} calls   ratio {ratio:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--profile", metavar="CASE", help='such as "scaled direct": print the functions of this case')
    parser.add_argument("--evaluation", action="store_true", help="measure a network in evaluation instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.evaluation:
        with evaluation_as_on_a_gpu():
            measure_evaluation("as on a GPU", small_networks(), arguments.steps)
        measure_evaluation("on a CPU", small_networks(), arguments.steps)
        return
    with as_on_a_gpu():
        for half in (True, False):
            for kind in ("plain", "scaled", "paper"):
                for algorithm in ("direct", "dft", "fft") if kind != "plain" else ("direct",):
                    case = Case(kind, algorithm, half=half)
                    if arguments.profile is not None and arguments.profile != f"{kind} {algorithm}":
                        continue
                    microseconds(case, 50)
                    if arguments.profile is not None:
                        print_profile(case, arguments.steps)
                        continue
                    forward, backward = microseconds(case, arguments.steps)
                    forward_calls, y = calls(case.forward)
                    backward_calls, _ = calls(lambda y=y, case=case: y.backward(case.gradient))
                    print(
                        f"{'bf16' if half else 'fp32'} {kind:6} {algorithm:6}"
                        f"   forward {forward:6.0f} us {forward_calls:5} calls"
                        f"   backward {backward:6.0f} us {backward_calls:5} calls",
                        flush=True,
                    )


def print_profile(case: Case, steps: int) -> None:
    for direction in ("forward", "backward"):
        functions = cProfile.Profile()
        for _ in range(steps):
            if direction == "forward":
                functions.enable()
            y = case.forward()
            functions.disable()
            if direction == "backward":
                functions.enable()
            y.backward(case.gradient)
            functions.disable()
            case.update()
        print(f"{direction}, {steps} times")
        pstats.Stats(functions).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
