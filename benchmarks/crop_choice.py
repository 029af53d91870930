"""Accuracy at 32 pixels of networks that were trained at 16, for both crops and with recalibrated batch norms.

    python -m benchmarks.crop_choice MODEL [MODEL ...] [--root DIR] [--images 2000]

Accuracy is measured on the first test images. Batch norms are recalibrated on the first 2,000 training images, without
and with the crops and flips of training. Labels are not used for this.
"""

from __future__ import annotations

import argparse

import torch

from flexconv import at_resolution, from_pretrained, recalibrate_batchnorm
from flexconv.data import DeviceBatches, Split, load
from flexconv.train import evaluate_exactly

CROPS = "hard", "taper"


def first(split: Split | None, images: int, augment: str | None = None) -> DeviceBatches:
    """Batches of the first images of a split."""
    assert split is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return DeviceBatches(split.rows(torch.arange(images)), 100, augment=augment, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names of pretrained networks for CIFAR-10 at 16 pixels")
    parser.add_argument("--root", help="folder that contains the data sets")
    parser.add_argument("--images", type=int, default=2000, help="number of test images")
    arguments = parser.parse_args()
    data = load("cifar10", root=arguments.root)
    low, high = data.at_resolution(16), data.at_resolution(32)
    ways = ("", ", recalibrated", ", recalibrated with augmentation")
    print("model", "16 pixels", *(f"{crop}{way}" for crop in CROPS for way in ways), sep=" | ")
    for name in arguments.models:
        model = from_pretrained(name)
        scores = [evaluate_exactly(model, first(low.test, arguments.images)).accuracy]
        for crop in CROPS:
            larger = at_resolution(model, 2, crop=crop)
            scores.append(evaluate_exactly(larger, first(high.test, arguments.images)).accuracy)
            for augment in (None, "crop_flip"):
                recalibrate_batchnorm(larger, first(high.train, 2000, augment))
                scores.append(evaluate_exactly(larger, first(high.test, arguments.images)).accuracy)
        print(name, *(f"{100 * score:.2f}" for score in scores), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
