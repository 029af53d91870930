"""Random numbers that depend only on the sample, not on the process, the device or the order of computation.

    bits(seed, epoch, stream, i) = mix(mix(mix(mix(seed) + epoch) + stream) + i)

mix is the finaliser of SplitMix64 after one step of its counter. The integers are the same on every device, in any
order, and for any batch size. An epoch can therefore be resumed in the middle or divided between processes exactly.
"""

from __future__ import annotations

import numpy as np
import torch

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # as signed 64-bit numbers
SHUFFLE, AUGMENT = 1, 2  # streams


def random_bits(seed: int, epoch: int, stream: int, index: torch.Tensor) -> torch.Tensor:
    """62 random bits per index: int64 [n] → int64 [n], non-negative."""
    state = torch.zeros((), dtype=torch.int64)
    for number in (seed, epoch, stream):
        state = _mix(state + _signed(number))
    return _shift(_mix(index + int(state)), 2)  # an int, so that no tensor is copied to the device


def shuffled(count: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The order of samples in an epoch: a permutation of 0 … count − 1, on the CPU."""
    keys = random_bits(seed, epoch, SHUFFLE, torch.arange(count))
    return torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))  # torch.sort is slow if cores are shared


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift. (The operator of torch is an arithmetic shift.)"""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The number modulo 2^64 as a signed 64-bit integer."""
    return (number + 2**63) % 2**64 - 2**63
