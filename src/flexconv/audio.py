"""Sound: mel-frequency cepstral coefficients (MFCCs), and resampling to another rate.

P[f, t] = |Σ_n w[n] x[t·hop + n] e^{−2πi f n / n_fft}|²       Hann window, frames centered, ends reflected
M[m, t] = Σ_f triangle_m(f) P[f, t]                           triangles equally spaced in mel = 2595 log₁₀(1 + f/700)
c[k, t] = √(2/n_mels) Σ_m cos(π k (m + ½) / n_mels) ln(M[m, t] + 10⁻⁶),      k = 0 times 1/√2

y[m] = Σ_n x[n] h(m / new − n / old) / old                    h: sinc at the lower Nyquist frequency, Hann window
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from ._context import exporting
from .errors import ArgumentError, ArgumentTypeError

__all__ = ["N_MFCC", "channelwise_mfcc", "hop_length", "mfcc", "resample"]

LOG_OFFSET = 1e-6
FRAMES_PER_SECOND = 160
N_MFCC = 20
ZERO_CROSSINGS = 32  # of the sinc on each side
ROLLOFF = 0.95  # the cutoff relative to the lower Nyquist frequency, which leaves room for the transition band


def mfcc(
    waves: torch.Tensor, *, rate: int = 16_000, n_mfcc: int = N_MFCC, n_fft: int | None = None, n_mels: int = 64
) -> torch.Tensor:
    """Compute the coefficients [B, n_mfcc, 1 + length // hop] of waves [B, length] on [−1, 1], where hop = n_fft / 2.

    The defaults are those of the paper: one second at 16 kHz becomes 20 channels of 161 frames. The default of
    n_fft, the number of samples in a window, is 2 · round(rate / 160): one second has 161 frames at other rates too.
    """
    if not isinstance(waves, torch.Tensor):
        raise ArgumentTypeError(f"waves must be a tensor; got a {type(waves).__name__}")
    if waves.ndim != 2 or not waves.is_floating_point():
        raise ArgumentError(f"waves must be floats of shape [B, length]; got {waves.dtype} of {list(waves.shape)}")
    n_fft = 2 * hop_length(rate) if n_fft is None else n_fft
    if n_mfcc > n_mels:
        raise ArgumentError(f"n_mfcc must be at most n_mels = {n_mels}; got {n_mfcc}")
    if waves.shape[1] <= n_fft // 2:
        raise ArgumentError(f"waves must be longer than half a window of {n_fft}; got {waves.shape[1]} samples")
    hop = n_fft // 2
    padded = F.pad(waves, (n_fft // 2, n_fft // 2), mode="reflect")
    window = torch.hann_window(n_fft, dtype=waves.dtype, device=waves.device)
    power = _power(padded.unfold(1, n_fft, hop) * window)  # [B, frames, n_fft // 2 + 1]
    mels = power @ mel_triangles(n_fft, n_mels, rate).to(power)
    return ((mels + LOG_OFFSET).log() @ cosines(n_mels, n_mfcc).to(mels)).transpose(1, 2)


def _power(frames: torch.Tensor) -> torch.Tensor:
    """The squared magnitude of the Fourier transform of real frames [..., n] at 0 to n // 2 periods."""
    if not exporting():
        return torch.fft.rfft(frames).abs().square()
    # as matrix products: the transform of onnxruntime loses two digits unless n is a power of two
    n = frames.shape[-1]
    time, frequency = torch.arange(n, dtype=torch.float64), torch.arange(n // 2 + 1, dtype=torch.float64)
    phase = 2 * math.pi / n * torch.remainder(time[:, None] * frequency, n)
    return (frames @ phase.cos().to(frames)).square() + (frames @ phase.sin().to(frames)).square()


def channelwise_mfcc(waves: torch.Tensor, *, rate: int) -> torch.Tensor:
    """Compute the coefficients [B, 20 C, frames] of waves [B, C, length], one channel after the other."""
    return mfcc(waves.flatten(0, 1), rate=rate).unflatten(0, waves.shape[:2]).flatten(1, 2)


def hop_length(rate: int) -> int:
    """Number of samples between two frames: 100 at 16 kHz, as in the paper."""
    if rate < FRAMES_PER_SECOND:
        raise ArgumentError(f"rate must be at least {FRAMES_PER_SECOND} Hz; got {rate}")
    return round(rate / FRAMES_PER_SECOND)


def mel_triangles(n_fft: int, n_mels: int, rate: int) -> torch.Tensor:
    """Weights of the frequency bins in each mel band, float64 [n_fft // 2 + 1, n_mels], with peaks of 1.

    The bands cover 0 to rate / 2.
    """
    # arange, as ONNX has no linspace in float64
    frequencies = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * ((rate // 2) / (n_fft // 2))
    top = 2595 * math.log10(1 + (rate // 2) / 700)
    mels = torch.arange(n_mels + 2, dtype=torch.float64) * (top / (n_mels + 1))
    corners = 700 * (10 ** (mels / 2595) - 1)
    width = corners.diff()
    distance = corners - frequencies[:, None]
    rising, falling = -distance[:, :-2] / width[:-1], distance[:, 2:] / width[1:]
    return torch.minimum(rising, falling).clamp(min=0)


def cosines(n_mels: int, n_mfcc: int) -> torch.Tensor:
    """The orthonormal DCT-II as a float64 matrix [n_mels, n_mfcc]."""
    m, k = torch.arange(n_mels, dtype=torch.float64), torch.arange(n_mfcc, dtype=torch.float64)
    basis = torch.cos(math.pi / n_mels * (m[:, None] + 0.5) * k) * math.sqrt(2 / n_mels)
    basis[:, 0] /= math.sqrt(2)
    return basis


def resample(waves: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """Resample waves [..., length] from `old` to `new` samples per second → [..., ⌈length · new / old⌉].

    The waves are filtered with a windowed sinc, so that frequencies above the lower of the two Nyquist frequencies are
    removed. Samples before the beginning and after the end count as 0.
    """
    if min(old, new) < 1:
        raise ArgumentError(f"sampling rates must be positive; got {old} and {new}")
    if old == new:
        return waves
    if not waves.is_floating_point():
        raise ArgumentTypeError(f"waves must be floats; got {waves.dtype}")
    common = math.gcd(old, new)
    old, new = old // common, new // common
    length = -(-waves.shape[-1] * new // old)
    periods = -(-length // new)  # of `old` inputs and `new` outputs each
    first, weights = _sinc_taps(old, new)
    taps, before = weights.shape[1], -int(first[0])
    padded = F.pad(waves, (before, max(0, periods * old + taps - waves.shape[-1])))
    weights = weights.to(padded)
    phases = [
        padded[..., before + start :].unfold(-1, taps, old)[..., :periods, :] @ weights[phase]
        for phase, start in enumerate(first.tolist())
    ]
    return torch.stack(phases, dim=-1).flatten(-2)[..., :length]


def _sinc_taps(old: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of `new` outputs per `old` inputs: the index of its first input, and its weights [new, taps] float64."""
    cutoff = ROLLOFF * min(1.0, new / old)  # relative to the Nyquist frequency of the input
    half = math.ceil(ZERO_CROSSINGS / cutoff)
    position = torch.arange(new, dtype=torch.float64) * old / new
    first = position.floor().long() + 1 - half
    distance = first[:, None] + torch.arange(2 * half) - position[:, None]
    window = torch.cos(math.pi / 2 * (distance * cutoff / ZERO_CROSSINGS).clamp(-1, 1)).square()
    return first, cutoff * torch.sinc(distance * cutoff) * window
