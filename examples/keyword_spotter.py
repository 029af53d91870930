"""Stream audio through a causal network: a keyword spotter that processes a .wav file in chunks of 20 ms.

    python examples/keyword_spotter.py                    # writes whistles.wav, then processes it
    python examples/keyword_spotter.py --wav mine.wav     # mono, 16 bits, 8,000 samples per second

The keywords are whistles in noise: "up" and "down" change their pitch, and "twice" is two short whistles. A steady
whistle is not a keyword. All sounds are generated, and nothing is downloaded. The network consists of causal FlexConvs
on the raw samples. Each layer learns how many past samples it uses. `flexconv.Streaming` runs the network chunk by
chunk, and the logits equal those of the whole file at once.

Training takes about half a minute on one CPU thread. All six keywords are detected within 10 to 50 ms after their end.
A chunk takes about 1 ms, and the logits differ by at most 1e-5.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import FlexConv1d, GaussianMask, Streaming

RATE, CHUNK, HOP = 8000, 160, 40  # samples per second, per chunk (20 ms), per output of the network (5 ms)
NAMES = ("nothing", "up", "down", "twice")


def make_model(width: int = 16) -> nn.Sequential:
    """A causal network: samples [batch, 1, time] → logits [batch, 4, time / 40]."""

    def block(inputs: int, kernel_size: int, stride: int = 1) -> list[nn.Module]:
        mask = GaussianMask(1, sigma=0.3)  # the initial kernel covers about a third of the largest one
        conv = FlexConv1d(inputs, width, kernel_size, stride, padding="causal", bias=False, mask=mask)
        return [conv, nn.BatchNorm1d(width), nn.ReLU()]

    # the first layer sees at most 20 ms of sound, each of the others at most 0.25 s of the layer before
    return nn.Sequential(*block(1, 160, HOP), *block(width, 50), *block(width, 50), nn.Conv1d(width, len(NAMES), 1))


def whistle(kind: int, rng: torch.Generator) -> torch.Tensor:
    """A whistle of 0.3 s → [2400]. Kind 0 is a steady whistle, which is not a keyword."""
    low, high = 300 + 200 * torch.rand((), generator=rng), 900 + 300 * torch.rand((), generator=rng)
    t = torch.arange(int(0.3 * RATE)) / RATE
    start, end = {0: (high, high), 1: (low, high), 2: (high, low), 3: (high, high)}[kind]
    pitch = start + (end - start) * t / 0.3
    sound = torch.sin(2 * math.pi * pitch.cumsum(0) / RATE) * (t / 0.02).clamp(max=1) * ((0.3 - t) / 0.02).clamp(max=1)
    return sound * ((t < 0.1) | (t > 0.2)) if kind == 3 else sound


def recording(kinds: list[int], seconds: float, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with one whistle in each of len(kinds) equal parts → samples [time], labels [time / 40].

    The label of a keyword is set for 0.15 s after its end, because the keyword is not known earlier.
    """
    length = int(seconds * RATE) // CHUNK * CHUNK
    sound, labels = 0.05 * torch.randn(length, generator=rng), torch.zeros(length // HOP, dtype=torch.long)
    part = length // len(kinds)
    for index, kind in enumerate(kinds):
        keyword = whistle(kind, rng) * (0.2 + 0.4 * torch.rand((), generator=rng))
        start = index * part + int(torch.randint(0, part - len(keyword) - RATE // 5, (), generator=rng))
        end = start + len(keyword)
        sound[start:end] += keyword
        labels[end // HOP :][:30] = kind
    return sound.clamp(-1, 1), labels


def train(model: nn.Module, steps: int, rng: torch.Generator) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        kinds = torch.randint(0, len(NAMES), (16, 2), generator=rng).tolist()
        sounds, labels = zip(*(recording(each, 1.4, rng) for each in kinds), strict=True)
        loss = F.cross_entropy(model(torch.stack(sounds)[:, None]), torch.stack(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % max(1, steps // 5) == 0:
            print(f"step {step:3d}   loss {loss.item():.3f}")


def write_wav(path: Path, sound: torch.Tensor) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * 32767).round().to(torch.int16).numpy().tobytes())


def read_chunks(path: Path) -> Iterator[torch.Tensor]:
    """The samples of a .wav file in chunks of 20 ms → [1, 1, 160] each. The last chunk may be shorter."""
    try:
        with wave.open(str(path), "rb") as file:
            found = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
            if found != (1, 16, RATE):
                raise SystemExit(
                    f"{path} must have (channels, bits, samples per second) (1, 16, {RATE}); it has {found}"
                )
            while frames := file.readframes(CHUNK):
                yield torch.frombuffer(bytearray(frames), dtype=torch.int16).float().reshape(1, 1, -1) / 32767
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} cannot be read as a .wav file: {error or 'it ends early'}") from error


def detect(stream: Streaming, path: Path) -> tuple[torch.Tensor, list[float], list[tuple[float, str]]]:
    """Process a file chunk by chunk.

    Returns the logits [1, 4, time / 40], the milliseconds per chunk, and a list of (second, keyword).
    """
    logits, milliseconds, detected, last = [], [], [], 0
    for chunk in read_chunks(path):
        start = time.perf_counter()
        logits.append(stream(chunk))
        milliseconds.append(1e3 * (time.perf_counter() - start))
        score, kind = logits[-1].mean(-1).softmax(1).max(1)
        current = int(kind) if score > 0.6 else 0
        if current and current != last:
            detected.append((len(logits) * CHUNK / RATE, NAMES[current]))
        last = current
    return torch.cat(logits, -1), milliseconds, detected


def main(wav: Path | None = None, steps: int = 600, out: Path = Path("whistles.wav")) -> dict[str, float]:
    """Train and detect keywords. Returns the time per chunk in ms, and the difference from the whole file at once."""
    if wav is not None:
        next(read_chunks(wav), None)  # report a wrong file before the training
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)

    # Train on generated recordings.
    model = make_model()
    train(model, steps, rng)
    sizes = ", ".join(f"{m.extent[0]}" for m in model if isinstance(m, FlexConv1d))
    print(f"learned kernel sizes: {sizes} samples")

    # Write a file to process, unless there is one.
    if wav is None:
        kinds = [1, 0, 3, 2, 1, 3, 0, 2]
        sound, labels = recording(kinds, 0.8 * len(kinds), rng)
        write_wav(out, sound)
        print(f"\nends of the keywords in {out} (it also contains two steady whistles)")
        for index, (before, kind) in enumerate(itertools.pairwise(labels.tolist()), start=1):
            if kind and not before:
                print(f"{index * HOP / RATE:6.2f} s   {NAMES[kind]}")

    # Process it chunk by chunk, and compare with the whole file at once.
    stream = Streaming(model)
    logits, milliseconds, detected = detect(stream, wav or out)
    with torch.no_grad():
        whole = model.eval()(torch.cat(list(read_chunks(wav or out)), -1))
    print("\ndetected")
    for second, name in detected:
        print(f"{second:6.2f} s   {name}")
    latency = torch.tensor(milliseconds)
    results = {
        "median": latency.median().item(),
        "p95": latency.quantile(0.95).item(),
        "difference": (logits - whole).abs().max().item(),
    }
    print(f"\n{len(milliseconds)} chunks of 20 ms")
    print(f"time per chunk: median {results['median']:.2f} ms, 95th percentile {results['p95']:.2f} ms")
    print(f"largest difference from the logits of the whole file: {results['difference']:.1e}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Detect whistles in a .wav file, 20 ms at a time.")
    parser.add_argument("--wav", type=Path, help="the file to process: mono, 16 bits, 8,000 samples per second")
    torch.set_num_threads(1)  # more threads do not help for layers of this size
    main(parser.parse_args().wav)
