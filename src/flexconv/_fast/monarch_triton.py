"""Triton kernels for depthwise convolutions of sequences and images. `ops/_monarch.py` has the equations.

A chunk of ROWS · COLUMNS samples is a matrix, and its transform is two products with constant matrices and a product
of elements in between. The operands of the products are float16 for inputs of half precision, which is more accurate
than bfloat16, and their sums are float32. So that float16 does not overflow, chunks and spectra of kernels are divided
by their largest magnitude, which is called their scale. Every program computes the chunks of one channel for several
samples of the batch. Sums have a fixed order.

`twiddles` and `twiddles_too` are the same matrices. The compiler would keep them in registers between two uses of the
same name, and those registers are needed by other numbers.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl

ROWS = tl.constexpr(64)
TINY = tl.constexpr(1e-30)

# Neither another length nor another number of taps must cause another compilation.
COUNTS = (
    "batch", "channels", "height", "units", "height_y", "units_y", "pitch_units", "tap_rows", "tap_columns", "pitch",
    "left", "chunks", "chunks_in", "chunks_out", "first_lag", "lags", "first_chunk", "samples", "splits",
)  # fmt: skip


@triton.jit
def _matrix(rows: tl.constexpr, columns: tl.constexpr):
    """Offsets of the elements of a contiguous matrix."""
    return tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]


@triton.jit
def _pair(matrices, rows: tl.constexpr, columns: tl.constexpr):
    """The real and the imaginary matrix, which lie one after the other."""
    place = matrices + _matrix(rows, columns)
    return tl.load(place), tl.load(place + rows * columns)


@triton.jit
def _locate(n, height, width, pitch, IMAGE: tl.constexpr):
    """Offsets in memory of the positions n ≥ 0 of a sequence, and which of them exist.

    Images are sequences whose rows start `pitch` positions apart. A tensor has `height` rows of `width` numbers.
    """
    if IMAGE:
        row = n // pitch
        column = n - row * pitch
        place, inside = row * width + column, (row < height) & (column < width)
    else:
        place, inside = n, n < width
    return place, inside


@triton.jit
def _largest(values):
    """The largest magnitude, or a tiny number if all are zero."""
    return tl.maximum(tl.max(tl.max(tl.abs(values), 1), 0), TINY)


@triton.jit
def _transform(x, f_r, f_i, twiddles, g_r, g_i, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """The spectrum of a real chunk whose magnitudes are at most 1."""
    x = x.to(f_r.dtype)
    a_r = tl.dot(f_r, x, input_precision=PRECISION)
    a_i = tl.dot(f_i, x, input_precision=PRECISION)
    return _transform_rows(a_r, a_i, twiddles, g_r, g_i, COLUMNS, PRECISION)


@triton.jit
def _transform_rows(a_r, a_i, twiddles, g_r, g_i, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """What follows the product with F."""
    w_r, w_i = _pair(twiddles, ROWS, COLUMNS)
    b_r = (a_r * w_r - a_i * w_i).to(g_r.dtype)
    b_i = (a_r * w_i + a_i * w_r).to(g_r.dtype)
    r = tl.dot(b_r, g_r, input_precision=PRECISION)
    r = tl.dot(-b_i, g_i, r, input_precision=PRECISION)
    i = tl.dot(b_r, g_i, input_precision=PRECISION)
    i = tl.dot(b_i, g_r, i, input_precision=PRECISION)
    return r, i


@triton.jit
def _inverse(r, i, ft_r, ft_i, twiddles, g_r, g_i, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):
    """The real part of the chunk with this spectrum, whose magnitudes are at most ROWS · COLUMNS."""
    r = r.to(ft_r.dtype)
    i = i.to(ft_r.dtype)
    b_r = tl.dot(r, g_r, input_precision=PRECISION)
    b_r = tl.dot(i, g_i, b_r, input_precision=PRECISION)
    b_i = tl.dot(i, g_r, input_precision=PRECISION)
    b_i = tl.dot(-r, g_i, b_i, input_precision=PRECISION)
    w_r, w_i = _pair(twiddles, ROWS, COLUMNS)
    w_r, w_i = w_r * (1.0 / COLUMNS), w_i * (1.0 / COLUMNS)  # a power of two
    c_r = (b_r * w_r + b_i * w_i).to(ft_r.dtype)
    c_i = (b_i * w_r - b_r * w_i).to(ft_r.dtype)
    y = tl.dot(ft_r, c_r, input_precision=PRECISION)
    y = tl.dot(ft_i, c_i, y, input_precision=PRECISION)
    return y * (1.0 / ROWS)


@triton.jit(do_not_specialize=COUNTS)
def transform(
    x, spectra, scales, f, twiddles, g, batch, channels, height, units, pitch_units, chunks, samples,
    IMAGE: tl.constexpr, UNIT: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [batch, channels, *size] → spectra [channels, batch, chunks, 2, ROWS, COLUMNS].

    They are divided by scales [channels, batch, chunks].
    """
    channel = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    first = tl.program_id(0) // chunks * samples
    length: tl.constexpr = ROWS * COLUMNS
    f_r, f_i = _pair(f, ROWS, ROWS)
    g_r, g_i = _pair(g, COLUMNS, COLUMNS)
    place = _matrix(ROWS, COLUMNS)
    at, inside = _locate(chunk * length + place, height, units * UNIT, pitch_units * UNIT, IMAGE)
    size = height * (units * UNIT)
    for sample in range(first, tl.minimum(first + samples, batch)):
        values = tl.load(x + (sample * channels + channel) * size + at, mask=inside, other=0.0).to(tl.float32)
        scale = _largest(values)
        r, i = _transform(values * (1.0 / scale), f_r, f_i, twiddles, g_r, g_i, COLUMNS, PRECISION)
        number = (channel * batch + sample) * chunks + chunk
        to = spectra + number * (2 * length) + place
        tl.store(to, r.to(spectra.dtype.element_ty))
        tl.store(to + length, i.to(spectra.dtype.element_ty))
        tl.store(scales + number, scale)


