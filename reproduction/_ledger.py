"""The logs of real runs, and which of them belong to a recipe.

A log is a run folder without its weights: recipe.yaml, metrics.jsonl, results.json, machines.jsonl, and the same files
for each of its stages. It counts for a recipe if network, data and optimization are the same. Seed, precision and
engine may differ; they are listed. A run of another length does not count: it is listed with its differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexconv.models import CONFIG, list_pretrained, pretrained_folder
from flexconv.train import CrossResolutionRecipe, FitRecipe, RunFolder, load_recipe, plain
from flexconv.train.recipe import AnyRecipe

from ._item import NOTHING
from ._measures import Measure

CIRCUMSTANCES = {
    *("about", "seed", "precision", "engine", "deterministic", "checkpoint_seconds"),
    *("root", "data.root", "images_at_once", "record_every"),
}
# Arguments that were added later, with their defaults: older logs do not state them.
LATER = {"model.dropout_in": 0.0}
LENGTHS = {"epochs", "finetune_epochs", "steps"}
SETTINGS = ("optim.", "schedule.", "batch_size", "lr", *LENGTHS)  # what may also differ in a shorter run


class Log:
    """The log of one run: its recipe, its metrics per epoch and, if it is finished, its results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = RunFolder(path)
        self.recipe = folder.read_recipe()
        self.finished = folder.finished
        self.results: dict[str, Any] = folder.read_results() if folder.finished else {}
        stages = [RunFolder(path / stage) for stage in ("source", "target")]
        self.metrics = folder.read_metrics() + [line for stage in stages for line in stage.read_metrics()]
        self.machines = folder.read_machines() + [line for stage in stages for line in stage.read_machines()]

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of its recipe, to compare it with many recipes."""
        return flat_settings(self.recipe)

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def device(self) -> str:
        """The device it ran on: the name of a GPU, or "cpu, 1 threads"."""
        facts = self.results.get("source", self.results)
        return facts.get("device") or (self.machines[-1]["device"] if self.machines else "not recorded")

    @property
    def seconds(self) -> float:
        if isinstance(self.recipe, FitRecipe):
            return self.results.get("seconds", 0.0)
        return sum(record.get("epoch_seconds", 0.0) for record in self.metrics)

    @property
    def chosen(self) -> str:
        """Which weights were tested: those of the last epoch, or of a selected one."""
        if not self.finished:
            return NOTHING
        facts = self.results.get("source", self.results)
        names = {"last": "last epoch", "validation": "best validation epoch", "test": "best test epoch"}
        chosen = "last step" if isinstance(self.recipe, FitRecipe) else names.get(facts.get("selected"), NOTHING)
        return f"{chosen}, tested again in float32" if "first_test" in facts else chosen

    @property
    def budget(self) -> str:
        """How long it trained, with precision and engine if these are not float32 and eager."""
        recipe = self.recipe
        if isinstance(recipe, FitRecipe):
            steps = {record["target"]: record["step"] for record in self.metrics}  # the last step of each
            done, planned = min(steps.values(), default=0), f"{recipe.steps}"
            unit = "steps" if self.finished else f"steps of {len(steps)} targets"
        else:
            done, unit = sum("epoch" in record for record in self.metrics), "epochs"
            tuned = recipe.finetune_epochs if isinstance(recipe, CrossResolutionRecipe) else 0
            planned = f"{recipe.epochs} + {tuned}" if tuned else f"{recipe.epochs}"
        text = f"{planned} {unit}" if self.finished else f"{done} of {planned} {unit}, interrupted"
        extras = [] if isinstance(recipe, FitRecipe) else [recipe.precision, self._engine(recipe.engine)]
        return ", ".join([text, *(extra for extra in extras if extra not in ("fp32", "eager", "auto"))])

    def _engine(self, asked_for: str) -> str:
        """The engine that was used; older logs only have the one that was asked for."""
        facts = [self.results.get("source", self.results), *reversed(self.machines)]
        return next((each["engine"] for each in facts if "engine" in each), asked_for)


@dataclass(frozen=True)
class Match:
    """A log that is related to a recipe. `differs` is empty if it is a run of exactly this recipe."""

    log: Log
    differs: Mapping[str, tuple[Any, Any]]  # dotted key → (value in the recipe, value in the run)

    def counts(self, measure: Measure | None = None) -> bool:
        """Whether its numbers count for the recipe: this measure, or all of them."""
        untuned = measure is not None and measure.before_tuning and self.differs.keys() == {"finetune_epochs"}
        return self.log.finished and (untuned or not self.differs)

    @property
    def difference(self) -> str:
        names = {key: key.removeprefix("optim.") for key in self.differs}
        return "; ".join(
            f"{names[key]} {_short(ours)} instead of {_short(its)}" for key, (its, ours) in self.differs.items()
        )


class Ledger:
    """The logs in a folder, looked up by recipe.

    Arguments:
        results: the folder, with runs in runs/ and timings in timing/.
        load: loads a recipe by its name. Smoke tests pass a function that makes recipes smaller.
        own_weights: whether pictures may show networks of local runs that are not published.

    """

    def __init__(
        self, results: Path, *, load: Callable[[str], AnyRecipe] = load_recipe, own_weights: bool = True
    ) -> None:
        self.results, self.load, self.own_weights = results, functools.cache(load), own_weights
        self.of = functools.cache(self._of)

    @property
    def runs(self) -> Path:
        return self.results / "runs"

    @functools.cached_property
    def logs(self) -> list[Log]:
        found = sorted(self.runs.glob("*/recipe.yaml"))
        return [Log(path.parent) for path in found]

    def _of(self, name: str) -> list[Match]:
        """The logs related to a recipe: first those that count, then by seed."""
        wanted = flat_settings(self.load(name))
        found = [Match(log, _differences(wanted, log.settings)) for log in self.logs]
        found = [match for match in found if _related(match)]
        return sorted(found, key=lambda match: (not match.counts(), match.log.seed, match.log.path.name))

    def finished(self, name: str, measure: Measure | None = None) -> list[Log]:
        """The runs that count for a recipe, one per seed; with `measure`, those that count for that number."""
        return one_per_seed(self.of(name), measure)

    def network(self, recipe: str, published: str) -> Path | None:
        """The folder of a network trained by a recipe: of a local run, otherwise the published one, otherwise None.

        Of a cross-resolution run, it is the network trained at the source resolution.
        """
        logs = self.finished(recipe) if self.own_weights else []
        folders = [log.path / stage / "weights" for log in logs for stage in ("", "source")]
        folders += [pretrained_folder(published)] if published in list_pretrained() else []
        return next((folder for folder in folders if (folder / CONFIG).is_file()), None)


def one_per_seed(matches: Sequence[Match], measure: Measure | None = None) -> list[Log]:
    """The logs that count, altogether or for one number; the first of several with the same seed."""
    seeds: dict[int, Log] = {}
    for match in matches:
        if match.counts(measure):
            seeds.setdefault(match.log.seed, match.log)
    return list(seeds.values())


def differences(wanted: AnyRecipe, run: AnyRecipe) -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, apart from circumstances such as the seed."""
    return _differences(flat_settings(wanted), flat_settings(run))


def flat_settings(recipe: AnyRecipe) -> dict[str, Any]:
    """The settings of a recipe by dotted key, apart from circumstances such as the seed."""
    return {key: value for key, value in (LATER | _flat(plain(recipe))).items() if key not in CIRCUMSTANCES}


def _differences(wanted: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*wanted, *run])
    return {key: (wanted.get(key), run.get(key)) for key in keys if wanted.get(key) != run.get(key)}


def _related(match: Match) -> bool:
    """Whether a log is a run of the recipe, or a run of another length with adapted optimization settings."""
    if not match.differs:
        return True
    return bool(LENGTHS & set(match.differs)) and all(key.startswith(SETTINGS) for key in match.differs)


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, Mapping) and tree:
        parts = [_flat(value, f"{path}.{key}" if path else str(key)) for key, value in tree.items()]
        return {key: value for part in parts for key, value in part.items()}
    return {path: None if tree == {} else tree}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
