"""Convert a trained CNN to FlexConvs, and run it at twice the resolution without further training.

    python examples/convert_a_cnn.py

A small CNN is trained on digits of 8 × 8 pixels. The converted network computes the same function on images of 8 × 8.
For images of 16 × 16, its kernels are sampled twice as densely, while the kernels of the CNN stay 3 × 3. Batch norm
statistics depend on the resolution, too. They are recomputed for both networks from training images without labels.
"""

from __future__ import annotations

import copy
import time

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import at_resolution, convert, data, materialize, recalibrate_batchnorm


def make_cnn(width: int = 16) -> nn.Sequential:
    """Three 3 × 3 convolutions, the second with stride 2, and global average pooling, for images of any size."""

    def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)]
    return nn.Sequential(*block(1, width), *block(width, 2 * width, 2), *block(2 * width, 2 * width), *head)


def load_images(split: data.Split | None, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All standardized images of a split, resized → [N, 1, size, size], and their labels [N]."""
    assert split is not None
    inputs, labels, _ = next(iter(data.DeviceBatches(split, len(split))))
    return data.resize_images(inputs, size), labels


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(inputs).argmax(1) == labels).double().mean().item()


def recalibrated(model: nn.Module, inputs: torch.Tensor) -> nn.Module:
    """A copy of the model with batch norm statistics of these inputs."""
    model = copy.deepcopy(model)
    recalibrate_batchnorm(model, inputs.split(256))
    return model


def main(epochs: int = 10, steps: int = 200) -> dict[str, float]:
    """Train, convert and compare. Returns the test accuracies."""
    torch.manual_seed(0)
    digits = data.load("digits")
    low, labels = load_images(digits.train, 8)
    high, _ = load_images(digits.train, 16)
    test_low, test_labels = load_images(digits.test, 8)
    test_high, _ = load_images(digits.test, 16)

    # Train an ordinary CNN.
    cnn = make_cnn()
    start = time.perf_counter()
    train(cnn, low, labels, epochs)
    print(f"trained a CNN on 8 × 8 images for {epochs} epochs: {time.perf_counter() - start:.1f} s")

    # Replace its convolutions by FlexConvs. Each generator is fitted to the kernel that it replaces.
    start = time.perf_counter()
    converted, report = convert(cnn, init="fit", steps=steps)
    print(f"converted it: {time.perf_counter() - start:.1f} s\n\n{report}\n")

    # Sample all kernels twice as densely. No parameter changes.
    resampled = at_resolution(converted, 2)

    models = {
        "8 × 8, plain": (cnn, test_low),
        "8 × 8, converted": (converted, test_low),
        "8 × 8, converted and back": (materialize(converted), test_low),
        "16 × 16, plain": (cnn, test_high),
        "16 × 16, converted": (resampled, test_high),
        "16 × 16, plain, recalibrated": (recalibrated(cnn, high), test_high),
        "16 × 16, converted, recalibrated": (recalibrated(resampled, high), test_high),
    }
    results = {name: accuracy(model, inputs, test_labels) for name, (model, inputs) in models.items()}
    for name, value in results.items():
        print(f"{name:34} {100 * value:5.1f} %")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads do not help for layers of this size
    main()
