"""Raw speech at half the sampling rate, without training there: a trained network beside a plain CNN of the same size.

    python -m benchmarks.speech_rates --root DATA --epochs 60 --seeds 3                    the plain CNN
    python -m benchmarks.speech_rates RUN --root DATA --epochs 60 --split test             with a trained network

RUN is a run folder or the name of a network for `speech_commands_raw` or its version 0.01. The plain CNN is trained
here on version 0.01: "M5" (Dai et al., Very deep convolutional neural networks for raw waveforms, 2017), with widths
that make it as large as `sepflexnet_tiny`. The epoch with the best validation accuracy is used. Waves at 8 kHz are
those at 16 kHz without the frequencies above 4 kHz. The columns are accuracies in %:

    16 kHz          the waves as they are
    8 kHz           every second sample. A network of FlexConvs is resampled by `at_resolution`; the CNN stays the same
    8 → 16 kHz      the waves at 8 kHz, interpolated to 16 kHz
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from flexconv import FlexConv1d, at_resolution
from flexconv.audio import resample
from flexconv.cli._model import load_model
from flexconv.data import DataSplits, DeviceBatches, Split
from flexconv.train import Trainer, load_data, load_recipe, make_fabric
from flexconv.train.display import Display
from flexconv.train.folder import RunFolder

RECIPE = "sepflexnet-speech-commands-raw/v0.01"
RATE = 16_000
WIDTHS = (76, 76, 152, 304)

Change = Callable[[torch.Tensor], torch.Tensor]
CHANGES: dict[str, Change] = {
    "16 kHz": lambda x: x,
    "8 kHz": lambda x: resample(x, RATE, RATE // 2),
    "8 → 16 kHz": lambda x: resample(resample(x, RATE, RATE // 2), RATE // 2, RATE),
}


def plain_cnn(classes: int, widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    """Waves [batch, 1, length] → logits: a convolution of 80 taps with stride 4, then three of 3 taps."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(zip([1, *widths], widths, strict=False)):
        conv = nn.Conv1d(inputs, outputs, 3, padding=1) if index else nn.Conv1d(1, outputs, 80, 4, padding=38)
        layers += [conv, nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def train(data: DataSplits, *, epochs: int, seed: int, device: str) -> nn.Module:
    """The plain CNN with the weights of the epoch that is the best on the validation part."""
    settings = [f"epochs={epochs}", f"seed={seed}", "optim.lr=0.003", "schedule.warmup_epochs=2", "engine=eager"]
    recipe = load_recipe(RECIPE, [*settings, "precision=fp32"])
    torch.manual_seed(seed)
    model, display = plain_cnn(len(data.class_names)), Display(None, epochs=epochs, steps_per_epoch=1)
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(path)
        folder.write_recipe(recipe)
        Trainer(model, data, recipe, folder, make_fabric(recipe, device), display).run()  # type: ignore[arg-type]
    return model


@torch.no_grad()
def accuracy(model: nn.Module, split: Split, change: Change, device: str) -> float:
    """The share of a split that is recognized, with changed waves."""
    model = model.to(device).eval()
    right = 0
    for inputs, labels, _ in DeviceBatches(split, 50, device=torch.device(device)):
        right += int((model(change(inputs)).argmax(1) == labels).sum())
    return right / len(split)


def row(model: nn.Module, split: Split, device: str) -> list[float]:
    """Accuracies in %, in the order of `CHANGES`."""
    flexible = any(isinstance(module, FlexConv1d) for module in model.modules())
    slower = at_resolution(model, 0.5) if flexible else model
    used = (slower if name == "8 kHz" else model for name in CHANGES)
    return [100 * accuracy(each, split, change, device) for each, change in zip(used, CHANGES.values(), strict=True)]


def show(name: str, model: nn.Module, rows: Sequence[Sequence[float]]) -> None:
    size = sum(parameter.numel() for parameter in model.parameters())
    columns = [f"{statistics.mean(each):.2f} ({', '.join(f'{v:.2f}' for v in each)})" for each in zip(*rows)]  # noqa: B905
    print(f"| {name} | {size:,} | {' | '.join(columns)} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="run folders, or names of networks")
    parser.add_argument("--root", default=None, help="the data folder")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--epochs", type=int, default=60, help="of the plain CNN; 0 leaves it out")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(arguments)
    data = load_data(load_recipe(RECIPE, [f"data.root={given.root}"] if given.root else []))  # type: ignore[arg-type]
    split = getattr(data, given.split)
    print(f"{len(data.train):,} clips for training, {len(split):,} of the {given.split} part\n")
    print(f"| network | parameters | {' | '.join(CHANGES)} |\n|---|---|{'---|' * len(CHANGES)}")
    for name in given.runs:
        model, _ = load_model(name)
        show(Path(name).name, model, [row(model, split, given.device)])
    if given.epochs:
        models = [train(data, epochs=given.epochs, seed=seed, device=given.device) for seed in range(given.seeds)]
        show(f"plain CNN, {given.epochs} epochs", models[0], [row(model, split, given.device) for model in models])


if __name__ == "__main__":
    main()
