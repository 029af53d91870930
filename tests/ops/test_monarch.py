"""The equations of Monarch convolutions in float64, how they are cut into chunks, and their plain version."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from flexconv.ops import conv1d, conv2d
from flexconv.ops._cost_model import Problem, count_monarch
from flexconv.ops._geometry import Geometry
from flexconv.ops._monarch import COLUMNS, ROWS, cut_into_chunks

CASES = [  # size, taps, left and right padding
    ((700,), (700,), ((699, 0),)),
    ((4096,), (31,), ((15, 15),)),
    ((9000,), (9000,), ((8999, 0),)),
    ((9001,), (5001,), ((2500, 2500),)),
    ((300,), (5000,), ((4900, 2000),)),
    ((200,), (3,), ((5000, 100),)),
    ((32, 32), (33, 33), ((16, 16), (16, 16))),
    ((56, 56), (31, 31), ((15, 15), (15, 15))),
    ((20, 33), (4, 9), ((0, 3), (7, 2))),
    ((9, 11), (3, 3), ((5, 4), (6, 12))),
    ((70, 64), (21, 31), ((10, 10), (15, 15))),
]


def cut(size, taps, pads):
    """The chunks of a case, and the size of its output."""
    outputs = tuple(n + sum(pair) - k + 1 for n, k, pair in zip(size, taps, pads, strict=True))
    return cut_into_chunks(size, taps, tuple(left for left, _ in pads), outputs), outputs


def transform(x):
    """The transform of chunks [..., L], by its definition."""
    length = x.shape[-1]
    n = torch.arange(length, dtype=torch.float64)
    return torch.fft.fft(x * torch.exp(-0.5j * math.pi / length * n))


def inverse(spectrum):
    """The chunks of a spectrum."""
    length = spectrum.shape[-1]
    n = torch.arange(length, dtype=torch.float64)
    return torch.fft.ifft(spectrum) * torch.exp(0.5j * math.pi / length * n)


def as_sequence(x, pitch):
    """The rows of an image one after the other, `pitch` positions apart."""
    return x if x.ndim == 1 else F.pad(x, (0, pitch - x.shape[1])).flatten()


def in_chunks(x, number, length):
    """A sequence cut into chunks, padded with zeros."""
    return F.pad(x, (0, number * length))[: number * length].view(number, length)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equations(case):
    size, taps, pads = case
    x, w = torch.randn(size, dtype=torch.float64), torch.randn(taps, dtype=torch.float64)
    chunks, outputs = cut(*case)
    spectra = transform(in_chunks(as_sequence(x, chunks.pitch), chunks.inputs, chunks.length))
    kernel = as_sequence(w, chunks.pitch)
    kernel = kernel[: len(kernel) - chunks.pitch + taps[-1]] if chunks.pitch else kernel
    lags = torch.zeros((chunks.lags + 1) * chunks.length, dtype=torch.float64)
    for position, value in enumerate(kernel):  # at the lag `largest_lag` − position
        place = chunks.largest_lag - position - (chunks.first_lag - 1) * chunks.length
        if 0 <= place < len(lags):
            lags[place] = value
    parts = transform(lags.view(-1, chunks.length))
    kernels = parts[1:] + 1j * parts[:-1]
    y = torch.zeros(chunks.outputs, chunks.length, dtype=torch.complex128)
    pairs = 0
    for d in range(chunks.outputs):
        for c in range(chunks.inputs):
            if 0 <= d - c - chunks.first_lag < chunks.lags:
                y[d] += kernels[d - c - chunks.first_lag] * spectra[c]
                pairs += 1
    assert pairs == chunks.pairs
    found = inverse(y).real.flatten()
    if chunks.pitch:
        found = F.pad(found, (0, chunks.pitch * outputs[0]))[: chunks.pitch * outputs[0]]
        found = found.view(outputs[0], chunks.pitch)[:, : outputs[1]]
    else:
        found = found[: outputs[0]]
    padded = F.pad(x[None, None], [amount for pair in reversed(pads) for amount in pair])
    expected = (F.conv1d if len(size) == 1 else F.conv2d)(padded, w[None, None])[0, 0]
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize(("size", "columns"), [(1, 16), (1024, 16), (1025, 32), (4096, 64), (100_000, 64)])
def test_chunks_are_as_short_as_possible(size, columns):
    chunks, _ = cut((size,), (3,), ((2, 0),))
    assert chunks.columns == columns
    assert chunks.inputs == chunks.outputs == -(-size // (ROWS * columns))
    assert chunks.columns in COLUMNS


def test_rows_of_images_are_aligned_if_they_fit():
    assert cut((56, 56), (31, 31), ((15, 15), (15, 15)))[0].pitch == 72
    assert cut((64, 60), (9, 9), ((4, 4), (4, 4)))[0].pitch == 64
    chunks, _ = cut((60, 60), (17, 17), ((8, 8), (8, 8)))
    assert (chunks.pitch, chunks.inputs) == (68, 1)  # with 72, there would be two chunks


def test_counts_of_the_cost_model():
    geometry = Geometry((1,), ((4095, 0),), (1,), 8)
    problem = Problem("cuda", "half", (2, 8, 4096), (8, 1, 4096), geometry)
    operations = count_monarch(problem)
    assert operations is not None
    assert operations.regime == "1D one chunk"
    assert operations.counts == (2 * 8 * 2 * 4096 * 384, 2 * 8 * 4096, 2 * 2 * 8 * 4096, 8 * 4096)
    for other in (
        problem._replace(device="cpu"),
        problem._replace(geometry=geometry._replace(stride=(2,))),
        problem._replace(weight=(8, 8, 4096), geometry=geometry._replace(groups=1)),
    ):
        assert count_monarch(other) is None


def test_monarch_is_the_fft_on_a_cpu():
    x, w = torch.randn(2, 3, 40), torch.randn(3, 1, 9)
    assert torch.equal(conv1d(x, w, groups=3, algorithm="monarch"), conv1d(x, w, groups=3, algorithm="fft"))
    x, w = torch.randn(0, 3, 9, 8), torch.randn(3, 1, 5, 5)
    assert conv2d(x, w, groups=3, algorithm="monarch").shape == (0, 3, 9, 8)
