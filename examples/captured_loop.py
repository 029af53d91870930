"""A training loop of one's own that runs as a replayed CUDA graph on a GPU, and as it is on a CPU.

    python examples/captured_loop.py

A small network of FlexConvs and plain layers learns to tell how coarse the texture of a picture is. On a GPU,
`flexconv.capture` records everything from `zero_grad` to `optimizer.step()` once. After that, the host starts a step
with a single call. The last batch of each epoch is smaller and runs without the graph; nothing has to be done for it.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

import flexconv
from flexconv import FlexConv2d


def textures(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of noise, blurred by 1 to 7 pixels → [count, 1, 24, 24], and the number of the blur → [count]."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=draw)
    x = torch.randn(count, 1, 30, 30, generator=draw)
    blurred = torch.stack([F.avg_pool2d(x, 2 * n + 1, stride=1, padding=n)[..., 3:27, 3:27] for n in range(4)])
    x = blurred[labels, torch.arange(count)]
    return x / x.std((1, 2, 3), keepdim=True), labels


def main(epochs: int = 6, rows: int = 1000) -> float:
    """Train the network and return its accuracy on new pictures."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        FlexConv2d(1, 8, kernel_size=15, bias=False, parametrization="scaled"),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        FlexConv2d(8, 16, kernel_size=11, bias=False, parametrization="scaled"),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, y = textures(rows, seed=1)
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True, pin_memory=device == "cuda"
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))

    # The step is an ordinary function. It must not read values of tensors, so it returns the loss as a tensor.
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    # Batches may be in host memory. On a GPU, compile=True would make longer runs faster still, after about a minute.
    step = flexconv.capture(train_step, model, optimizer, compile=False)

    test_x, test_y = (tensor.to(device) for tensor in textures(400, seed=2))
    accuracy = 0.0
    print("epoch   loss    accuracy  sizes          ms/step")
    for epoch in range(epochs):
        began, losses = time.perf_counter(), []
        for batch in batches:
            losses.append(step(*batch))
            scheduler.step()  # outside of the step
        loss = torch.stack(losses).mean().item()  # waits for the device once per epoch
        ms = 1e3 * (time.perf_counter() - began) / len(batches)
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        model.train()
        sizes = ", ".join("×".join(map(str, size)) for size in flexconv.refresh_extents(model).values())
        print(f"{epoch + 1:5d}   {loss:.4f}  {accuracy:8.1%}  {sizes:13s}  {ms:7.1f}")
    how = f"captured {step.captures} times" if step.captured else "without a graph"
    print(f"\nThe steps ran on {device}, {how}.")
    return accuracy


if __name__ == "__main__":
    main()
