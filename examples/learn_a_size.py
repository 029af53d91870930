"""A FlexConv2d that starts at 5×5 and has to imitate a filter five times as wide: watch it grow.

    python examples/learn_a_size.py

White noise goes in, so the loss is the squared distance between kernel and filter, and the best any 5×5 kernel
could reach is the energy of the filter outside 5×5.
"""

from __future__ import annotations

import time

import torch

from flexconv import FlexConv2d, GaussianMask, ops


def wide_filter(size: int = 33) -> torch.Tensor:
    """A Gabor filter, long in one direction and narrow in the other → [1, 1, size, size], of energy 1."""
    axis = torch.linspace(-1, 1, size)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    values = torch.exp(-0.5 * ((rows / 0.12) ** 2 + (columns / 0.35) ** 2)) * torch.cos(12 * columns)
    return (values / values.norm()).reshape(1, 1, size, size)


def main(steps: int = 400) -> tuple[float, float, tuple[int, ...]]:
    """Train; returns the final loss, the best loss of the first size, and the final size."""
    torch.manual_seed(0)
    target = wide_filter()
    mask = GaussianMask(2, sigma=0.075)
    layer = FlexConv2d(1, 1, kernel_size=33, bias=False, mask=mask)
    first = layer.extent
    crop = (slice(None), slice(None), *(slice((33 - n) // 2, (33 + n) // 2) for n in first))
    floor = float(target.square().sum() - target[crop].square().sum())
    print(f"first size {first[0]}×{first[1]}: no kernel of that size gets below a loss of {floor:.3f}\n")
    print("step   loss    size    sigma          ms/step")

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
    final, floor, size = main()
    print(f"\nfinal loss {final:.4f}, {floor / final:.0f} times below the best 5×5; learned {size[0]}×{size[1]}")
