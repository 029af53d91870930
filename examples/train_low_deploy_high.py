"""Train on 8 × 8 digits, run on 16 × 16 ones: kernels are functions, so they can be sampled twice as densely.

    python examples/train_low_deploy_high.py

A FlexNet learns at the low resolution, with a penalty that keeps its kernels' frequencies below what 8 × 8 images can
hold. `at_resolution` then gives the same weights for 16 × 16 images, which nobody trained on. Beside it: the network
as it is, the image brought back to 8 × 8, and a plain CNN of 3 × 3 kernels trained at either resolution.

These digits have 8 × 8 pixels of their own: the 16 × 16 images are enlarged, and those of 8 × 8 are these reduced,
as a camera would do it. So bringing an image back loses nothing here, and is the bar to reach. Expect about
98 % from the resampled FlexNet after its batch norms were measured again (96 % before), 98 to 99 % from the bar and
from a CNN trained on 16 × 16, 10 to 20 % from networks that take the larger image as it is. One to two
minutes on one CPU thread.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import alias_penalty, at_resolution, create_model, data, recalibrate_batchnorm

LOW, HIGH = 8, 16


def images(split: data.Split | None) -> tuple[torch.Tensor, torch.Tensor]:
    """All of a split, standardised → [N, 1, 16, 16] and labels [N]."""
    assert split is not None
    inputs, labels, _ = next(iter(data.DeviceBatches(split, len(split))))
    return data.resize_images(inputs, HIGH), labels


def flexnet() -> nn.Module:
    return create_model(
        "flexnet3",
        in_channels=1,
        num_classes=10,
        image_size=LOW,
        widths=[8, 12, 16],
        dropout=0.1,
        generator_options={"input_scale": 6.0},  # smooth kernels to begin with
        mask_options={"sigma": 0.3},
    )


def plain() -> nn.Module:
    """The same network with 3 × 3 kernels."""
    return create_model(
        "flexnet3", in_channels=1, num_classes=10, widths=[8, 12, 16], dropout=0.1, conv="plain", kernel_size=3
    )


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, *, epochs: int, penalty: bool = False) -> float:
    """Returns the seconds it took."""
    torch.manual_seed(0)
    began = time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            loss = F.cross_entropy(model(inputs[rows]), labels[rows])
            if penalty:
                loss = loss + alias_penalty(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    return time.perf_counter() - began


@torch.no_grad()
def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(inputs).argmax(1) == labels).double().mean().item()


def main(epochs: int = 16, rows: int | None = None) -> dict[str, float]:
    """Train three networks (on the first `rows` images, or all), compare; returns accuracies on 16 × 16 images."""
    digits = data.load("digits")
    high, labels = (each[:rows] for each in images(digits.train))
    test_high, test_labels = images(digits.test)
    low, test_low = (data.resize_images(each, LOW) for each in (high, test_high))

    torch.manual_seed(0)
    flexible, plain_low, plain_high = flexnet(), plain(), plain()
    seconds = {
        "FlexNet on 8 × 8": train(flexible, low, labels, epochs=epochs, penalty=True),
        "plain CNN on 8 × 8": train(plain_low, low, labels, epochs=epochs),
        "plain CNN on 16 × 16": train(plain_high, high, labels, epochs=epochs),
    }
    for name, duration in seconds.items():
        print(f"trained a {name} for {epochs} epochs: {duration:.0f} s")

    dense = at_resolution(flexible, HIGH / LOW)
    measured_again = at_resolution(flexible, HIGH / LOW)
    recalibrate_batchnorm(measured_again, high.split(256))  # needs images, not labels

    runs = {
        "FlexNet, as it is": (flexible, test_high),
        "FlexNet, at_resolution": (dense, test_high),
        "FlexNet, at_resolution, norms recalibrated": (measured_again, test_high),
        "FlexNet, image brought back to 8 × 8": (flexible, test_low),
        "plain CNN of 8 × 8, as it is": (plain_low, test_high),
        "plain CNN of 8 × 8, image brought back": (plain_low, test_low),
        "plain CNN trained on 16 × 16": (plain_high, test_high),
    }
    results = {name: accuracy(model, inputs, test_labels) for name, (model, inputs) in runs.items()}
    print("\nAccuracy on 16 × 16 test images")
    for name, value in results.items():
        print(f"{name:44} {100 * value:5.1f} %")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # layers as small as these gain nothing from more
    main()
