"""FlexConvs in place of plain convolutions, in a small network and a training loop as a user would write them.

    python -m benchmarks.own_loop digits --grid 7
    python -m benchmarks.own_loop cifar10 --size 16 --grid 11 --norm --jobs 8

Prints the accuracy on held-out training images after 3 epochs and after the last one, mean and standard deviation over
seeds, for each kind of convolution and each optimizer. "scaled, 5 taps" and "scaled, 11 taps" start with other masks
than the default of 7 taps. The last table compares the scaled layers with the best plain convolution for each
optimizer. The test set is not read.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import FlexConv2d, GaussianMask, parameter_groups
from flexconv.data import load
from flexconv.errors import FlexConvError

Make = Callable[[int, int], nn.Module]

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW 1e-3": lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05),
    "Adam 1e-3": lambda net: torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=5e-4),
    "Adam 1e-2": lambda net: torch.optim.Adam(net.parameters(), lr=1e-2),
    "SGD 0.05": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
    "AdamW 1e-3, groups": lambda net: torch.optim.AdamW(parameter_groups(net, 1e-3, weight_decay=0.05)),
}


def convolutions(grid: int) -> dict[str, Make]:
    flex = functools.partial(FlexConv2d, kernel_size=grid)
    spacing = 2 / (grid - 1)

    def started(taps: float) -> Make:
        """A scaled layer whose mask starts with this σ in tap spacings."""
        mask = functools.partial(GaussianMask, 2, sigma=taps * spacing, form="scaled")
        return lambda inputs, outputs: flex(inputs, outputs, mask=mask(), parametrization="scaled")

    return {
        "plain 3": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 3, padding=1),
        "plain 5": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 5, padding=2),
        "plain 7": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 7, padding=3),
        "paper": functools.partial(flex, parametrization="paper"),
        "scaled": functools.partial(flex, parametrization="scaled"),
        "scaled, 5 taps": started(1.0),
        "scaled, 11 taps": started(2.4),
    }


def network(make: Make, channels: int, classes: int, *, norm: bool) -> nn.Sequential:
    """Three convolutions, two of them followed by pooling."""
    layers: list[nn.Module] = []
    for number, width in enumerate((16, 32, 64)):
        layers += [make(channels, width), *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number < 2 else []
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def accuracies(
    net: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[torch.Tensor, ...], *, epochs: int, seed: int
) -> list[float]:
    """Accuracy on the held-out images after each epoch."""
    x, y, held_out, labels = data
    order = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(epochs):
        net.train()
        for batch in torch.randperm(len(x), generator=order).to(x.device).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            predicted = torch.cat([net(part).argmax(1) for part in held_out.split(500)])
        found.append(100 * (predicted == labels).float().mean().item())
    return found


def standardized(name: str, *, size: int | None, train: int, held_out: int, device: str) -> tuple[torch.Tensor, ...]:
    """Training and held-out images of a data set, as x, y, x, y."""
    splits = load(name, validation=0.2)
    assert splits.validation is not None
    parts = []
    for split, count in ((splits.train, train), (splits.validation, held_out)):
        assert isinstance(split.inputs, torch.Tensor), f"{name} has no inputs in memory"
        x = split.inputs[:count].float()
        x = x if size is None else F.interpolate(x, size=size, mode="bilinear", antialias=True, align_corners=False)
        parts += [x.to(device), split.labels[:count].to(device)]
    mean, std = parts[0].mean((0, 2, 3), keepdim=True), parts[0].std((0, 2, 3), keepdim=True)
    return (parts[0] - mean) / std, parts[1], (parts[2] - mean) / std, parts[3]


class Run(NamedTuple):
    """One training: accuracy after 3 epochs and after the last one, and the sizes of the kernels at the end."""

    early: float
    late: float
    sizes: str


_data: tuple[torch.Tensor, ...] = ()


def _set_up(arguments: argparse.Namespace) -> None:
    """Load the images, once per process."""
    global _data
    if arguments.jobs > 1:
        torch.set_num_threads(1)
    names = "size", "train", "held_out", "device"
    _data = standardized(arguments.data, **{name: getattr(arguments, name) for name in names})


def train_one(kind: str, name: str, seed: int, arguments: argparse.Namespace) -> Run:
    torch.manual_seed(seed)
    channels, classes = _data[0].shape[1], int(_data[1].max()) + 1
    make = convolutions(arguments.grid)[kind]
    net = network(make, channels, classes, norm=arguments.norm).to(arguments.device)
    try:
        found = accuracies(net, OPTIMIZERS[name](net), _data, epochs=arguments.epochs, seed=seed)
    except FlexConvError:  # NaN in a mask
        return Run(100 / classes, 100 / classes, "diverged")
    sizes = " ".join("×".join(map(str, layer.extent)) for layer in net if isinstance(layer, FlexConv2d))
    return Run(found[min(2, len(found) - 1)], found[-1], sizes)


def experiments(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Pairs of a convolution and an optimizer."""
    for kind in convolutions(arguments.grid):
        for name in OPTIMIZERS:
            if not (arguments.only and kind not in arguments.only) and ("groups" not in name or kind == "paper"):
                yield kind, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="digits, mnist or cifar10")
    parser.add_argument("--size", type=int, help="resize images to this size")
    parser.add_argument("--train", type=int, default=4000, help="number of training images")
    parser.add_argument("--held-out", type=int, default=2000, help="number of held-out images")
    parser.add_argument("--grid", type=int, default=15, help="kernel_size of the FlexConvs")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="kinds of convolutions, such as 'plain 3' scaled")
    parser.add_argument("--norm", action="store_true", help="put a batch norm behind each convolution")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, each with one thread")
    arguments = parser.parse_args()
    print(f"{arguments.data}: size={arguments.size}, norm={arguments.norm}, grid={arguments.grid}")
    print(f"convolution | optimizer | after 3 epochs | after {arguments.epochs} | sizes by seed | seconds", flush=True)
    began, late = time.perf_counter(), {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, initializer=_set_up, initargs=(arguments,)) as pool:
        started = {
            each: [pool.submit(train_one, *each, seed, arguments) for seed in range(arguments.seeds)]
            for each in experiments(arguments)
        }
        for (kind, name), futures in started.items():
            runs = [future.result() for future in futures]
            late[kind, name] = statistics.mean(run.late for run in runs)
            spread = statistics.stdev([run.late for run in runs]) if len(runs) > 1 else 0.0
            found = f"{statistics.mean(run.early for run in runs):.1f} | {late[kind, name]:.1f} ± {spread:.1f}"
            sizes = ", ".join(run.sizes for run in runs) if runs[0].sizes else ""
            print(f"{kind} | {name} | {found} | {sizes} | {time.perf_counter() - began:.0f}", flush=True)
    if any(
        (kind, name) not in late
        for kind in ("plain 3", "plain 5", "plain 7", "scaled")
        for name in list(OPTIMIZERS)[:4]
    ):
        return
    print("optimizer | best plain | scaled | difference")
    for name in list(OPTIMIZERS)[:4]:
        best = max(late[f"plain {size}", name] for size in (3, 5, 7))
        print(f"{name} | {best:.1f} | {late['scaled', name]:.1f} | {late['scaled', name] - best:+.1f}")


if __name__ == "__main__":
    main()
