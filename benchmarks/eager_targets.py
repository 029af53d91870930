"""Eager code on a GPU next to its targets: inference with one image, and training steps in a plain loop.

    python -m benchmarks.eager_targets                                  every row, one to two minutes
    python -m benchmarks.eager_targets --kinds scaled                   about a minute
    python -m benchmarks.eager_targets cnn --breakdown                  some rows, and where the time of a step goes

Every row compares a network with FlexConvs with the same network with plain convolutions, which take turns, so that
other work on the machine slows down both. "inference" is FlexNet-7 with one image, next to the materialized network.
"cnn" is one FlexConv of 64 channels in a small stock network and "flexnet7" is FlexNet-7, both in training steps as in
`benchmarks.eager_loop`, bf16 and batch size 64, next to convolutions of 5 taps. The last column says whether the ratio
and, for FlexNet-7, the time meet their targets.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import itertools
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flexconv._fast import sizes

from .eager_loop import NETWORKS, make_step, open_masks
from .inference import networks

RATIOS = {"inference": 1.3, "cnn": 1.6, "flexnet7": 3.0}
MILLISECONDS = {"flexnet7": 25.0}
KINDS = ("scaled", "paper")
ROUNDS = 5


def in_turns(calls: list[Callable[[], object]], number: int, rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of each call, median of several rounds in which the calls take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(8):  # sizes, algorithms and compiled kernels of the first steps
            call()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for call, found in zip(calls, times, strict=True):
            began = time.perf_counter()
            for _ in range(number):
                call()
            torch.cuda.synchronize()
            found.append(1e3 * (time.perf_counter() - began) / number)
    return [statistics.median(each) for each in times]


def report(part: str, case: str, own: float, plain: float) -> None:
    ratio, limit = own / plain, MILLISECONDS.get(part)
    met = ratio <= RATIOS[part] and (limit is None or own <= limit)
    target = f"{RATIOS[part]:.1f} x" + ("" if limit is None else f", {limit:.0f} ms")
    text = f"{part:10} {case:15} {own:7.2f} ms   plain {plain:6.2f} ms   {ratio:5.2f} x   target {target:12}"
    print(f"{text} {'met' if met else 'missed'}", flush=True)


def inference(steps: int) -> None:
    x = torch.randn(1, 3, 32, 32, device="cuda")
    for full in (False, True):
        nets = networks("cuda", full=full, exported=False)
        with torch.inference_mode():
            own, plain = in_turns([lambda net=net: net(x) for net in nets.values()], 2 * steps, 6 * ROUNDS)
        report("inference", "full" if full else "initial", own, plain)


def training(part: str, steps: int, kinds: Sequence[str], *, breakdown: bool) -> None:
    make, shape = NETWORKS[part]
    plain_step = make_step(make("plain"), shape, "cuda", half=True)
    if breakdown:
        print_breakdown(f"{part} plain", plain_step)
    for kind, full in itertools.product(kinds, (False, True)):
        torch.manual_seed(0)
        net = make(kind)
        if full:
            open_masks(net)
        step = make_step(net, shape, "cuda", half=True)
        own, plain = in_turns([step, plain_step], steps)
        report(part, f"{kind} {'full' if full else 'initial'}", own, plain)
        if breakdown:
            print_breakdown(f"{part} {kind} {'full' if full else 'initial'}", step)


# --- where the time goes ----------------------------------------------------------------------------------------------


class Stopwatch:
    """Adds up the time that calls of some functions take."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._restore: list[tuple[Any, str, Any]] = []

    def watch(self, owner: Any, name: str, title: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                found = self.milliseconds.get(title, 0.0)
                self.milliseconds[title] = found + 1e3 * (time.perf_counter() - began)

        self._restore.append((owner, name, function))
        setattr(owner, name, timed)

    def stop(self) -> None:
        for owner, name, function in self._restore:
            setattr(owner, name, function)


def print_breakdown(title: str, step: Callable[[], object], steps: int = 20) -> None:
    """Time per step of the phases on the host, of the device, and of Python's functions."""
    from torch.profiler import ProfilerActivity, profile

    watch = Stopwatch()
    watch.watch(torch.Tensor, "backward", "backward")
    watch.watch(torch.optim.Adam, "step", "optimizer")
    watch.watch(sizes.Copy, "_start", "starting copies of sizes")
    watch.watch(sizes.Copy, "_finish", "waiting for sizes")
    began = time.perf_counter()
    for _ in range(steps):
        step()
    host = 1e3 * (time.perf_counter() - began)
    torch.cuda.synchronize()
    waited = 1e3 * (time.perf_counter() - began) - host
    watch.stop()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    events = found.key_averages()
    busy = sum(event.self_device_time_total for event in events) / 1e3
    parts = {"host": host, **watch.milliseconds, "device behind the host at the end": waited}
    text = ", ".join(f"{name} {each / steps:.3f}" for name, each in parts.items())
    print(f"    {title}, ms per step: {text}, device busy {busy:.2f}")
    functions = cProfile.Profile()
    functions.enable()
    for _ in range(steps):
        step()
    functions.disable()
    torch.cuda.synchronize()
    out = io.StringIO()
    pstats.Stats(functions, stream=out).strip_dirs().sort_stats("tottime").print_stats(22)
    lines = [line for line in out.getvalue().splitlines()[6:] if line.strip()]
    print(f"    functions of Python in {steps} steps:", *lines, sep="\n      ")
    kernels = sorted(events, key=lambda event: -event.self_device_time_total)[:8]
    print("    on the device:")
    for event in kernels:
        print(f"      {event.self_device_time_total / 1e3:7.3f} ms {event.count:4} x {event.key[:90]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *RATIOS], help="by default, all")
    parser.add_argument("--steps", type=int, default=10, help="per round")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="parametrizations of trained networks")
    parser.add_argument("--breakdown", action="store_true", help="print where the time of training steps goes")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for part in arguments.parts or RATIOS:
        if part == "inference":
            inference(arguments.steps)
        else:
            training(part, arguments.steps, arguments.kinds, breakdown=arguments.breakdown)


if __name__ == "__main__":
    main()
