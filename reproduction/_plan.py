"""The runs that are still missing, as commands, with a time estimate from the logs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flexconv.errors import ArgumentError
from flexconv.models import list_pretrained
from flexconv.train import CrossResolutionRecipe, FitRecipe, Recipe

from . import figure5, table1, table2, table3, table4, table6, table9
from ._ledger import Ledger
from ._pictures import Pictures
from ._table import Table
from ._work import run_folder

FAST = ("precision=bf16",)  # on a GPU


@dataclass(frozen=True)
class Wanted:
    """A part of the paper: recipes that have to be run, and with how many seeds."""

    title: str
    recipes: tuple[str, ...]
    seeds: int = 1


_KODAK = ("magnet-shared", "gabor", "gabor-init", "fourier", "siren", "siren-10")
_SEQUENCES = ("smnist", "pmnist", "scifar10", "npcifar10", "character-trajectories")
_CROSS = "cross-resolution-cifar10"
_SEPARABLE = (
    "smnist",
    "pmnist",
    "cifar10",
    "cifar10/small",
    "cross-resolution-cifar10",
    *(f"character-trajectories{v}" for v in ("", "/missing-30", "/missing-50", "/missing-70")),
    "scifar10/base",
    "speech-commands-raw/v0.01",
)
_NARROW = tuple(
    f"sepflexnet-character-trajectories/{v}narrow" for v in ("", "missing-30-", "missing-50-", "missing-70-")
)
_CHOICES = ("quick", "quick-wider-band", "quick-per-channel", "quick-glu", "quick-small-kernel", "quick-fixed-features")
_CHOICES += ("quick-high-frequencies", "quick-centered")


def _rows(table: Table, prefix: str = "") -> tuple[str, ...]:
    """The recipes of the paper's own rows whose names start with `prefix`."""
    return tuple(name for name in table.own_recipes if name.startswith(prefix))


#: in the order in which the runs are started
WANTED = (
    Wanted(
        "Headline rows, three seeds",
        (*(f"flextcn-{data}" for data in _SEQUENCES), "flexnet7-cifar10", _CROSS, "kodak"),
        3,
    ),
    Wanted("Table 1", _rows(table1.TABLE)),
    Wanted("Table 3", _rows(table3.TABLE)),
    Wanted("Table 4", _rows(table4.TABLE)),
    Wanted("Table 9", _rows(table9.TABLE)),
    Wanted("Table 6", _rows(table6.TABLE)),
    Wanted("Table 2, CharacterTrajectories", _rows(table2.TABLE, "flextcn-character-trajectories")),
    Wanted("Figure 5", _rows(figure5.FIGURE)),
    Wanted("Table 5", ("kodak", *(f"kodak/{variant}" for variant in _KODAK))),
    Wanted(
        "Figure 4",
        tuple(
            f"fit-{target}{variant}"
            for target in ("gabor", "random", "alexnet")
            for variant in ("", "/magnet-s", "/siren", *(f"/njet-{n}" for n in range(1, 10)))
        ),
    ),
    Wanted(
        "Penalties of Table 4, three seeds",
        tuple(f"{_CROSS}/{variant}" for variant in ("no-penalty", "f-magnet", "f-flexconv", "exact")),
        3,
    ),
    Wanted("SpeechCommands, version 0.01", ("flextcn-speech-commands-raw/v0.01", "flextcn-speech-commands/v0.01")),
    Wanted("SepFlexNet, its choices on a validation part", tuple(f"sepflexnet-scifar10/{v}" for v in _CHOICES)),
    Wanted(
        "SepFlexNet, sequential CIFAR-10, three seeds",
        tuple(f"sepflexnet-scifar10/{variant}" for variant in ("centered", "centered-small-kernel")),
        3,
    ),
    Wanted("SepFlexNet, CharacterTrajectories on a CPU, three seeds", _NARROW, 3),
    Wanted("SepFlexNet, other tasks", tuple(f"sepflexnet-{task}" for task in _SEPARABLE)),
)


