"""Training steps of networks with FlexConvs in a plain loop, without `flexconv.train`, compilation or CUDA graphs.

    python -m benchmarks.eager_loop [PART ...] [--profile FILE]        milliseconds per step and launches, on a GPU
    python -m benchmarks.eager_loop --count                            operations of one layer and step, on any device

A step is a forward pass, `F.cross_entropy`, a backward pass and `Adam(fused=True)`, batch size 64. Each network is
compared with the same network with plain convolutions of 5 taps. "without" are times without the fused sampler and
without asynchronous copies of sizes. The numbers for "full" are with masks that keep the whole grid. Without a GPU,
`--count` needs Triton for its interpreter, and counts one operation for each launch of a fused kernel. Views are
counted separately. Set FLEXCONV_DIRECT_LAUNCHES=0 to measure without direct launches.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from flexconv import FlexConv1d, FlexConv2d, create_model
from flexconv import _registry as registry
from flexconv._fast import fused_sampler
from flexconv.nn import FlexConvNd

BATCH, TAPS = 64, 5
VIEWS = (
    "alias", "detach", "expand", "lift_fresh", "permute", "select", "slice", "split", "squeeze", "t", "transpose",
    "unsqueeze", "view", "view_as_complex", "view_as_real", "_conj", "_unsafe_view",
)  # fmt: skip
LAUNCHES = "launch_features", "launch_features_backward", "launch_mask", "launch_mask_backward"


# --- networks ---------------------------------------------------------------------------------------------------------


class CausalConv1d(nn.Conv1d):
    """A plain convolution that sees the past only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(F.pad(x, (TAPS - 1, 0)))


def flexnet(kind: str) -> nn.Module:
    if kind == "plain":
        return create_model("flexnet7_conv3", in_channels=3, num_classes=10, kernel_size=TAPS)
    return create_model("flexnet7", in_channels=3, num_classes=10, image_size=32, parametrization=kind)


def flextcn(kind: str) -> nn.Module:
    parametrization = "paper" if kind == "plain" else kind
    net = create_model("flextcn6", in_channels=1, num_classes=10, length=1024, parametrization=parametrization)
    if kind == "plain":
        for name, module in list(net.named_modules()):
            if isinstance(module, FlexConv1d):
                net.set_submodule(name, CausalConv1d(module.in_channels, module.out_channels, TAPS))
    return net


