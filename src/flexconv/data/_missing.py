"""Sequences of which time steps are missing, by the protocol of CKConv.

Of every sequence, a fraction of the time steps is dropped at random, rounded down, in all channels together. Statistics
are those of the remaining steps, dropped ones are 0 after standardization, and one more channel tells them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._splits import Samples

SEED = 56789  # of the published code


def drop_steps(parts: Sequence[Samples], rate: float) -> list[Samples]:
    """The samples [N, C, L] with one more channel: 1 for steps that are there, 0 for dropped ones."""
    generator = torch.Generator().manual_seed(SEED)
    result = []
    for part in parts:
        assert isinstance(part.inputs, torch.Tensor)
        longest = part.inputs.shape[-1]
        there = torch.ones(len(part), 1, longest, dtype=part.inputs.dtype)
        lengths = [longest] * len(part) if part.lengths is None else part.lengths.tolist()
        for row, length in zip(there, lengths, strict=True):
            row[:, torch.randperm(length, generator=generator)[: int(rate * length)]] = 0
        result.append(Samples(torch.cat([part.inputs, there], 1), part.labels, part.lengths))
    return result


def observed_statistics(part: Samples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of the steps that are there; 0 and 1 for the last channel."""
    assert isinstance(part.inputs, torch.Tensor)
    there = part.inputs[:, -1] > 0
    if part.lengths is not None:
        there = there & (torch.arange(there.shape[1]) < part.lengths[:, None])
    values = part.inputs[:, :-1].transpose(0, 1)[:, there].double()  # [C, steps]
    std = values.std(1, correction=0)
    return (*values.mean(1).tolist(), 0.0), (*torch.where(std > 0, std, 1.0).tolist(), 1.0)


def fill_dropped(part: Samples, means: Sequence[float]) -> Samples:
    """The samples with dropped steps set to the mean of their channel, so that they are 0 after standardization."""
    assert isinstance(part.inputs, torch.Tensor)
    values = torch.tensor(means[:-1], dtype=part.inputs.dtype)[:, None].expand_as(part.inputs[0, :-1])
    there = part.inputs[:, -1:] > 0
    filled = torch.cat([torch.where(there, part.inputs[:, :-1], values), part.inputs[:, -1:]], 1)
    return Samples(filled, part.labels, part.lengths)