def starting_with(prefixes: Sequence[str], wanted: Sequence[Wanted] = WANTED) -> list[Wanted]:
    """The parts of the plan with only the recipes whose names start with one of the prefixes; all if there are none."""
    if not prefixes:
        return list(wanted)
    parts = [replace(each, recipes=tuple(n for n in each.recipes if n.startswith(tuple(prefixes)))) for each in wanted]
    if not any(part.recipes for part in parts):
        raise ArgumentError(f"no recipe of the plan starts with {' or '.join(map(repr, prefixes))}")
    return [part for part in parts if part.recipes]


def plan(ledger: Ledger) -> list[tuple[str, list[tuple[str, str]]]]:
    """For every part, its title and the (command, estimate) of each missing run. A run is listed once."""
    return [
        (title, [(command(name, seed, ledger), estimate(name, ledger)) for name, seed in runs])
        for title, runs in missing(ledger)
    ]


def missing(ledger: Ledger, wanted: Sequence[Wanted] = WANTED) -> list[tuple[str, list[tuple[str, int]]]]:
    """For every part, its title and the (recipe, seed) of each missing run. A run is listed once."""
    listed: set[tuple[str, int]] = set()
    parts = []
    for part in wanted:
        done = {(name, log.seed) for name in part.recipes for log in ledger.finished(name)}
        runs = [(name, seed) for name in part.recipes for seed in range(part.seeds)]
        parts.append((part.title, [run for run in runs if run not in done | listed]))
        listed.update(runs)
    return parts


def to_ship(runs: Path = Path("results/runs")) -> list[str]:
    """Commands that publish the networks shown in figures, for those that are not available yet."""
    from . import items

    wanted = {name: recipe for item in items() if isinstance(item, Pictures) for name, recipe in item.networks.items()}
    stages = {name: "source" if recipe.startswith("cross") else "" for name, recipe in wanted.items()}
    return [
        f"python -m reproduction ship {run_folder(runs, recipe, 0) / stages[name]} --name {name}"
        for name, recipe in wanted.items()
        if name not in list_pretrained()
    ]


def command(name: str, seed: int, ledger: Ledger) -> str:
    """The command that starts or resumes a run, in the folder that `python -m reproduction ITEM --run` would use."""
    is_fit = isinstance(ledger.load(name), FitRecipe)
    folder, verb = run_folder(Path("results/runs"), name, seed), "fit" if is_fit else "train"
    started = [log for log in ledger.logs if log.path.name == folder.name and not log.finished]
    if any(next(log.path.rglob("*.ckpt"), None) for log in started):
        return f"flexconv {verb} --resume {folder}"
    settings = [f"seed={seed}"] if seed else []
    settings += [] if is_fit else FAST
    return " ".join(["flexconv", verb, name, *(f"--set {each}" for each in settings), f"--out {folder}"])


def estimate(name: str, ledger: Ledger) -> str:
    """The GPU time of a run, estimated from logs of the same network on the same data at any length or resolution.

    It uses the median epoch, and the fastest of several logs, because other runs may have shared their GPU.
    """
    recipe = ledger.load(name)
    if isinstance(recipe, FitRecipe):
        return "unknown"
    epochs = recipe.epochs + (recipe.finetune_epochs if isinstance(recipe, CrossResolutionRecipe) else 0)
    found = []
    for log in ledger.logs:
        other = log.recipe
        same = not isinstance(other, FitRecipe) and _cost(other) == _cost(recipe)
        times = [record["epoch_seconds"] for record in log.metrics if "epoch_seconds" in record]
        if same and times and not log.device.startswith("cpu"):
            found.append((statistics.median(times), log.path.name))
    if not found:
        return "unknown"
    seconds, log_name = min(found)
    return f"{seconds * epochs / 60:.0f} minutes at {seconds:.1f} s per epoch ({log_name})"


def _cost(recipe: Recipe | CrossResolutionRecipe) -> tuple[object, ...]:
    """What determines the time of an epoch; initial masks and frequencies do not."""
    return recipe.model.name, recipe.model.options.get("generator"), recipe.data.name