def small_cnn(kind: str) -> nn.Module:
    """A stock network with one convolution of 64 channels in question."""
    conv = nn.Conv2d(64, 64, TAPS, padding="same") if kind == "plain" else FlexConv2d(64, 64, 33, parametrization=kind)
    blocks: list[nn.Module] = []
    for inputs, outputs, middle in ((3, 64, conv), (64, 128, nn.Conv2d(128, 128, 3, padding=1))):
        blocks += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        blocks += [middle, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


NETWORKS: dict[str, tuple[Callable[[str], nn.Module], tuple[int, ...]]] = {
    "flexnet7": (flexnet, (3, 32, 32)),
    "flextcn6": (flextcn, (1, 1024)),
    "cnn": (small_cnn, (3, 32, 32)),
}


def open_masks(net: nn.Module) -> None:
    """Make all masks keep the whole grid."""
    for module in net.modules():
        if isinstance(module, FlexConvNd) and module.mask is not None:
            module.mask.set_(sigma=2.0)


# --- steps ------------------------------------------------------------------------------------------------------------


def make_step(net: nn.Module, shape: tuple[int, ...], device: str, *, half: bool) -> Callable[[], None]:
    net.to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(BATCH, *shape, device=device)
    labels = torch.randint(10, (BATCH,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()

    return step


@contextlib.contextmanager
def without_fused() -> Iterator[None]:
    """Use what runs where there is no Triton, and read sizes layer by layer."""
    removed = {name: registry._versions.pop(name) for name in ("nn.read_values", "nn.size_bounds")}
    supports, fused_sampler.supports_device = fused_sampler.supports_device, lambda _: False
    try:
        yield
    finally:
        registry._versions.update(removed)
        fused_sampler.supports_device = supports


def milliseconds(step: Callable[[], None], steps: int) -> float:
    """Median over steps, of the time until the device has finished."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):  # without a wait in between, as in a loop that reads nothing
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(times)


def launches(step: Callable[[], None]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return sum("LaunchKernel" in event.name for event in found.events() or ())


def measure(parts: list[str], steps: int, *, quick: bool = False) -> None:
    for name, (make, shape) in NETWORKS.items():
        if parts and name not in parts:
            continue
        for half in (True,) if quick else (True, False):
            title = f"{name} {'bf16' if half else 'fp32'}"
            step = make_step(make("plain"), shape, "cuda", half=half)
            plain = milliseconds(step, steps)
            print(f"{title:15} plain {TAPS} taps      {plain:7.2f} ms {launches(step):6} launches", flush=True)
            for kind in ("paper", "scaled"):
                for full in (False, True):
                    torch.manual_seed(0)
                    net = make(kind)
                    if full:
                        open_masks(net)
                    step = make_step(net, shape, "cuda", half=half)
                    fused, number = milliseconds(step, steps), launches(step)
                    text = f"{title:15} {kind:6} {'full' if full else 'initial':8} {fused:7.2f} ms {number:6} launches"
                    text += f"   {fused / plain:5.2f} x plain"
                    if not quick and (half or not full):
                        with without_fused():
                            text += f"   without {milliseconds(step, max(3, steps // 5)):7.2f} ms {launches(step):6}"
                    print(text, flush=True)


def write_profile(path: Path) -> None:
    """The host operations of FlexNet-7 that take the longest, and then the time of Python's functions."""
    import cProfile
    import io
    import pstats

    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    step = make_step(flexnet("paper"), (3, 32, 32), "cuda", half=True)
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    table = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60)
    functions = cProfile.Profile()
    functions.enable()
    for _ in range(20):
        step()
    functions.disable()
    text = io.StringIO()
    pstats.Stats(functions, stream=text).sort_stats("tottime").print_stats(60)
    path.write_text(f"5 steps\n{table}\n\n20 steps\n{text.getvalue()}")


# --- operations -------------------------------------------------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def count(verbose: bool) -> None:
    """Print the number of operations of one layer in a forward and a backward pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    counted: collections.Counter[str] = collections.Counter()

    def once(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            with _disable_current_modes():
                return function(*args, **kwargs)

        return launch

    for name in LAUNCHES:
        setattr(fused_sampler, name, once(name, getattr(fused_sampler, name)))
    product: Any = registry.plain_version if device == "cpu" else registry.fast_version
    registry._versions["ops.complex_product"] = once("complex_product", product("ops.complex_product"))
    fused_sampler.supports_device = lambda _: True
    for kind in ("plain", "paper", "scaled"):
        for algorithm in ("direct", "fft", "dft") if kind != "plain" else ("direct",):
            for fused in (True, False) if kind != "plain" else (False,):
                torch.manual_seed(0)
                layer = (
                    nn.Conv2d(8, 8, TAPS, padding=TAPS // 2)
                    if kind == "plain"
                    else FlexConv2d(8, 8, 33, parametrization=kind, algorithm=algorithm)
                ).to(device)
                x = torch.randn(2, 8, 32, 32, device=device, requires_grad=True)
                optimizer = torch.optim.SGD(layer.parameters(), 1e-8)  # sizes are read, but stay
                with contextlib.nullcontext() if fused else without_fused():
                    for _ in range(2):
                        optimizer.zero_grad()
                        with torch.autocast(device, torch.bfloat16):
                            layer(x).sum().backward()
                        optimizer.step()
                    optimizer.zero_grad()
                    counted.clear()
                    with torch.autocast(device, torch.bfloat16), Operations() as forward:
                        y = layer(x)
                    forward.counts += counted
                    counted.clear()
                    gradient = torch.ones_like(y)
                    with Operations() as backward:
                        y.backward(gradient)
                    backward.counts += counted
                how = "fused" if fused else "plain"
                numbers = [
                    f"{name} {sum(n for each, n in counts.items() if each not in VIEWS):4} operations and "
                    f"{sum(counts[each] for each in VIEWS):4} views"
                    for name, counts in (("forward", forward.counts), ("backward", backward.counts))
                ]
                print(f"{kind:6} {algorithm:6} {how}: {', '.join(numbers)}")
                if verbose:
                    print(f"    {dict(forward.counts)}\n    {dict(backward.counts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *NETWORKS], help="networks; by default, all")
    parser.add_argument("--steps", type=int, default=15, help="steps per measurement, of which there are three")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write host operations of FlexNet-7 to this file")
    parser.add_argument("--quick", action="store_true", help="bf16 only, and not without the fused sampler")
    parser.add_argument("--count", action="store_true", help="count operations of one layer instead")
    parser.add_argument("--verbose", action="store_true", help="with --count: list the operations")
    arguments = parser.parse_args()
    if arguments.count:
        count(arguments.verbose)
        return
    measure(arguments.parts, arguments.steps, quick=arguments.quick)
    if arguments.profile:
        write_profile(arguments.profile)


if __name__ == "__main__":
    main()
