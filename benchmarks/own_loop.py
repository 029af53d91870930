"""FlexConvs in place of plain convolutions, in a small network and a training loop as a user would write them.

    python -m benchmarks.own_loop digits --grid 7 --validation 0.4 --seeds 20
    python -m benchmarks.own_loop cifar10 --size 16 --grid 11 --norm --jobs 8

Prints the accuracy after 3 epochs and after the last one, for each kind of convolution and each optimizer: the mean
over seeds, its standard error, and the value of each seed. "scaled, 5 taps" and "scaled, 11 taps" start with other
masks than the default of 7 taps.

Whatever is chosen is chosen on held-out training images: constants of flexconv (`--constant` tries other values), and
which of the plain convolutions is the best one for an optimizer. The accuracies printed are those on the held-out
images; with `--test`, those on the test set, which is for final numbers only. The last tables compare the scaled layers
with the best plain convolution, as the mean and standard error of the differences between runs with the same seed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import multiprocessing
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[torch.Tensor, ...],
    *,
    epochs: int,
    seed: int,
    report: Sequence[int],
) -> list[tuple[float, float]]:
    """Accuracy on the held-out images and on the test set after each of the epochs in `report`."""
    x, y, *others = data
    order = torch.Generator().manual_seed(seed)
    found = []
    for epoch in range(1, epochs + 1):
        net.train()
        for batch in torch.randperm(len(x), generator=order).to(x.device).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        if epoch in report:
            found.append((accuracy(net, *others[:2]), accuracy(net, *others[2:]) if others[2:] else math.nan))
    return found


@torch.no_grad()
def accuracy(net: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> float:
    net.eval()
    right = torch.cat([net(part).argmax(1) for part in x.split(500)]) == labels
    return 100 * right.float().mean().item()


def standardized(
    name: str, *, size: int | None, train: int, held_out: int, validation: float, test: bool, device: str
) -> tuple[torch.Tensor, ...]:
    """Training and held-out images of a data set, and its test set if it is wanted, as x, y, x, y, …"""
    splits = load(name, validation=validation)
    assert splits.validation is not None
    assert splits.test is not None
    used = [(splits.train, train), (splits.validation, held_out), (splits.test, len(splits.test))]
    parts = []
    for split, count in used if test else used[:2]:
        assert isinstance(split.inputs, torch.Tensor), f"{name} has no inputs in memory"
        x = split.inputs[:count].float()
        x = x if size is None else F.interpolate(x, size=size, mode="bilinear", antialias=True, align_corners=False)
        parts += [x.to(device), split.labels[:count].to(device)]
    mean, std = parts[0].mean((0, 2, 3), keepdim=True), parts[0].std((0, 2, 3), keepdim=True)
    return tuple((part - mean) / std if part.is_floating_point() else part for part in parts)


class Run(NamedTuple):
    """One training: accuracies (held out, test) after 3 epochs and after the last one, and the final kernel sizes."""

    early: tuple[float, float]
    late: tuple[float, float]
    sizes: str


_data: tuple[torch.Tensor, ...] = ()


def _set_up(arguments: argparse.Namespace) -> None:
    """Load the images and set constants, once per process."""
    global _data
    if arguments.jobs > 1:
        torch.set_num_threads(1)
    names = "size", "train", "held_out", "validation", "test", "device"
    _data = standardized(arguments.data, **{name: getattr(arguments, name) for name in names})
    for setting in arguments.constant:
        place, _, value = setting.partition("=")
        module, _, constant = place.rpartition(".")
        target = importlib.import_module(f"flexconv.nn.{module}")
        assert hasattr(target, constant), f"flexconv.nn.{module} has no constant {constant}"
        setattr(target, constant, float(value))


def train_one(kind: str, name: str, seed: int, arguments: argparse.Namespace) -> Run:
    torch.manual_seed(seed)
    channels, classes = _data[0].shape[1], int(_data[1].max()) + 1
    make = convolutions(arguments.grid)[kind]
    net = network(make, channels, classes, norm=arguments.norm).to(arguments.device)
    report = sorted({min(3, arguments.epochs), arguments.epochs})
    try:
        found = accuracies(net, OPTIMIZERS[name](net), _data, epochs=arguments.epochs, seed=seed, report=report)
    except FlexConvError:  # NaN in a mask
        chance = 100 / classes, 100 / classes
        return Run(chance, chance, "diverged")
    sizes = " ".join("×".join(map(str, layer.extent)) for layer in net if isinstance(layer, FlexConv2d))
    return Run(found[0], found[-1], sizes)


def experiments(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Pairs of a convolution and an optimizer."""
    for name in OPTIMIZERS:
        for kind in convolutions(arguments.grid):
            wanted = not arguments.only or kind in arguments.only
            wanted = wanted and (not arguments.optimizers or name in arguments.optimizers)
            if wanted and ("groups" not in name or kind == "paper"):
                yield kind, name