@triton.jit(do_not_specialize=COUNTS)
def transform_kernel(
    weight, spectra, scales, f, twiddles, g, tap_rows, tap_columns, pitch, left, first_lag, lags,
    IMAGE: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """weight [channels, *taps] → K [channels, lags, 2, ROWS, COLUMNS], divided by scales [channels, lags]."""
    channel, number = tl.program_id(1).to(tl.int64), tl.program_id(0)
    length: tl.constexpr = ROWS * COLUMNS
    f_r, f_i = _pair(f, ROWS, ROWS)
    g_r, g_i = _pair(g, COLUMNS, COLUMNS)
    place = _matrix(ROWS, COLUMNS)
    tap = left - (first_lag + number) * length - place
    weight += channel * (tap_rows * tap_columns)
    at, inside = _locate(tap, tap_rows, tap_columns, pitch, IMAGE)
    here = tl.load(weight + at, mask=inside & (tap >= 0), other=0.0).to(tl.float32)
    tap += length
    at, inside = _locate(tap, tap_rows, tap_columns, pitch, IMAGE)
    before = tl.load(weight + at, mask=inside & (tap >= 0), other=0.0).to(tl.float32)
    scale = tl.maximum(_largest(here), _largest(before))
    here, before = (here * (1.0 / scale)).to(f_r.dtype), (before * (1.0 / scale)).to(f_r.dtype)
    # P_e + i P_{e − 1} is the transform of a complex chunk
    a_r = tl.dot(f_r, here, input_precision=PRECISION)
    a_r = tl.dot(f_i, -before, a_r, input_precision=PRECISION)
    a_i = tl.dot(f_i, here, input_precision=PRECISION)
    a_i = tl.dot(f_r, before, a_i, input_precision=PRECISION)
    r, i = _transform_rows(a_r, a_i, twiddles, g_r, g_i, COLUMNS, PRECISION)
    largest = tl.maximum(_largest(r), _largest(i))
    to = spectra + (channel * lags + number) * (2 * length) + place
    tl.store(to, (r * (1.0 / largest)).to(spectra.dtype.element_ty))
    tl.store(to + length, (i * (1.0 / largest)).to(spectra.dtype.element_ty))
    tl.store(scales + channel * lags + number, scale * largest)


@triton.jit(do_not_specialize=COUNTS)
def combine(
    spectra, scales, kernels, kernel_scales, bias, y, ft, twiddles, g, batch, channels, height, units, pitch_units,
    chunks_in, chunks_out, first_lag, lags, samples, IMAGE: tl.constexpr, UNIT: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, ADJOINT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """y [batch, channels, *size]: inverse transforms of Σ_c K_{d − c} X_c, for output chunk d.

    ADJOINT: of Σ_c conj(K_{c − d}) X_c.
    """
    channel = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0) % chunks_out
    first = tl.program_id(0) // chunks_out * samples
    length: tl.constexpr = ROWS * COLUMNS
    ft_r, ft_i = _pair(ft, ROWS, ROWS)
    g_r, g_i = _pair(g, COLUMNS, COLUMNS)
    place = _matrix(ROWS, COLUMNS)
    at, inside = _locate(chunk * length + place, height, units * UNIT, pitch_units * UNIT, IMAGE)
    size = height * (units * UNIT)
    if ADJOINT:
        begin, end = chunk + first_lag, chunk + first_lag + lags
    else:
        begin, end = chunk - first_lag - lags + 1, chunk - first_lag + 1
    begin, end = tl.maximum(begin, 0), tl.minimum(end, chunks_in)
    for sample in range(first, tl.minimum(first + samples, batch)):
        numbers = (channel * batch + sample) * chunks_in
        total_scale = TINY
        for other in range(begin, end):
            lag = (other - chunk if ADJOINT else chunk - other) - first_lag
            total_scale += tl.load(scales + numbers + other) * tl.load(kernel_scales + channel * lags + lag)
        sum_r = tl.zeros((ROWS, COLUMNS), tl.float32)
        sum_i = tl.zeros((ROWS, COLUMNS), tl.float32)
        for other in range(begin, end):
            lag = (other - chunk if ADJOINT else chunk - other) - first_lag
            scale = tl.load(scales + numbers + other) * tl.load(kernel_scales + channel * lags + lag) / total_scale
            r, i = _pair(spectra + (numbers + other) * (2 * length), ROWS, COLUMNS)
            r, i = r.to(tl.float32) * scale, i.to(tl.float32) * scale
            k_r, k_i = _pair(kernels + (channel * lags + lag) * (2 * length), ROWS, COLUMNS)
            if ADJOINT:
                k_i = -k_i
            sum_r += k_r * r - k_i * i
            sum_i += k_r * i + k_i * r
        total = _inverse(sum_r, sum_i, ft_r, ft_i, twiddles, g_r, g_i, COLUMNS, PRECISION) * total_scale
        if BIAS:
            total += tl.load(bias + channel).to(tl.float32)
        tl.store(y + (sample * channels + channel) * size + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def correlate(
    x, x_scales, grad, grad_scales, sums, batch, channels, chunks_in, chunks_out, first_lag, lags, samples,
    LENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums [splits, channels, lags, 2, LENGTH]: Σ conj(X_c) G_d over the samples of a split and all d − c = lag."""
    lag, channel = tl.program_id(0) % lags, tl.program_id(1).to(tl.int64)
    block, split = tl.program_id(0) // lags, tl.program_id(2)
    place = block * BLOCK + tl.arange(0, BLOCK)
    offset = first_lag + lag
    begin, end = tl.maximum(offset, 0), tl.minimum(chunks_in + offset, chunks_out)
    sum_r, sum_i = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    first = split * samples
    for sample in range(first, tl.minimum(first + samples, batch)):
        for chunk in range(begin, end):
            x_number = (channel * batch + sample) * chunks_in + chunk - offset
            number = (channel * batch + sample) * chunks_out + chunk
            scale = tl.load(x_scales + x_number) * tl.load(grad_scales + number)
            x_r = tl.load(x + x_number * (2 * LENGTH) + place).to(tl.float32) * scale
            x_i = tl.load(x + x_number * (2 * LENGTH) + LENGTH + place).to(tl.float32) * scale
            g_r = tl.load(grad + number * (2 * LENGTH) + place).to(tl.float32)
            g_i = tl.load(grad + number * (2 * LENGTH) + LENGTH + place).to(tl.float32)
            sum_r += x_r * g_r + x_i * g_i
            sum_i += x_r * g_i - x_i * g_r
    to = sums + ((split * channels + channel) * lags + lag) * (2 * LENGTH) + place
    tl.store(to, sum_r)
    tl.store(to + LENGTH, sum_i)


@triton.jit(do_not_specialize=COUNTS)
def kernel_gradient(
    sums, grad_weight, ft, twiddles, g, channels, tap_rows, tap_columns, pitch, left, first_lag, lags,
    first_chunk, splits, IMAGE: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """grad_weight [channels, *taps]: inverse transforms of D_c − i D_{c + 1}, where D is the sum over all splits."""
    channel, chunk = tl.program_id(1).to(tl.int64), first_chunk + tl.program_id(0)
    length: tl.constexpr = ROWS * COLUMNS
    ft_r, ft_i = _pair(ft, ROWS, ROWS)
    g_r, g_i = _pair(g, COLUMNS, COLUMNS)
    place = _matrix(ROWS, COLUMNS)
    r = tl.zeros((ROWS, COLUMNS), tl.float32)
    i = tl.zeros((ROWS, COLUMNS), tl.float32)
    lag = chunk - first_lag
    for split in range(splits):
        base = sums + ((split * channels + channel) * lags + lag) * (2 * length) + place
        if (lag >= 0) & (lag < lags):
            r += tl.load(base)
            i += tl.load(base + length)
        if (lag >= -1) & (lag < lags - 1):
            r += tl.load(base + 3 * length)
            i -= tl.load(base + 2 * length)
    largest = tl.maximum(_largest(r), _largest(i))
    r, i = r * (1.0 / largest), i * (1.0 / largest)
    found = _inverse(r, i, ft_r, ft_i, twiddles, g_r, g_i, COLUMNS, PRECISION) * largest
    tap = left - chunk * length - place
    at, inside = _locate(tap, tap_rows, tap_columns, pitch, IMAGE)
    to = grad_weight + channel * (tap_rows * tap_columns) + at
    tl.store(to, found.to(grad_weight.dtype.element_ty), mask=inside & (tap >= 0))


@triton.jit(do_not_specialize=COUNTS)
def convolve_chunk(
    x, kernels, kernel_scales, bias, y, f, ft, twiddles, g, twiddles_too, batch, channels, height, units,
    height_y, units_y, pitch_units, samples, IMAGE: tl.constexpr, UNIT: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, ADJOINT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """`transform` and `combine` in one, for sequences of one chunk: no spectrum is written to memory."""
    channel = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * samples
    length: tl.constexpr = ROWS * COLUMNS
    size, size_y = height * (units * UNIT), height_y * (units_y * UNIT)
    f_r, f_i = _pair(f, ROWS, ROWS)
    ft_r, ft_i = _pair(ft, ROWS, ROWS)
    g_r, g_i = _pair(g, COLUMNS, COLUMNS)
    place = _matrix(ROWS, COLUMNS)
    at, inside = _locate(place, height, units * UNIT, pitch_units * UNIT, IMAGE)
    at_y, inside_y = _locate(place, height_y, units_y * UNIT, pitch_units * UNIT, IMAGE)
    kernels += channel * (2 * length)
    kernel_scale = tl.load(kernel_scales + channel)
    for sample in range(first, tl.minimum(first + samples, batch)):
        values = tl.load(x + (sample * channels + channel) * size + at, mask=inside, other=0.0).to(tl.float32)
        scale = _largest(values)
        r, i = _transform(values * (1.0 / scale), f_r, f_i, twiddles, g_r, g_i, COLUMNS, PRECISION)
        k_r, k_i = _pair(kernels, ROWS, COLUMNS)
        if ADJOINT:
            k_i = -k_i
        total = _inverse(
            k_r * r - k_i * i, k_r * i + k_i * r, ft_r, ft_i, twiddles_too, g_r, g_i, COLUMNS, PRECISION
        ) * (scale * kernel_scale)  # fmt: skip
        if BIAS:
            total += tl.load(bias + channel).to(tl.float32)
        tl.store(y + (sample * channels + channel) * size_y + at_y, total.to(y.dtype.element_ty), mask=inside_y)


@triton.jit(do_not_specialize=COUNTS)
def differentiate_chunk(
    x, grad, kernels, kernel_scales, grad_x, sums, f, ft, twiddles, g, twiddles_too, batch, channels, height, units,
    height_y, units_y, pitch_units, samples, IMAGE: tl.constexpr, UNIT: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, NEEDS_X: tl.constexpr,
):  # fmt: skip
    """Both gradients for sequences of one chunk: grad_x, and the sums of `correlate`."""
    channel, split = tl.program_id(1).to(tl.int64), tl.program_id(0)
    first = split * samples
    length: tl.constexpr = ROWS * COLUMNS
    size, size_y = height * (units * UNIT), height_y * (units_y * UNIT)
    f_r, f_i = _pair(f, ROWS, ROWS)
    ft_r, ft_i = _pair(ft, ROWS, ROWS)
    g_r, g_i = _pair(g, COLUMNS, COLUMNS)
    place = _matrix(ROWS, COLUMNS)
    at, inside = _locate(place, height, units * UNIT, pitch_units * UNIT, IMAGE)
    at_y, inside_y = _locate(place, height_y, units_y * UNIT, pitch_units * UNIT, IMAGE)
    kernels += channel * (2 * length)
    sum_r = tl.zeros((ROWS, COLUMNS), tl.float32)
    sum_i = tl.zeros((ROWS, COLUMNS), tl.float32)
    for sample in range(first, tl.minimum(first + samples, batch)):
        row = sample * channels + channel
        values = tl.load(grad + row * size_y + at_y, mask=inside_y, other=0.0).to(tl.float32)
        scale = _largest(values)
        r, i = _transform(values * (1.0 / scale), f_r, f_i, twiddles, g_r, g_i, COLUMNS, PRECISION)
        r, i = r.to(f_r.dtype), i.to(f_r.dtype)  # to need fewer registers
        if NEEDS_X:
            k_r, k_i = _pair(kernels, ROWS, COLUMNS)
            found = _inverse(
                k_r.to(tl.float32) * r + k_i.to(tl.float32) * i, k_r.to(tl.float32) * i - k_i.to(tl.float32) * r,
                ft_r, ft_i, twiddles_too, g_r, g_i, COLUMNS, PRECISION,
            ) * (scale * tl.load(kernel_scales + channel))  # fmt: skip
            tl.store(grad_x + row * size + at, found.to(grad_x.dtype.element_ty), mask=inside)
        values = tl.load(x + row * size + at, mask=inside, other=0.0).to(tl.float32)
        scale_x = _largest(values)
        x_r, x_i = _transform(values * (1.0 / scale_x), f_r, f_i, twiddles, g_r, g_i, COLUMNS, PRECISION)
        x_r, x_i = x_r * (scale * scale_x), x_i * (scale * scale_x)
        sum_r += x_r * r + x_i * i
        sum_i += x_r * i - x_i * r
    to = sums + (split * channels + channel) * (2 * length) + place
    tl.store(to, sum_r)
    tl.store(to + length, sum_i)
