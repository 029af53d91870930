"""Lengths of FFTs: fast ones, and long enough that nothing wraps around into an output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexconv.ops._fft import circular_lengths, fast_length


def is_fast(n):
    if n == 1:
        return True
    if n % 2:
        return False
    for prime in (2, 3, 5, 7):
        while n % prime == 0:
            n //= prime
    return n == 1


def test_fast_length_is_the_smallest_fast_length():
    fast = [n for n in range(1, 2500) if is_fast(n)]
    for minimum in range(1, 2001):
        assert fast_length(minimum) == next(n for n in fast if n >= minimum)


@given(minimum=st.integers(1, 10**9))
def test_fast_length_is_fast_and_at_least_the_minimum(minimum):
    length = fast_length(minimum)
    assert length >= minimum
    assert is_fast(length)
    assert length <= 1.1 * minimum + 1


@pytest.mark.parametrize(
    ("length", "taps", "pads", "dilation", "expected"),
    [
        (32, 33, (16, 16), 1, 48),  # not 64, the length of a full linear convolution
        (32, 17, (16, 16), 2, 48),
        (31, 16, (15, 0), 1, 48),
        (31, 16, (0, 15), 1, 48),
        (7, 1, (0, 0), 1, 8),
        (1, 1, (0, 0), 1, 1),
        (4, 31, (15, 15), 1, 32),  # the kernel must fit
    ],
)
def test_circular_length_covers_input_larger_padding_and_kernel(length, taps, pads, dilation, expected):
    assert circular_lengths((length,), (taps,), (pads,), (dilation,)) == (expected,)
