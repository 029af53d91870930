"""Spectra on a CPU, for `correlation.py` and `depthwise_correlation.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.autograd import forward_ad

from .._context import exporting
from ..ops import Pads


def supported(x: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether a `torch.autograd.Function` on a CPU can be used for these tensors.

    It cannot be used in compiled code, function transforms and forward-mode derivatives. FFTs also reject inputs
    without samples: a convolution may skip all of its samples and see padding only.
    """
    if torch.compiler.is_compiling() or exporting() or 0 in x.shape:
        return False
    if not all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in (x, *others)):
        return False
    return peek_interpreter_stack() is None and forward_ad._current_level < 0


def around(taps: torch.Tensor, pads: Pads, lengths: Sequence[int]) -> torch.Tensor:
    """Kernels [n, *taps] on the whole circle [n, *lengths], moved so that the input needs no padding in front of it."""
    sizes = [(0, length - number) for length, number in zip(lengths, taps.shape[1:], strict=True)]
    padded = F.pad(taps, [n for pair in reversed(sizes) for n in pair])
    return torch.roll(padded, [-left for left, _ in pads], tuple(range(1, taps.ndim)))


def spectrum_shape(lengths: Sequence[int]) -> tuple[int, ...]:
    """The shape of the spectrum of a real signal."""
    return *lengths[:-1], lengths[-1] // 2 + 1


def transform(x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Transform the last axes, padded to these lengths. The rows that padding adds are not transformed."""
    spectrum = torch.fft.rfft(x, lengths[-1], -1)
    for axis in range(-2, -len(lengths) - 1, -1):
        spectrum = torch.fft.fft(spectrum, lengths[axis], axis)
    return spectrum


def transform_back(spectrum: torch.Tensor, lengths: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """Transform back, and return the first `size` samples along each axis."""
    for axis in range(-len(lengths), -1):
        spectrum = torch.fft.ifft(spectrum, lengths[axis], axis).narrow(axis, 0, size[axis])
    return torch.fft.irfft(spectrum, lengths[-1], -1).narrow(-1, 0, size[-1])
