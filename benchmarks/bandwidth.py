"""The bandwidth of a trained network, and its accuracy at other resolutions.

    python -m benchmarks.bandwidth RUN [--root DATA] [--split validation] [--device cuda] [--batches 50] [--json FILE]

RUN is a run folder or the name of a trained network. Prints two tables as Markdown: for every FlexConv the measured
energy beyond the Nyquist frequency of its grid and the part of it that costs accuracy (`flexconv.spectrum`), and the
accuracy of the network at 0.5, 0.75, 1, 1.5 and 2 times its resolution, resampled by `at_resolution`, without and with
batch norms recalibrated on training batches. Inputs are resized with a filter against aliasing; those of which samples
are missing cannot be resized. Use the validation part while you still choose something, and `--split test` once for the
final network.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from flexconv import at_resolution, recalibrate_batchnorm
from flexconv.cli._model import load_with_data
from flexconv.data import DataSplits, DeviceBatches, Split
from flexconv.spectrum import alias_report, energy_beyond_nyquist, folded_energy
from flexconv.summary import summarize

SCALES = (0.5, 0.75, 1.0, 1.5, 2.0)
MUCH = 0.01  # the largest energy beyond the Nyquist frequency that a network of this family should have
BATCHES = 50

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def layer_rows(model: nn.Module) -> list[dict[str, Any]]:
    """Size, bound and measured energy of every FlexConv."""
    layers = dict(model.named_modules())
    rows = []
    for summary in summarize(model):
        layer: Any = layers.get(summary.name, model)
        bound = None if summary.frequency is None else max(map(_ratio, summary.frequency, summary.nyquist))
        row = {"layer": summary.name, "extent": list(summary.extent), "grid": list(summary.grid), "bound": bound}
        row |= {"beyond": energy_beyond_nyquist(layer), "folded": folded_energy(layer)}
        rows.append(row)
    return rows


def _ratio(frequency: float, limit: float) -> float:
    return frequency / limit


def resize(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Series [batch, C, L] or images [batch, C, H, W] with `scale` times as many samples per axis."""
    if scale == 1:
        return x
    images = x.unsqueeze(2) if x.ndim == 3 else x
    height, width = (size if size == 1 else round(scale * size) for size in images.shape[2:])
    resized = F.interpolate(images.float(), (height, width), mode="bicubic", antialias=True).to(x.dtype)
    return resized.squeeze(2) if x.ndim == 3 else resized


def resized_batches(batches: DeviceBatches, scale: float) -> Iterator[Batch]:
    for inputs, labels, lengths in batches:
        longer = None if lengths is None else (lengths * scale).round().long().clamp(min=1)
        yield resize(inputs, scale), labels, longer


@torch.no_grad()
def accuracy(model: nn.Module, batches: DeviceBatches, scale: float) -> float:
    model.eval()
    right = total = 0
    for inputs, labels, lengths in resized_batches(batches, scale):
        logits = model(inputs) if lengths is None else model(inputs, lengths)
        right += int((logits.argmax(1) == labels).sum())
        total += len(labels)
    return right / max(total, 1)


def resolution_rows(
    model: nn.Module,
    split: Split,
    training: Split,
    *,
    scales: Sequence[float] = SCALES,
    batch_size: int = 100,
    augment: str | None = None,
    device: str = "cpu",
    batches: int = BATCHES,
) -> list[dict[str, Any]]:
    """Accuracy at every scale, as it is and with recalibrated batch norms (None for series of different lengths)."""
    model = model.to(device).eval()
    tested = DeviceBatches(split, batch_size, device=torch.device(device))
    measured = DeviceBatches(training, batch_size, shuffle=True, augment=augment, device=torch.device(device))
    rows = []
    for scale in scales:
        resampled = model if scale == 1 else at_resolution(model, scale)
        row: dict[str, Any] = {
            "scale": scale,
            "total": alias_report(model, scale).total,
            "accuracy": accuracy(resampled, tested, scale),
        }
        row["recalibrated"] = None
        if training.lengths is None:
            again = at_resolution(resampled, 1.0)  # a copy
            recalibrate_batchnorm(again, itertools.islice((b[0] for b in resized_batches(measured, scale)), batches))
            row["recalibrated"] = accuracy(again, tested, scale)
        rows.append(row)
    return rows


def show(layers: Sequence[dict[str, Any]], resolutions: Sequence[dict[str, Any]]) -> None:
    print("| layer | size | grid | bound / Nyquist | energy beyond Nyquist | folded |\n|---|---|---|---|---|---|")
    for row in layers:
        size, grid = ("×".join(map(str, row[name])) for name in ("extent", "grid"))
        bound = "–" if row["bound"] is None else f"{row['bound']:.2f}"
        shares = " | ".join(f"{100 * row[name]:.2f} %" for name in ("beyond", "folded"))
        print(f"| {row['layer']} | {size} | {grid} | {bound} | {shares} |")
    worst = max(row["beyond"] for row in layers)
    print(f"\nlargest energy beyond Nyquist: {100 * worst:.2f} % ({'at most' if worst <= MUCH else 'more than'} 1 %)\n")
    print("| resolution | folded energy of all layers | accuracy | recalibrated |\n|---|---|---|---|")
    for row in resolutions:
        again = "–" if row["recalibrated"] is None else f"{100 * row['recalibrated']:.2f} %"
        share = f"{100 * row['total']:.2f} %"
        print(f"| × {row['scale']:g} | {share} | {100 * row['accuracy']:.2f} % | {again} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--root", type=Path, default=None, help="the data folder")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--batches", type=int, default=BATCHES, help="training batches for recalibration")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args(arguments)
    model, recipe, splits = load_with_data(given.run, None, given.root)
    split = getattr(splits, given.split)
    if split is None:
        parser.error(f"{splits.name} has no {given.split} part here: set data.validation in the recipe")
    rows = run(model, splits, split, recipe, given)
    show(rows["layers"], rows["resolutions"])
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


def run(model: nn.Module, splits: DataSplits, split: Split, recipe: Any, given: argparse.Namespace) -> dict[str, Any]:
    augment = None if recipe is None else recipe.data.augmentation
    settings: dict[str, Any] = {"augment": augment, "device": given.device, "batch_size": given.batch_size}
    settings["batches"] = given.batches
    if getattr(model, "mask_channel", False):
        print("Inputs of which samples are missing cannot be resized: only the trained resolution is measured.\n")
        settings["scales"] = (1.0,)
    return {"layers": layer_rows(model), "resolutions": resolution_rows(model, split, splits.train, **settings)}


if __name__ == "__main__":
    main()
