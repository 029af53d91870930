"""Compare what a network does about missing samples, on CharacterTrajectories.

    python -m benchmarks.missing_samples --root DATA --epochs 15 --seeds 2

Two networks of the same size are trained on series of which a share of the steps is missing. Both get zeros for missing
steps and a channel that tells which ones are missing. "observed" uses this channel as `observed=` of its first layer,
which replaces missing steps by means of the observed ones around them. "zeros" convolves the zeros. The table has the
best accuracy on the validation part; the test set is not used. Before training, the error that missing steps cause in
the output of a single layer is measured for generated series, for which the complete ones are known.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from flexconv import FlexConv1d
from flexconv.train import Trainer, build_model, load_data, load_recipe, make_fabric
from flexconv.train.display import Display
from flexconv.train.folder import RunFolder

RATES = (0.3, 0.5, 0.7)


def layer_errors(rate: float, *, seed: int = 0) -> dict[str, float]:
    """The relative error of a layer's output for random walks: zeros, dividing by the observed share, and observed=."""
    torch.manual_seed(seed)
    layer = FlexConv1d(8, 8, 201, groups=8, bias=False)
    x = torch.randn(32, 8, 200).cumsum(-1)
    observed = torch.rand(32, 1, 200) > rate
    (start, stop), ones = layer.window[0], torch.ones(1, 1, 200)
    with torch.no_grad():
        expected, zeros = layer(x), layer(x * observed)
        weight = layer.mask(layer.coordinates([(start, stop)]), layer.axes).view(1, 1, -1)  # type: ignore[misc]
        share, whole = (
            torch.nn.functional.conv1d(each, weight, padding=weight.shape[-1] // 2) for each in (observed.float(), ones)
        )
        results = {
            "zeros": zeros,
            "zeros / share": zeros * (whole / share.clamp(min=0.01)),
            "observed": layer(x, observed=observed),
        }
    return {name: float((y - expected).norm() / expected.norm()) for name, y in results.items()}


def validation_accuracy(name: str, *, root: str | None, epochs: int, width: int, seed: int) -> float:
    changes = [f"epochs={epochs}", f"model.width={width}", "model.depth=2", "schedule.warmup_epochs=1", f"seed={seed}"]
    recipe = load_recipe(name, [*changes, *([f"data.root={root}"] if root else [])])
    data = load_data(recipe)  # type: ignore[arg-type]
    fabric, steps = make_fabric(recipe, "cpu"), len(data.train) // recipe.batch_size  # type: ignore[arg-type, union-attr]
    with tempfile.TemporaryDirectory() as folder:
        display = Display(None, epochs=epochs, steps_per_epoch=steps)
        model = build_model(recipe, data)  # type: ignore[arg-type]
        trainer = Trainer(model, data, recipe, RunFolder(Path(folder)), fabric, display)  # type: ignore[arg-type]
        best = 0.0
        for epoch in range(epochs):
            trainer.forward_model.train()
            trainer.progress.batch = 0
            for batch in trainer.train_batches.iterate(epoch=epoch):
                trainer.step(batch)
            best = max(best, _accuracy(model, data.validation))
    return best


@torch.no_grad()
def _accuracy(model: torch.nn.Module, split: Any) -> float:
    model.eval()
    x = (split.inputs - split.mean) / split.std
    x = x * (torch.arange(x.shape[-1]) < split.lengths[:, None])[:, None]
    logits = torch.cat([model(*part) for part in zip(x.split(128), split.lengths.split(128), strict=True)])
    return float((logits.argmax(1) == split.labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=None, help="the data folder")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--layer-only", action="store_true", help="do not train")
    arguments = parser.parse_args()
    print("relative error of the output of one layer, random walks")
    for rate in RATES:
        errors = layer_errors(rate)
        print(f"{100 * rate:3.0f} % missing  " + "  ".join(f"{name} {error:.3f}" for name, error in errors.items()))
    if arguments.layer_only:
        return
    print(f"\nbest validation accuracy, {arguments.width} channels, {arguments.epochs} epochs", flush=True)
    for rate in RATES:
        name = f"sepflexnet-character-trajectories/missing-{100 * rate:.0f}"
        for label, recipe in (("observed", name), ("zeros", f"{name}-zeros")):
            settings = {"root": arguments.root, "epochs": arguments.epochs, "width": arguments.width}
            found = [validation_accuracy(recipe, seed=seed, **settings) for seed in range(arguments.seeds)]
            each = ", ".join(f"{100 * value:.2f}" for value in found)
            print(f"{100 * rate:3.0f} % missing  {label:8} {100 * statistics.mean(found):6.2f} %  ({each})", flush=True)


if __name__ == "__main__":
    main()
