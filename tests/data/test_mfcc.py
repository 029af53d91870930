"""`mfcc` compared with the formula in float64, and resampling to another rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flexconv import data
from flexconv.audio import resample

fft = pytest.importorskip("scipy.fft")


def mel(f):
    return 2595 * np.log10(1 + f / 700)


def slow_mfcc(wave, *, rate=16_000, n_mfcc=20, n_fft=200, n_mels=64):
    """One wave [length] float64 → [n_mfcc, frames], frame by frame and triangle by triangle."""
    half, hop = n_fft // 2, n_fft // 2
    padded = np.concatenate([wave[half:0:-1], wave, wave[-2 : -half - 2 : -1]])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    corners = 700 * (10 ** (np.linspace(0, mel(rate / 2), n_mels + 2) / 2595) - 1)
    columns = []
    for start in range(0, len(padded) - n_fft + 1, hop):
        power = np.abs(fft.fft(padded[start : start + n_fft] * window)) ** 2
        bands = np.zeros(n_mels)
        for m in range(n_mels):
            low, peak, high = corners[m : m + 3]
            for k in range(half + 1):
                f = k * rate / n_fft
                weight = (f - low) / (peak - low) if f <= peak else (high - f) / (high - peak)
                bands[m] += max(weight, 0) * power[k]
        columns.append(fft.dct(np.log(bands + 1e-6), type=2, norm="ortho")[:n_mfcc])
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("length", "options"), [(1600, {}), (1237, {"n_mfcc": 13, "n_fft": 128, "n_mels": 30})])
def test_mfcc_equals_the_formula(length, options):
    draw = np.random.default_rng(0)
    waves = draw.standard_normal((2, length)) * np.array([[0.1], [0.5]])
    twin = np.stack([slow_mfcc(wave, **options) for wave in waves])
    exact = data.mfcc(torch.from_numpy(waves), **options)
    assert exact.shape == (2, options.get("n_mfcc", 20), 1 + length // (options.get("n_fft", 200) // 2))
    assert np.abs(exact.numpy() - twin).max() < 1e-9
    single = data.mfcc(torch.from_numpy(waves).float(), **options)
    assert np.abs(single.numpy() - twin).max() < 1e-2 * np.abs(twin).max()


def test_one_second_has_161_frames_and_silence_is_finite():
    coefficients = data.mfcc(torch.zeros(1, 16_000))
    assert coefficients.shape == (1, 20, 161)
    assert float(coefficients[0, 0, 0]) == pytest.approx(np.log(1e-6) * 8, rel=1e-5)  # √64 · ln 10⁻⁶


def test_rejects_invalid_arguments():
    with pytest.raises(ValueError, match=r"torch.int16 .*\[1, 16000\]"):
        data.mfcc(torch.zeros(1, 16_000, dtype=torch.int16))
    with pytest.raises(ValueError, match=r"n_mels = 8; got 20"):
        data.mfcc(torch.zeros(1, 500), n_mels=8)
    with pytest.raises(ValueError, match=r"200; got 100"):
        data.mfcc(torch.zeros(1, 100))


# --- resampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(16_000, 8_000), (8_000, 16_000), (4_410, 1_600), (2_205, 1_601)])
def test_resampling_keeps_tones_below_both_nyquist_frequencies(old, new):
    frequency = 0.35 * min(old, new)
    time, expected_time = (torch.arange(rate, dtype=torch.float64) / rate for rate in (old, new))
    found = resample(torch.sin(2 * math.pi * frequency * time)[None], old, new)
    assert found.shape == (1, new)
    inner = slice(new // 10, -new // 10)  # the ends lack samples
    expected = torch.sin(2 * math.pi * frequency * expected_time)
    torch.testing.assert_close(found[0, inner], expected[inner], atol=2e-4, rtol=0)


def test_resampling_removes_what_would_alias():
    time = torch.arange(16_000) / 16_000
    found = resample(torch.sin(2 * math.pi * 4_400 * time), 16_000, 8_000)
    assert found[800:-800].abs().max() < 1e-3


def test_resampling_rejects_wrong_arguments():
    waves = torch.zeros(1, 10)
    assert resample(waves, 100, 100) is waves
    with pytest.raises(ValueError, match=r"positive.*0"):
        resample(waves, 0, 100)
    with pytest.raises(TypeError, match="int16"):
        resample(waves.short(), 50, 100)
