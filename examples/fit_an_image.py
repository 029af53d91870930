"""One photograph, four kernel generators: MAGNet, Gabor, Fourier and SIREN learn it from its pixels, side by side.

    python examples/fit_an_image.py

A generator is a function from coordinates to values, with which FlexConvs make their kernels. Whether it can draw a
picture says how much detail a kernel of it can have. All four have about 4,200 parameters and see every pixel at every
step; the picture is one that comes with scikit-learn, 96 × 64, so about one parameter for four colour values.

Expect the SIREN at about 30 dB, MAGNet and Gabor at 27, Fourier at 25: a small network and few steps on a small picture
favour the SIREN. About a minute on one CPU thread; `flexconv fit kodak` is the long comparison of the paper.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from flexconv import data
from flexconv.nn import SIREN, FourierNet, GaborNet, KernelGenerator, MAGNet

HEIGHT, WIDTH = 64, 96
SCALE = 32.0  # of the first frequencies: the paper's 256 for pictures eight times as wide


def photograph() -> torch.Tensor:
    """[3, 64, 96] on [0, 1]: sky, trees and a roof with fine lines."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise SystemExit('the picture comes with scikit-learn: pip install "flexconv[train]"') from None
    pixels = torch.from_numpy(load_sample_image("china.jpg").copy())
    return data.resize_images(pixels.permute(2, 0, 1)[None], (HEIGHT, WIDTH))[0].float() / 255


def grid(height: int, width: int) -> torch.Tensor:
    """Coordinates of all pixels → [2, height, width] on [−1, 1]."""
    lines = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    return torch.stack(torch.meshgrid(*lines, indexing="ij"))


def generators() -> dict[str, tuple[KernelGenerator, float]]:
    """Name → generator from 2 coordinates to 3 colours, and its learning rate."""
    return {
        "MAGNet": (MAGNet(2, 3, hidden=32, layers=3, input_scale=SCALE), 0.01),
        "Gabor": (GaborNet(2, 3, hidden=33, layers=3, input_scale=SCALE), 0.01),
        "Fourier": (FourierNet(2, 3, hidden=34, layers=3, input_scale=SCALE), 0.01),
        "SIREN": (SIREN(2, 3, hidden=44, layers=4, omega_0=30.0), 0.002),
    }


def psnr(drawn: torch.Tensor, target: torch.Tensor) -> float:
    """Peak signal-to-noise ratio in dB of values on [0, 1], −10 log₁₀ of the mean squared error."""
    return -10 * math.log10((drawn.clamp(0, 1) - target).square().mean().item())


def fit(generator: KernelGenerator, target: torch.Tensor, *, lr: float, steps: int) -> torch.Tensor:
    """Train on all pixels at once; returns what it draws, [3, height, width]."""
    coordinates = grid(*target.shape[1:])
    optimizer = torch.optim.Adam(generator.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        loss = (generator(coordinates) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return generator(coordinates)


def save_picture(path: Path, pictures: dict[str, torch.Tensor]) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print('no picture: pip install "flexconv[viz]" draws one')
        return
    figure, axes = pyplot.subplots(1, len(pictures), figsize=(3.2 * len(pictures), 2.6))
    for axis, (title, pixels) in zip(axes, pictures.items(), strict=True):
        axis.imshow(pixels.clamp(0, 1).permute(1, 2, 0).numpy())
        axis.set_title(title)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"\nsaved {path}")


def main(steps: int = 300, out: Path = Path("fit_an_image.png")) -> dict[str, float]:
    """Fit all four, print a table; returns the PSNR of each."""
    torch.manual_seed(0)
    target = photograph()
    pictures, results = {"photograph": target}, {}
    print(f"{WIDTH} × {HEIGHT} pixels, {steps} steps\n\ngenerator   parameters   PSNR, dB   seconds")
    for name, (generator, lr) in generators().items():
        began = time.perf_counter()
        drawn = fit(generator, target, lr=lr, steps=steps)
        results[name] = psnr(drawn, target)
        pictures[f"{name}, {results[name]:.1f} dB"] = drawn
        count = sum(p.numel() for p in generator.parameters())
        print(f"{name:12}{count:10,}{results[name]:11.2f}{time.perf_counter() - began:10.0f}")
    save_picture(out, pictures)
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # networks as small as these gain little from more
    main()
