"""A layer that learns the size of its kernel: it starts with 5 × 5 taps and learns to imitate a much wider filter.

    python examples/learn_a_size.py

The inputs are white noise, so the expected loss is the squared distance between the kernel and the filter. No kernel of
5 × 5 taps can have a smaller loss than the energy of the filter outside 5 × 5 taps. The layer gets below this value
because its mask, and with it the kernel, grows during training.
"""

from __future__ import annotations

import time

import torch

from flexconv import FlexConv2d, GaussianMask, ops


def wide_filter(size: int = 33) -> torch.Tensor:
    """A Gabor filter, wide along one axis and narrow along the other, with energy 1 → [1, 1, size, size]."""
    axis = torch.linspace(-1, 1, size)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    values = torch.exp(-0.5 * ((rows / 0.12) ** 2 + (columns / 0.35) ** 2)) * torch.cos(12 * columns)
    return (values / values.norm()).reshape(1, 1, size, size)


def main(steps: int = 400) -> tuple[float, float, tuple[int, ...]]:
    """Train the layer. Returns the final loss, the smallest loss of a 5 × 5 kernel, and the final kernel size."""
    torch.manual_seed(0)
    target = wide_filter()

    # A FlexConv2d takes the same arguments as nn.Conv2d. kernel_size is the largest size that the kernel can have.
    # Its current size, layer.extent, follows from the width (sigma) of its mask, which is a parameter like any other.
    # The layer is that of the paper: its generator learns as well, so that a single kernel fits any filter.
    mask = GaussianMask(2, sigma=0.075)
    layer = FlexConv2d(1, 1, kernel_size=33, bias=False, mask=mask, parametrization="paper")

    height, width = layer.extent
    inside = target[..., (33 - height) // 2 : (33 + height) // 2, (33 - width) // 2 : (33 + width) // 2]
    floor = float(target.square().sum() - inside.square().sum())
    print(f"initial size {height}×{width}: no kernel of this size has a loss below {floor:.3f}\n")
    print("step   loss    size    sigma          ms/step")

    # An ordinary training loop. Nothing has to be called to update the size.
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    loss, start = torch.zeros(()), time.perf_counter()
    for step in range(steps + 1):
        x = torch.randn(8, 1, 32, 32)
        loss = (layer(x) - ops.conv2d(x, target)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 10) == 0:
            size = "×".join(map(str, layer.extent))
            sigma = ", ".join(f"{s:.3f}" for s in mask.sigma.tolist())
            ms = 1e3 * (time.perf_counter() - start) / (step + 1)
            print(f"{step:4d}   {loss.item():.4f}  {size:6s}  {sigma}   {ms:5.1f}")
    return loss.item(), floor, layer.extent


if __name__ == "__main__":
    loss, floor, (height, width) = main()
    print(f"\nfinal loss {loss:.4f}, {floor / loss:.0f} times smaller than with 5×5 taps; final size {height}×{width}")
