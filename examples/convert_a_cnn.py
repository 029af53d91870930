"""A plain CNN, trained on 8 × 8 digits, converted to FlexConvs and run on 16 × 16 ones without training.

    python examples/convert_a_cnn.py

The converted network is the same function on 8 × 8. On 16 × 16 its kernels are sampled twice as densely, those of the
plain one are what they were. Statistics of batch norms depend on the resolution too: they are measured again for
either, on training images without their labels.
"""

from __future__ import annotations

import copy
import time

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import at_resolution, convert, data, materialize, recalibrate_batchnorm


def plain_cnn(width: int = 16) -> nn.Sequential:
    """Three 3 × 3 convolutions, the second with stride 2, and a mean over positions: any image size will do."""

    def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)]
    return nn.Sequential(*block(1, width), *block(width, 2 * width, 2), *block(2 * width, 2 * width), *head)


def images(split: data.Split | None, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All of a split, standardised → [N, 1, size, size] and labels [N]."""
    assert split is not None
    inputs, labels, _ = next(iter(data.DeviceBatches(split, len(split))))
    return data.resize_images(inputs, size), labels


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(inputs).argmax(1) == labels).double().mean().item()


def recalibrated(model: nn.Module, inputs: torch.Tensor) -> nn.Module:
    model = copy.deepcopy(model)
    recalibrate_batchnorm(model, inputs.split(256))
    return model


def main(epochs: int = 10, steps: int = 200) -> dict[str, float]:
    """Train, convert, compare; returns accuracies on the test images."""
    torch.manual_seed(0)
    digits = data.load("digits")
    low, labels = images(digits.train, 8)
    high, _ = images(digits.train, 16)
    test_low, test_labels = images(digits.test, 8)
    test_high, _ = images(digits.test, 16)

    plain = plain_cnn()
    began = time.perf_counter()
    train(plain, low, labels, epochs)
    print(f"a plain CNN, {epochs} epochs on 8 × 8: {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    flexible, report = convert(plain, init="fit", steps=steps)
    print(f"its kernels fitted: {time.perf_counter() - began:.1f} s\n\n{report}\n")
    double = at_resolution(flexible, 2)

    models = {
        "8 × 8, plain": (plain, test_low),
        "8 × 8, converted": (flexible, test_low),
        "8 × 8, converted and back": (materialize(flexible), test_low),
        "16 × 16, plain": (plain, test_high),
        "16 × 16, converted": (double, test_high),
        "16 × 16, plain, recalibrated": (recalibrated(plain, high), test_high),
        "16 × 16, converted, recalibrated": (recalibrated(double, high), test_high),
    }
    results = {name: accuracy(model, inputs, test_labels) for name, (model, inputs) in models.items()}
    for name, value in results.items():
        print(f"{name:34} {100 * value:5.1f} %")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # layers as small as these gain nothing from more
    main()
