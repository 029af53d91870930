"""FlexConvs in place of plain convolutions, in a small network and a training loop as a user would write them.

    python -m benchmarks.own_loop digits --seeds 3 --epochs 15
    python -m benchmarks.own_loop cifar10 --size 16 --train 4000 --device cuda

Prints the accuracy on held-out training images after 3 epochs and after the last one, mean and standard deviation over
seeds, for each kind of convolution and each optimizer. The test set is not read.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import FlexConv2d, parameter_groups
from flexconv.data import load
from flexconv.errors import FlexConvError

Make = Callable[[int, int], nn.Module]

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW 1e-3": lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05),
    "Adam 1e-2": lambda net: torch.optim.Adam(net.parameters(), lr=1e-2),
    "SGD 0.05": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
    "AdamW 1e-3, groups": lambda net: torch.optim.AdamW(parameter_groups(net, 1e-3, weight_decay=0.05)),
}


def convolutions(grid: int) -> dict[str, Make]:
    flex = functools.partial(FlexConv2d, kernel_size=grid)
    return {
        "plain 3": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 3, padding=1),
        "plain 5": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 5, padding=2),
        "plain 7": lambda inputs, outputs: nn.Conv2d(inputs, outputs, 7, padding=3),
        "paper": functools.partial(flex, parametrization="paper"),
        "scaled": functools.partial(flex, parametrization="scaled"),
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
    arguments = parser.parse_args()
    data = standardized(
        arguments.data,
        size=arguments.size,
        train=arguments.train,
        held_out=arguments.held_out,
        device=arguments.device,
    )
    channels, classes = data[0].shape[1], int(data[1].max()) + 1
    print(f"{arguments.data}: {tuple(data[0].shape)}, norm={arguments.norm}, grid={arguments.grid}")
    print(f"convolution | optimizer | after 3 epochs | after {arguments.epochs} | sizes of the last seed | seconds")
    for kind, make in convolutions(arguments.grid).items():
        for name, optimizer in OPTIMIZERS.items():
            if (arguments.only and kind not in arguments.only) or ("groups" in name and kind != "paper"):
                continue
            began, runs, sizes = time.perf_counter(), [], ""
            for seed in range(arguments.seeds):
                torch.manual_seed(seed)
                net = network(make, channels, classes, norm=arguments.norm).to(arguments.device)
                try:
                    runs.append(accuracies(net, optimizer(net), data, epochs=arguments.epochs, seed=seed))
                except FlexConvError:  # NaN in a mask
                    runs.append([100 / classes] * arguments.epochs)
                    sizes = "diverged"
                else:
                    sizes = " ".join("×".join(map(str, m.extent)) for m in net if isinstance(m, FlexConv2d))
            early, late = ([run[epoch] for run in runs] for epoch in (min(2, arguments.epochs - 1), -1))
            spread = statistics.stdev(late) if len(late) > 1 else 0.0
            seconds = time.perf_counter() - began
            found = f"{statistics.mean(early):.1f} | {statistics.mean(late):.1f} ± {spread:.1f}"
            print(f"{kind} | {name} | {found} | {sizes} | {seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
