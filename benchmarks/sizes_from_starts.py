"""Sizes that layers end with when they start with others.

    python -m benchmarks.sizes_from_starts

A layer with 4 input and 4 output channels and a grid of 65 taps imitates kernels of 21 taps (a Hann window times random
weights), so the task determines its size. The mask starts with 5 to 43 taps. Prints the final sizes and the final
losses, relative to the power of the outputs, for each optimizer and seed.

Taps that are cropped have no gradient. A kernel that fits within its taps therefore does not tell its mask that more
of them would help. With `--uncropped-gradients`, the gradient of the mask is that of the Gaussian without cropping, on
the whole grid. flexconv does not have this: it needs a window that is larger than the kernel.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from flexconv import FlexConv1d, GaussianMask, ops
from flexconv.nn._grid import Axis, TapRange

GRID, TAPS, CHANNELS = 65, 21, 4
STARTS = 1.0, 1.5, 2.4, 5.0, 10.0  # σ in tap spacings
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW 1e-3": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
    "Adam 1e-3": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, weight_decay=5e-4),
    "Adam 1e-2": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "SGD 0.05": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4),
}


class Uncropped(GaussianMask):
    """A mask with the values of a cropped Gaussian, and the gradient of one that is not cropped."""

    def _gaussian(
        self, values: Sequence[torch.Tensor], bounds: torch.Tensor, lines: Sequence[torch.Tensor], axes: Sequence[Axis]
    ) -> torch.Tensor:
        (mean, sigma, *_), (x,) = values, lines
        (keep,) = self._crop_factors(bounds, lines, axes)
        profile = torch.exp(-0.5 * ((x - mean) / sigma).square())
        return profile - (profile * (1 - keep)).detach()


class WholeGrid(FlexConv1d):
    """A layer that computes the whole grid, and not only the taps of its kernel."""

    @property
    def window(self) -> tuple[TapRange, ...]:
        return tuple((0, size) for size in self.kernel_size)


def imitate(optimizer: str, sigma: float, seed: int, steps: int, *, uncropped: bool) -> tuple[int, int, float]:
    """The first and the last size of a layer that imitates random kernels, and its relative loss."""
    torch.manual_seed(seed)
    window = torch.hann_window(TAPS + 2, periodic=False)[1:-1]
    wanted = torch.randn(CHANNELS, CHANNELS, 1) * window / window.square().sum().sqrt()
    make, mask = (WholeGrid, Uncropped) if uncropped else (FlexConv1d, GaussianMask)
    layer = make(CHANNELS, CHANNELS, GRID, mask=mask(1, sigma=sigma * 2 / (GRID - 1)))
    first, loss, stepper = layer.extent[0], torch.zeros(()), OPTIMIZERS[optimizer](layer.parameters())
    for _ in range(steps):
        x = torch.randn(16, CHANNELS, 128)
        y = ops.conv1d(x, wanted)
        loss = (layer(x) - y).square().mean()
        stepper.zero_grad()
        loss.backward()
        stepper.step()
    return first, layer.extent[0], loss.item() / wanted.square().sum().item() * CHANNELS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--uncropped-gradients", action="store_true", help="see above")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"$ python -m benchmarks.sizes_from_starts {shlex.join(sys.argv[1:])}")
    print(f"optimizer | taps at the start | at the end, by seed | relative loss by seed ({TAPS} taps are imitated)")
    for name in OPTIMIZERS:
        for sigma in STARTS:
            options = {"uncropped": arguments.uncropped_gradients}
            runs = [imitate(name, sigma, seed, arguments.steps, **options) for seed in range(arguments.seeds)]
            sizes, losses = " ".join(str(run[1]) for run in runs), " ".join(f"{run[2]:.0e}" for run in runs)
            print(f"{name} | {runs[0][0]} | {sizes} | {losses}", flush=True)


if __name__ == "__main__":
    main()
