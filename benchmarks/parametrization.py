"""Networks of either parametrization, trained at one resolution and evaluated there and at twice the resolution.

    python -m benchmarks.parametrization digits --seeds 3
    python -m benchmarks.parametrization cifar10 --seeds 3 --device cuda
    python -m benchmarks.parametrization character_trajectories --seeds 3 --device cuda

The networks have default options for generators and masks, and no alias penalty. All accuracies are those of the
validation part; the test set is not read. "change" is the accuracy at twice the resolution minus that at the resolution
of the training, in points; "beyond" is the largest share of energy beyond the Nyquist frequency of any layer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import cast

import torch

from flexconv import at_resolution
from flexconv.cli._resample import ResampledSeries
from flexconv.data import DeviceBatches
from flexconv.models import from_pretrained
from flexconv.nn import FlexConvNd
from flexconv.spectrum import alias_report
from flexconv.train import Recipe, RunFolder, evaluate_exactly, load_data, load_recipe, train

BASE = "model.generator_options=null", "model.mask_options=null"
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "digits": ("digits", (*BASE, "data.validation=0.2")),
    "cifar10": (
        "flexnet7-cifar10",
        (*BASE, "data.validation=0.1", "data.resolution=16", "epochs=20", "schedule.warmup_epochs=2"),
    ),
    "character_trajectories": (
        "flextcn-character-trajectories/2-blocks",
        (*BASE, "epochs=60", "schedule.warmup_epochs=2", "optim.lr=0.005", "optim.kernel_norm=0"),
    ),
}
RATES = {"recipe": (), "1e-3": ("optim.lr=0.001", "optim.mask_factor=1.0")}


def trained(task: str, parametrization: str, rate: str, seed: int, device: str, folder: Path) -> Recipe:
    """Train a network in `folder` and return its recipe."""
    name, changes = TASKS[task]
    fast = ("precision=bf16", "engine=graph") if device == "cuda" else ()
    settings = (*changes, *RATES[rate], *fast, f"model.parametrization={parametrization}", f"seed={seed}")
    recipe = load_recipe(name, list(settings))
    assert isinstance(recipe, Recipe)
    train(recipe, folder, device=device, plots=False)
    return recipe


def accuracies(recipe: Recipe, folder: Path, device: str) -> tuple[float, float, float, str]:
    """Accuracy at once and at twice the resolution in %, the largest energy beyond Nyquist in %, and the sizes."""
    model = from_pretrained(RunFolder(folder).weights)
    splits = load_data(recipe)
    assert splits.validation is not None
    dims = len(splits.train.sample_shape) - 1
    twice = at_resolution(model, [2.0] * dims)
    here = DeviceBatches(splits.validation, 64, device=torch.device(device), dtype=torch.float32)
    if dims == 2:
        height, width = splits.train.sample_shape[1:]
        finer = splits.at_resolution((2 * height, 2 * width)).validation
        assert finer is not None
        there = DeviceBatches(finer, 64, device=torch.device(device), dtype=torch.float32)
    else:
        there = cast(DeviceBatches, ResampledSeries(here, 2 * splits.train.sample_shape[1]))
    report = alias_report(model, [2.0] * dims)
    found = [
        100 * evaluate_exactly(net.to(device), batches).accuracy for net, batches in ((model, here), (twice, there))
    ]
    sizes = " ".join("×".join(map(str, m.extent)) for m in model.modules() if isinstance(m, FlexConvNd))
    return found[0], found[1], 100 * max(report.beyond.values()), sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--rates", nargs="+", choices=RATES, default=["recipe"], help="learning rates of the recipe or 1e-3"
    )
    parser.add_argument("--only", nargs="+", default=["paper", "scaled"])
    arguments = parser.parse_args()
    print(f"{arguments.task}: {' '.join(TASKS[arguments.task][1])}")
    print(
        "parametrization | rate | accuracy | change at twice the resolution | beyond Nyquist | sizes of seed 0 | time"
    )
    for rate in arguments.rates:
        for parametrization in arguments.only:
            began, runs = time.perf_counter(), []
            for seed in range(arguments.seeds):
                with tempfile.TemporaryDirectory() as place:
                    folder = Path(place) / "run"
                    recipe = trained(arguments.task, parametrization, rate, seed, arguments.device, folder)
                    runs.append(accuracies(recipe, folder, arguments.device))
            here, change = [run[0] for run in runs], [run[1] - run[0] for run in runs]
            spread = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in (here, change)]
            found = f"{statistics.mean(here):.2f} ± {spread[0]:.2f} | {statistics.mean(change):+.2f} ± {spread[1]:.2f}"
            beyond, seconds = max(run[2] for run in runs), time.perf_counter() - began
            print(f"{parametrization} | {rate} | {found} | {beyond:.1f} % | {runs[0][3]} | {seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
