"""FlexConvs inside a U-Net of your own: find discs, squares and rings in noise, pixel by pixel.

    python examples/flexconv_in_a_unet.py

`UNet` is an ordinary `nn.Module`; between the two networks compared differ which function makes the convolutions of the
low resolutions, `nn.Conv2d` or `FlexConv2d`, and the width, so that both have as many parameters. Both train on the
same images for as many steps. A disc and a large square look the same close up, so a pixel has to know what is around
it: a U-Net learns that from its low resolutions, a FlexConv by growing.

Expect about 0.72 from FlexConvs with either seed. The plain U-Net has 0.75 with one, and with the other it has not yet
told discs from squares (0.46): two hundred steps are few, two seeds are no ranking, and only the settings of the
FlexConvs were chosen among several. One to two minutes on one CPU thread.
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
MakeConv = Callable[[int, int], nn.Module]


class UNet(nn.Module):
    """Two levels down and up: images [batch, 1, height, width] → logits [batch, 4, height, width].

    `deep_conv` makes the convolutions below the first level, where one pixel stands for two or four.
    """

    def __init__(self, deep_conv: MakeConv, width: int) -> None:
        super().__init__()

        def double(make_conv: MakeConv, inputs: int) -> nn.Sequential:
            first, second = make_conv(inputs, width), make_conv(width, width)
            return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width), nn.ReLU())

        self.down1, self.down2 = double(plain_conv, 1), double(plain_conv, width)
        self.bottom, self.up2 = double(deep_conv, width), double(deep_conv, 2 * width)
        self.up1 = double(plain_conv, 2 * width)
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
    kernel = functools.partial(MAGNet, hidden=16)  # 32 by default: more than these few channels need
    return FlexConv2d(inputs, outputs, kernel_size=11, bias=False, mask=mask, generator=kernel)


def scenes(count: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` images with three shapes each in noise → [count, 1, 40, 40], labels [count, 40, 40]."""
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    labels = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for label in labels:
        for kind in torch.randint(1, len(CLASSES), (3,), generator=draw).tolist():
            y, x = torch.randint(6, SIZE - 6, (2,), generator=draw).tolist()
            radius = int(torch.randint(6, 10, (), generator=draw))
            distance = ((rows - y) ** 2 + (columns - x) ** 2).sqrt()
            inside = {
                "disc": distance <= radius,
                "square": torch.maximum((rows - y).abs(), (columns - x).abs()) <= radius,
                "ring": (distance <= radius) & (distance > 0.6 * radius),
            }[CLASSES[kind]]
            label[inside] = kind
    images = (labels > 0).float() + 0.4 * torch.randn(labels.shape, generator=draw)
    return images[:, None], labels


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, steps: int, batch: int = 16) -> float:
    """Returns the seconds it took."""
    draw = torch.Generator().manual_seed(1)
    began = time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(0, len(images), (batch,), generator=draw)
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    return time.perf_counter() - began


def intersection_over_union(found: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Of each class but the background."""
    return [
        (((found == kind) & (labels == kind)).sum() / ((found == kind) | (labels == kind)).sum().clamp(min=1)).item()
        for kind in range(1, len(CLASSES))
    ]


def save_picture(path: Path, columns: dict[str, torch.Tensor]) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print('no picture: pip install "flexconv[viz]" draws one')
        return
    figure, axes = pyplot.subplots(4, len(columns), figsize=(2 * len(columns), 8), squeeze=False)
    for column, (name, pixels) in enumerate(columns.items()):
        axes[0, column].set_title(name)
        for row in range(4):
            whole = {"cmap": "gray"} if name == "image" else {"cmap": "viridis", "vmin": 0, "vmax": len(CLASSES) - 1}
            axes[row, column].imshow(pixels[row].numpy(), **whole)
            axes[row, column].axis("off")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    print(f"\nsaved {path}")


def main(steps: int = 200, seeds: int = 2, out: Path = Path("unet.png")) -> dict[str, float]:
    """Train both, print a table; returns each network's mean IoU over disc, square and ring, and over seeds."""
    draw = torch.Generator().manual_seed(0)
    images, labels = scenes(400, draw)
    test_images, test_labels = scenes(64, draw)
    columns, results = {"image": test_images[:4, 0], "truth": test_labels[:4]}, {}
    sizes: list[str] = []
    print(f"intersection over union after {steps} steps of 16 images\n")
    print("U-Net of      seed  parameters    disc  square    ring    mean  seconds")
    for name, make_conv, width in (("Conv2d", plain_conv, 15), ("FlexConv2d", flex_conv, 11)):  # as many parameters
        means = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = UNet(make_conv, width)
            seconds = train(model, images, labels, steps=steps)
            with torch.no_grad():
                found = model(test_images).argmax(1)
            each = intersection_over_union(found, test_labels)
            means.append(sum(each) / len(each))
            columns[name] = found[:4]
            count = sum(p.numel() for p in model.parameters())
            numbers = "".join(f"{value:8.3f}" for value in [*each, means[-1]])
            print(f"{name:12} {seed:5} {count:11,}{numbers} {seconds:8.0f}")
            sizes = [
                f"{n} {m.extent[0]} × {m.extent[1]}" for n, m in model.named_modules() if isinstance(m, FlexConv2d)
            ]
        results[name] = sum(means) / seeds
    print(f"\nsizes the last one learned, of at most 11 × 11: {', '.join(sizes)}")
    save_picture(out, columns)
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # layers as small as these gain nothing from more
    main()
