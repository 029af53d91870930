"""Separable FlexConvs on volumes of 64³ voxels, beside a plain 3D convolution.

    python examples/volumes.py

Every volume contains a bright ball with a dark shell in noise, and the class is whether the shell is thin or thick. A
SepFlexNet with 3D kernels of up to 17³ taps is trained on generated volumes. Then a forward and backward pass of one
layer on 64³ voxels is measured: a separable FlexConv, whose kernel of 7³ taps is learned and may grow, and `nn.Conv3d`
with 7³ taps. On a GPU the peak memory is printed too; `python -m benchmarks.volumes` measures it on a CPU as well.

On a CPU, the volumes of the training have 16³ voxels, and everything takes half a minute on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import SeparableFlexConv3d, create_model, refresh_extents

GRID = 17  # the largest size of a kernel


def volumes(count: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Balls with a thin or thick dark shell in noise → [count, 1, size, size, size] and classes [count]."""
    labels = torch.randint(0, 2, (count,), device=device)
    line = torch.linspace(-1, 1, size, device=device)
    grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij"))
    center = 0.6 * torch.rand(count, 3, 1, 1, 1, device=device) - 0.3
    distance = (grid - center).square().sum(1).sqrt()
    thickness = torch.where(labels == 0, 0.15, 0.3).view(-1, 1, 1, 1)
    ball = (distance < 0.3).float() - ((distance >= 0.3) & (distance < 0.3 + thickness)).float()
    return (ball + 0.3 * torch.randn_like(ball)).unsqueeze(1), labels


def measure(layer: nn.Module, x: torch.Tensor, repeats: int) -> tuple[float, float | None]:
    """Milliseconds of a forward and backward pass, and the peak memory in GiB on a GPU."""

    def step() -> None:
        layer(x).square().mean().backward()

    wait: Callable[[], None] = torch.cuda.synchronize if x.is_cuda else (lambda: None)
    for _ in range(2):
        step()
    wait()
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    wait()
    elapsed = 1000 * (time.perf_counter() - start) / repeats
    return elapsed, torch.cuda.max_memory_allocated() / 2**30 if x.is_cuda else None


def main(
    size: int | None = None, steps: int = 30, width: int = 12, repeats: int = 5, layer_size: int = 64
) -> dict[str, float]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = size or (64 if device.type == "cuda" else 16)
    torch.manual_seed(0)
    model = create_model(
        "sepflexnet_tiny", in_channels=1, num_classes=2, volume_size=size, kernel_size=GRID, width=width, depth=2
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in range(steps):
        x, labels = volumes(8, size, device)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(1, steps // 6) == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}  kernels {list(refresh_extents(model).values())}")
    results = {"loss": loss.item()}
    x = torch.randn(4 if device.type == "cuda" else 1, width, *[layer_size] * 3, device=device)
    flex = SeparableFlexConv3d(width, width, GRID).to(device)
    plain = nn.Conv3d(width, width, 7, padding=3).to(device)
    for name, layer in (("SeparableFlexConv3d", flex), ("nn.Conv3d", plain)):
        results[name], memory = measure(layer, x, repeats)
        taps = "×".join(map(str, flex.extent)) if layer is flex else "7×7×7"
        text = "" if memory is None else f", {memory:.2f} GiB"
        parameters = sum(p.numel() for p in layer.parameters())
        print(f"{name}, {taps} taps, {parameters:,} parameters, {layer_size}³: {results[name]:.1f} ms{text}")
    return results


if __name__ == "__main__":
    main()