def mean_and_error(values: Sequence[float]) -> str:
    """The mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.1f} ± {error:.1f}"


def compare(runs: dict[tuple[str, str], list[Run]], when: str, part: int) -> None:
    """Print the differences between scaled layers and the plain convolution that is the best on held-out images.

    `when` is "early" for accuracies after 3 epochs, or "late". `part` is 0 for held-out images and 1 for the test set.
    """
    for name in OPTIMIZERS:
        plain = {kind: each for (kind, optimizer), each in runs.items() if optimizer == name and "plain" in kind}
        if not plain or ("scaled", name) not in runs:
            continue
        best = max(plain, key=lambda kind: statistics.mean(getattr(run, when)[0] for run in plain[kind]))
        ours, theirs = ([getattr(run, when)[part] for run in each] for each in (runs["scaled", name], plain[best]))
        differences = [our - their for our, their in zip(ours, theirs, strict=True)]
        means = f"{mean_and_error(theirs)} | {mean_and_error(ours)} | {mean_and_error(differences)}"
        print(f"{name} | {best} | {means} | {' '.join(f'{each:+.1f}' for each in differences)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="digits, mnist or cifar10")
    parser.add_argument("--size", type=int, help="resize images to this size")
    parser.add_argument("--train", type=int, default=4000, help="number of training images")
    parser.add_argument("--held-out", type=int, default=6000, help="number of held-out images")
    parser.add_argument("--validation", type=float, default=0.2, help="share of the training set that is held out")
    parser.add_argument("--grid", type=int, default=15, help="kernel_size of the FlexConvs")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="kinds of convolutions, such as 'plain 3' scaled")
    parser.add_argument("--optimizers", nargs="+", help="names of optimizers, such as 'SGD 0.05'")
    parser.add_argument("--norm", action="store_true", help="put a batch norm behind each convolution")
    parser.add_argument("--test", action="store_true", help="print accuracies on the test set")
    parser.add_argument("--constant", action="append", default=[], help="such as kernels._base.OUTSIDE=1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, each with one thread")
    arguments = parser.parse_args()
    part = 1 if arguments.test else 0
    print(f"$ python -m benchmarks.own_loop {shlex.join(sys.argv[1:])}")
    columns = f"after 3 epochs | after {arguments.epochs} | by seed | sizes by seed | seconds"
    print(f"convolution | optimizer | {columns}", flush=True)
    began, runs = time.perf_counter(), {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, initializer=_set_up, initargs=(arguments,)) as pool:
        started = {
            each: [pool.submit(train_one, *each, arguments.first_seed + n, arguments) for n in range(arguments.seeds)]
            for each in experiments(arguments)
        }
        for (kind, name), futures in started.items():
            found = runs[kind, name] = [future.result() for future in futures]
            early, late = ([getattr(run, when)[part] for run in found] for when in ("early", "late"))
            sizes = ", ".join(run.sizes for run in found) if found[0].sizes else ""
            each = " ".join(f"{value:.1f}" for value in late)
            seconds = f"{time.perf_counter() - began:.0f}"
            means = f"{mean_and_error(early)} | {mean_and_error(late)}"
            print(f"{kind} | {name} | {means} | {each} | {sizes} | {seconds}", flush=True)
    for when, epochs in (("early", min(3, arguments.epochs)), ("late", arguments.epochs)):
        print(f"after {epochs}: optimizer | best plain | its accuracy | scaled | difference | differences by seed")
        compare(runs, when, part)


if __name__ == "__main__":
    main()
