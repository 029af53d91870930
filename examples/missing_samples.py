"""Classify sequences of which most samples are missing.

    python examples/missing_samples.py

Slow waves are told from fast ones. Of every sequence of 96 samples, 70 % are missing at random. Two networks of the
same size are trained: one gets `observed=`, a mask of what was seen; the other gets zeros for missing samples and the
mask as another channel. Both are then tested with 70 % and with 85 % missing, the latter without further training.

The network with `observed=` is right in 100 % of the cases at 70 % missing and in 92 % at 85 %. The other one is right
in 99.8 and 89.5 %. It takes half a minute on one CPU thread.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from flexconv import create_model

LENGTH = 96
WAVES = (3.0, 4.0)  # in a sequence, of the two classes


def sequences(count: int, rate: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Waves [count, 1, length] with NaN for missing samples, the mask of observed ones [count, length], and classes."""
    labels = torch.randint(0, 2, (count,), generator=generator)
    time = torch.arange(LENGTH) / LENGTH
    phase = torch.rand(count, 1, generator=generator)
    x = torch.sin(2 * math.pi * (torch.tensor(WAVES)[labels].unsqueeze(1) * time + phase)) + 0.5
    observed = torch.rand(count, LENGTH, generator=generator) > rate
    observed[:, 0] = True
    return torch.where(observed, x, math.nan).unsqueeze(1), observed, labels


def logits_of(model: torch.nn.Module, x: torch.Tensor, observed: torch.Tensor, *, zeros: bool) -> torch.Tensor:
    if not zeros:
        return model(x, observed=observed)
    return model(torch.cat([x.nan_to_num(), observed.unsqueeze(1).float()], 1))


def train(zeros: bool, steps: int, width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    channels = 2 if zeros else 1
    model = create_model(
        "sepflexnet_tiny", in_channels=channels, num_classes=2, length=LENGTH, width=width, depth=2, causal=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for _ in range(steps):
        x, observed, labels = sequences(32, 0.7, generator)
        loss = F.cross_entropy(logits_of(model, x, observed, zeros=zeros), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(steps: int = 150, width: int = 12) -> dict[str, float]:
    results = {}
    for zeros in (False, True):
        model = train(zeros, steps, width)
        for rate in (0.7, 0.85):
            x, observed, labels = sequences(400, rate, torch.Generator().manual_seed(1))
            with torch.no_grad():
                right = logits_of(model, x, observed, zeros=zeros).argmax(1) == labels
            name = f"{'zeros and a mask channel' if zeros else 'observed='}, {100 * rate:.0f} % missing"
            results[name] = float(right.float().mean())
            print(f"{name}: {100 * results[name]:.1f} % of 400 sequences")
    return results


if __name__ == "__main__":
    main()
