"""Use FlexConvs in a U-Net that segments discs, squares and rings in noise.

    python examples/flexconv_in_a_unet.py

`UNet` is an ordinary `nn.Module`. The example trains it twice on the same images: once with `nn.Conv2d` and once with
`FlexConv2d` at its low resolutions. The widths are chosen so that both networks have about the same number of
parameters. Discs and large squares look the same from close up, so a pixel has to be classified by its surroundings. A
U-Net sees them at its low resolutions. A FlexConv can also enlarge its kernels.

The mean intersection over union is 0.72 to 0.74 with FlexConvs. The plain U-Net reaches 0.74 to 0.75 with one seed.
With the other seed it has not learned to distinguish discs from squares after 200 steps (0.46). This is not a
ranking: there are only two seeds and few steps, and only the settings of the FlexConvs were tuned. The example takes
one to two minutes on one CPU thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import FlexConv2d, GaussianMask
from flexconv.nn import MAGNet

SIZE, CLASSES = 40, ("background", "disc", "square", "ring")
MakeConv = Callable[[int, int], nn.Module]  # (in_channels, out_channels) → a convolution


class UNet(nn.Module):
    """A U-Net with two downsampling steps: [batch, 1, height, width] → logits [batch, 4, height, width].

    `deep_conv` creates the convolutions at the low resolutions.
    """

    def __init__(self, deep_conv: MakeConv, width: int) -> None:
        super().__init__()

        def two_convs(make_conv: MakeConv, inputs: int) -> nn.Sequential:
            first, second = make_conv(inputs, width), make_conv(width, width)
            return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width), nn.ReLU())

        self.down1, self.down2 = two_convs(plain_conv, 1), two_convs(plain_conv, width)
        self.bottom, self.up2 = two_convs(deep_conv, width), two_convs(deep_conv, 2 * width)
        self.up1 = two_convs(plain_conv, 2 * width)
        self.head = nn.Conv2d(width, len(CLASSES), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2.0), second], 1))
        return self.head(self.up1(torch.cat([F.interpolate(x, scale_factor=2.0), first], 1)))


def plain_conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)


def flex_conv(inputs: int, outputs: int) -> nn.Module:
    mask = GaussianMask(2, sigma=0.3)
    kernel = functools.partial(MAGNet, hidden=16)  # the default of 32 is more than so few channels need
    return FlexConv2d(inputs, outputs, kernel_size=11, bias=False, mask=mask, generator=kernel)


def make_images(count: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with three shapes each → [count, 1, 40, 40], and the class of each pixel → [count, 40, 40]."""
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    labels = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for label in labels:
        for kind in torch.randint(1, len(CLASSES), (3,), generator=rng).tolist():
            y, x = torch.randint(6, SIZE - 6, (2,), generator=rng).tolist()
            radius = int(torch.randint(6, 10, (), generator=rng))
            distance = ((rows - y) ** 2 + (columns - x) ** 2).sqrt()
            inside = {
                "disc": distance <= radius,
                "square": torch.maximum((rows - y).abs(), (columns - x).abs()) <= radius,
                "ring": (distance <= radius) & (distance > 0.6 * radius),
            }[CLASSES[kind]]
            label[inside] = kind
    images = (labels > 0).float() + 0.4 * torch.randn(labels.shape, generator=rng)
    return images[:, None], labels


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, steps: int, batch_size: int = 16) -> float:
    """Train the model. Returns the seconds that it took."""
    rng = torch.Generator().manual_seed(1)
    start = time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = torch.randint(0, len(images), (batch_size,), generator=rng)
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    return time.perf_counter() - start


def intersection_over_union(predicted: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """The intersection over union of every class except the background."""
    ious = []
    for kind in range(1, len(CLASSES)):
        intersection = ((predicted == kind) & (labels == kind)).sum()
        union = ((predicted == kind) | (labels == kind)).sum()
        ious.append((intersection / union.clamp(min=1)).item())
    return ious


def save_figure(path: Path, columns: dict[str, torch.Tensor]) -> None:
    """Save a figure with one column per entry and one row per image."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print('the figure needs matplotlib: pip install ".[viz]" in a checkout of flexconv')
        return
    figure, axes = pyplot.subplots(4, len(columns), figsize=(2 * len(columns), 8), squeeze=False)
    for column, (name, pixels) in enumerate(columns.items()):
        axes[0, column].set_title(name)
        for row in range(4):
            look = {"cmap": "gray"} if name == "image" else {"cmap": "viridis", "vmin": 0, "vmax": len(CLASSES) - 1}
            axes[row, column].imshow(pixels[row].numpy(), **look)
            axes[row, column].axis("off")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    print(f"\nsaved {path}")


def main(steps: int = 200, seeds: int = 2, out: Path = Path("unet.png")) -> dict[str, float]:
    """Train both networks and print a table. Returns the mean IoU of each network over shapes and seeds."""
    rng = torch.Generator().manual_seed(0)
    images, labels = make_images(400, rng)
    test_images, test_labels = make_images(64, rng)
    columns, results = {"image": test_images[:4, 0], "labels": test_labels[:4]}, {}
    sizes: list[str] = []
    print(f"intersection over union after {steps} steps of 16 images\n")
    print("U-Net with    seed  parameters    disc  square    ring    mean  seconds")
    for name, make_conv, width in (("Conv2d", plain_conv, 15), ("FlexConv2d", flex_conv, 11)):
        means = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = UNet(make_conv, width)
            seconds = train(model, images, labels, steps=steps)
            with torch.no_grad():
                predicted = model(test_images).argmax(1)
            ious = intersection_over_union(predicted, test_labels)
            means.append(sum(ious) / len(ious))
            columns[name] = predicted[:4]
            count = sum(p.numel() for p in model.parameters())
            numbers = "".join(f"{value:8.3f}" for value in [*ious, means[-1]])
            print(f"{name:12} {seed:5} {count:11,}{numbers} {seconds:8.0f}")
            sizes = [
                f"{n} {m.extent[0]} × {m.extent[1]}" for n, m in model.named_modules() if isinstance(m, FlexConv2d)
            ]
        results[name] = sum(means) / seeds
    print(f"\nkernel sizes of the last network (at most 11 × 11): {', '.join(sizes)}")
    save_figure(out, columns)
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads do not help for layers of this size
    main()
