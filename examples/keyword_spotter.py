"""A keyword spotter that hears a .wav file in pieces of 20 ms, and answers each before the next one is there.

    python examples/keyword_spotter.py                    # writes whistles.wav, then listens to it
    python examples/keyword_spotter.py --wav mine.wav     # mono, 16 bits, 8,000 samples per second

The keywords are whistles in noise: "up" and "down" slide in pitch, "twice" is two short ones; a long steady whistle
means nothing. All of them are generated, nothing is downloaded. The network is causal FlexConvs on the raw samples:
it hears a tone, its slope and its rhythm by learning how far back each layer looks. `flexconv.Streaming` runs it piece
by piece, and the logits are those of the whole file at once.

Expect half a minute of training on one CPU thread, all six keywords heard 10 to 50 ms after their end, about 1 ms per
chunk, and differences of 1e-5 at most.
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

RATE, CHUNK, HOP = 8000, 160, 40  # samples per second, per chunk (20 ms), per answer (5 ms)
NAMES = ("nothing", "up", "down", "twice")


def spotter(width: int = 16) -> nn.Sequential:
    """Samples [batch, 1, time] → logits [batch, 4, time / 40], each of what was heard until then."""

    def block(inputs: int, reach: int, stride: int = 1) -> list[nn.Module]:
        mask = GaussianMask(1, sigma=0.3)  # starts with a third of its reach
        conv = FlexConv1d(inputs, width, kernel_size=reach, stride=stride, padding="causal", bias=False, mask=mask)
        return [conv, nn.BatchNorm1d(width), nn.ReLU()]

    # at most 20 ms of sound, then at most 0.25 s of answers of the layer before, twice
    return nn.Sequential(*block(1, 160, HOP), *block(width, 50), *block(width, 50), nn.Conv1d(width, len(NAMES), 1))


def whistle(kind: int, draw: torch.Generator) -> torch.Tensor:
    """A whistle of 0.3 s → [2400]; kind 0, a steady one, is no keyword."""
    low, high = 300 + 200 * torch.rand((), generator=draw), 900 + 300 * torch.rand((), generator=draw)
    t = torch.arange(int(0.3 * RATE)) / RATE
    start, end = {0: (high, high), 1: (low, high), 2: (high, low), 3: (high, high)}[kind]
    pitch = start + (end - start) * t / 0.3
    sound = torch.sin(2 * math.pi * pitch.cumsum(0) / RATE) * (t / 0.02).clamp(max=1) * ((0.3 - t) / 0.02).clamp(max=1)
    return sound * ((t < 0.1) | (t > 0.2)) if kind == 3 else sound


def recording(kinds: list[int], seconds: float, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with whistles in it, one in each of len(kinds) equal parts → samples [time], labels [time / 40].

    A keyword's label stands in the 0.15 s from its end on: it cannot be known before.
    """
    length = int(seconds * RATE) // CHUNK * CHUNK
    sound, labels = 0.05 * torch.randn(length, generator=draw), torch.zeros(length // HOP, dtype=torch.long)
    part = length // len(kinds)
    for index, kind in enumerate(kinds):
        heard = whistle(kind, draw) * (0.2 + 0.4 * torch.rand((), generator=draw))
        start = index * part + int(torch.randint(0, part - len(heard) - RATE // 5, (), generator=draw))
        sound[start : start + len(heard)] += heard
        labels[(start + len(heard)) // HOP :][:30] = kind
    return sound.clamp(-1, 1), labels


def train(model: nn.Module, steps: int, draw: torch.Generator) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        kinds = torch.randint(0, len(NAMES), (16, 2), generator=draw).tolist()
        sounds, labels = zip(*(recording(each, 1.4, draw) for each in kinds), strict=True)
        loss = F.cross_entropy(model(torch.stack(sounds)[:, None]), torch.stack(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 5) == 0:
            print(f"step {step:3d}   loss {loss.item():.3f}")


def write_wav(path: Path, sound: torch.Tensor) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound * 32767).round().to(torch.int16).numpy().tobytes())


def chunks(path: Path) -> Iterator[torch.Tensor]:
    """The file in pieces of 20 ms → [1, 1, 160] each, the last one maybe shorter."""
    try:
        with wave.open(str(path), "rb") as file:
            found = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
            if found != (1, 16, RATE):
                raise SystemExit(f"{path} has (channels, bits, samples per second) {found}; wanted (1, 16, {RATE})")
            while piece := file.readframes(CHUNK):
                yield torch.frombuffer(bytearray(piece), dtype=torch.int16).float().reshape(1, 1, -1) / 32767
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} cannot be read as a .wav file: {error or 'it ends early'}") from error


def listen(stream: Streaming, path: Path) -> tuple[torch.Tensor, list[float], list[tuple[float, str]]]:
    """Logits [1, 4, time / 40], milliseconds per chunk, and (second, keyword) of everything heard."""
    logits, milliseconds, heard, last = [], [], [], 0
    for chunk in chunks(path):
        began = time.perf_counter()
        logits.append(stream(chunk))
        milliseconds.append(1e3 * (time.perf_counter() - began))
        score, kind = logits[-1].mean(-1).softmax(1).max(1)
        now = int(kind) if score > 0.6 else 0
        if now and now != last:
            heard.append((len(logits) * CHUNK / RATE, NAMES[now]))
        last = now
    return torch.cat(logits, -1), milliseconds, heard


def main(wav: Path | None = None, steps: int = 600, out: Path = Path("whistles.wav")) -> dict[str, float]:
    """Train, listen; returns the latency per chunk in ms and the difference from the whole file at once."""
    if wav is not None:
        next(chunks(wav), None)  # complain before the training
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    model = spotter()
    train(model, steps, draw)
    print("learned to look back by", ", ".join(f"{m.extent[0]}" for m in model if isinstance(m, FlexConv1d)), "samples")
    if wav is None:
        kinds = [1, 0, 3, 2, 1, 3, 0, 2]
        sound, labels = recording(kinds, 0.8 * len(kinds), draw)
        write_wav(out, sound)
        print(f"\n{out}: these end in it (and two steady whistles, which mean nothing)")
        for index, (before, kind) in enumerate(itertools.pairwise(labels.tolist()), start=1):
            if kind and not before:
                print(f"{index * HOP / RATE:6.2f} s   {NAMES[kind]}")

    stream = Streaming(model)
    logits, milliseconds, heard = listen(stream, wav or out)
    with torch.no_grad():
        whole = model.eval()(torch.cat(list(chunks(wav or out)), -1))
    print("\nheard")
    for second, name in heard:
        print(f"{second:6.2f} s   {name}")
    latency = torch.tensor(milliseconds)
    results = {
        "median": latency.median().item(),
        "p95": latency.quantile(0.95).item(),
        "difference": (logits - whole).abs().max().item(),
    }
    print(
        f"\n{len(milliseconds)} chunks of 20 ms: median {results['median']:.2f} ms, 95 % within {results['p95']:.2f} ms"
    )
    print(f"largest difference from the logits of the whole file: {results['difference']:.1e}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="hear whistles in a .wav file, 20 ms at a time")
    parser.add_argument("--wav", type=Path, help="listen to this file: mono, 16 bits, 8,000 samples per second")
    torch.set_num_threads(1)  # layers as small as these gain nothing from more
    main(parser.parse_args().wav)
