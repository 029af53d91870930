"""One network for sequences, images and volumes: train a SepFlexNet on generated signals of one, two or three axes.

    python examples/separable_network.py [1 | 2 | 3]

The task is to tell slow waves from fast ones, in noise. The same class is used for all three; only the size argument
differs. Every channel learns its own kernel size. After training, the network runs at twice the resolution, on the same
waves sampled twice as densely, without any further training.

With two axes, the network is right in 97.5 % of the cases, both at its own resolution and at twice that. It takes half
a minute on one CPU thread.
"""

from __future__ import annotations

import math
import sys

import torch
import torch.nn.functional as F

from flexconv import at_resolution, create_model
from flexconv.nn import SeparableFlexConvNd

SIZES = {1: ("length", 64), 2: ("image_size", 16), 3: ("volume_size", 10)}
WAVES = (1.0, 2.0)  # per axis, of the two classes


def signals(dims: int, count: int, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Waves in random directions with noise → [count, 1, *size] and their classes [count]."""
    labels = torch.randint(0, 2, (count,), generator=generator)
    line = (torch.arange(size) + 0.5) / size
    grid = torch.stack(torch.meshgrid(*[line] * dims, indexing="ij")).flatten(1)  # [dims, positions]
    direction = F.normalize(torch.randn(count, dims, generator=generator), dim=1)
    frequency = torch.tensor(WAVES)[labels].unsqueeze(1) * direction
    phase = torch.rand(count, 1, generator=generator)
    waves = torch.sin(2 * math.pi * (frequency @ grid + phase))
    noise = torch.randn(count, 1, *[8] * dims, generator=generator)  # smooth, so that it is the same at all resolutions
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    return waves.view(count, 1, *[size] * dims) + F.interpolate(noise, [size] * dims, mode=mode), labels


def sizes_of(layer: SeparableFlexConvNd) -> str:
    return ", ".join(sorted({"×".join(map(str, size)) for size in layer.channel_extents.tolist()}))


def main(dims: int = 2, steps: int = 80, width: int = 16) -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    name, size = SIZES[dims]
    sizes = {name: size, "kernel_size": 9} if dims == 3 else {name: size}
    model = create_model(
        "sepflexnet_tiny", in_channels=1, num_classes=2, width=width, depth=2, mask="per_channel", **sizes
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    layer = next(m for m in reversed(list(model.modules())) if isinstance(m, SeparableFlexConvNd))  # the last one
    before = sizes_of(layer)
    for step in range(steps):
        x, labels = signals(dims, 32, size, generator)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 8) == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}")
    model.eval()
    results = {}
    finer = at_resolution(model, 2)
    for label, network, points in (("trained resolution", model, size), ("twice the resolution", finer, 2 * size)):
        x, labels = signals(dims, 200, points, torch.Generator().manual_seed(1))
        with torch.no_grad():
            results[label] = float((network(x).argmax(1) == labels).float().mean())
        print(f"{label}: {100 * results[label]:.1f} % of 200 signals")
    print(f"kernel sizes of the channels of the last layer: {before} before training, {sizes_of(layer)} now")
    return results


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
