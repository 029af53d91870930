"""Stratified hold-out: the same share of every class."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch

from ..errors import ArgumentError


def stratified_holdout(labels: torch.Tensor, share: float, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted indices of the samples to keep and to hold out; ⌈share · N⌉ samples are held out.

    Each class contributes its share, rounded up or down. The result equals that of scikit-learn's
    `train_test_split(stratify=labels, random_state=seed)`, so published splits that were made with it are reproduced.
    """
    if not isinstance(share, Real) or not 0 < share < 1:
        raise ArgumentError(f"the share to hold out must be between 0 and 1; got {share}")
    _, classes, counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    held = math.ceil(share * len(classes))
    kept = len(classes) - held
    if counts.min() < 2 or held < len(counts) or kept < len(counts):
        raise ArgumentError(
            f"holding out {share} of {len(classes)} samples in {len(counts)} classes leaves a class without samples in "
            f"one of the two sets (the smallest class has {counts.min()})"
        )
    random = np.random.RandomState(seed)
    kept_of = _allot(counts, kept, random)
    _allot(counts - kept_of, held, random)  # the result is known, but scikit-learn draws random numbers here
    held_out = np.zeros(len(classes), dtype=bool)
    members_of = np.split(np.argsort(classes, kind="mergesort"), np.cumsum(counts)[:-1])
    for members, k in zip(members_of, kept_of, strict=True):
        held_out[members[random.permutation(len(members))[k:]]] = True
    return torch.from_numpy(np.flatnonzero(~held_out)), torch.from_numpy(np.flatnonzero(held_out))


def _allot(counts: np.ndarray, total: int, random: np.random.RandomState) -> np.ndarray:
    """Divide `total` in proportion to `counts` by the largest remainder method; ties are broken at random."""
    exact = counts / counts.sum() * total
    allotted = np.floor(exact)
    missing = int(total - allotted.sum())
    remainder = exact - allotted
    for value in np.sort(np.unique(remainder))[::-1]:
        if missing == 0:
            break
        (tied,) = np.nonzero(remainder == value)
        chosen = random.choice(tied, size=min(len(tied), missing), replace=False)
        allotted[chosen] += 1
        missing -= len(chosen)
    return allotted.astype(np.int64)
