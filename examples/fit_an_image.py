"""Fit a photograph with four kernel generators, MAGNet, GaborNet, FourierNet and SIREN, and compare them.

    python examples/fit_an_image.py

A generator is a network that maps coordinates to values. FlexConvs use it to create their kernels. How well it fits an
image shows how much detail a kernel can have. All four generators have about 4,200 parameters and see every pixel in
every step. The image comes with scikit-learn. It has 96 × 64 pixels, so there is one parameter for about four values.

The SIREN reaches about 30 dB, MAGNet and GaborNet 26 to 27 dB, FourierNet 25 dB. Small networks, few steps and a small
image favor the SIREN. The example takes about a minute on one CPU thread. `flexconv fit kodak` runs the comparison of
the paper, which takes much longer.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from flexconv import data
from flexconv.nn import SIREN, FourierNet, GaborNet, KernelGenerator, MAGNet

HEIGHT, WIDTH = 64, 96
SCALE = 32.0  # of the initial frequencies; the paper uses 256 for images that are eight times as wide


def load_photograph() -> torch.Tensor:
    """A photograph with values in [0, 1] → [3, 64, 96]."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise SystemExit('the image needs scikit-learn: pip install ".[train]" in a checkout of flexconv') from None
    pixels = torch.from_numpy(load_sample_image("china.jpg").copy())
    return data.resize_images(pixels.permute(2, 0, 1)[None], (HEIGHT, WIDTH))[0].float() / 255


def pixel_coordinates(height: int, width: int) -> torch.Tensor:
    """The coordinates of all pixels, in [−1, 1] → [2, height, width]."""
    lines = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    return torch.stack(torch.meshgrid(*lines, indexing="ij"))


def make_generators() -> dict[str, tuple[KernelGenerator, float]]:
    """The generators, from 2 coordinates to 3 colors, and their learning rates."""
    return {
        "MAGNet": (MAGNet(2, 3, hidden=32, layers=3, input_scale=SCALE), 0.01),
        "Gabor": (GaborNet(2, 3, hidden=33, layers=3, input_scale=SCALE), 0.01),
        "Fourier": (FourierNet(2, 3, hidden=34, layers=3, input_scale=SCALE), 0.01),
        "SIREN": (SIREN(2, 3, hidden=44, layers=4, omega_0=30.0), 0.002),
    }


def psnr(image: torch.Tensor, target: torch.Tensor) -> float:
    """The peak signal-to-noise ratio in dB for values in [0, 1]: −10 log₁₀ of the mean squared error."""
    return -10 * math.log10((image.clamp(0, 1) - target).square().mean().item())


def fit(generator: KernelGenerator, target: torch.Tensor, *, lr: float, steps: int) -> torch.Tensor:
    """Train a generator on all pixels at once. Returns the image that it generates → [3, height, width]."""
    coordinates = pixel_coordinates(*target.shape[1:])
    optimizer = torch.optim.Adam(generator.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        loss = (generator(coordinates) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return generator(coordinates)


def save_figure(path: Path, images: dict[str, torch.Tensor]) -> None:
    """Save all images side by side."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print('the figure needs matplotlib: pip install ".[viz]" in a checkout of flexconv')
        return
    figure, axes = pyplot.subplots(1, len(images), figsize=(3.2 * len(images), 2.6))
    for axis, (title, image) in zip(axes, images.items(), strict=True):
        axis.imshow(image.clamp(0, 1).permute(1, 2, 0).numpy())
        axis.set_title(title)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"\nsaved {path}")


def main(steps: int = 300, out: Path = Path("fit_an_image.png")) -> dict[str, float]:
    """Fit all generators and print a table. Returns the PSNR of each."""
    torch.manual_seed(0)
    target = load_photograph()
    images, results = {"photograph": target}, {}
    print(f"{WIDTH} × {HEIGHT} pixels, {steps} steps\n\ngenerator   parameters   PSNR, dB   seconds")
    for name, (generator, lr) in make_generators().items():
        start = time.perf_counter()
        image = fit(generator, target, lr=lr, steps=steps)
        results[name] = psnr(image, target)
        images[f"{name}, {results[name]:.1f} dB"] = image
        count = sum(p.numel() for p in generator.parameters())
        print(f"{name:12}{count:10,}{results[name]:11.2f}{time.perf_counter() - start:10.0f}")
    save_figure(out, images)
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads do not help for networks of this size
    main()
