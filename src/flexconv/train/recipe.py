"""Recipes: frozen dataclasses with all settings of a run, validated when they are created.

`flexconv.train.load_recipe` reads them from YAML files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._arguments import positive, unknown_name
from ..errors import ArgumentError
from ..spectrum import FORMULAS, METHODS, RENAMED_METHODS

ENGINES = ("auto", "eager", "compiled", "graph")
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed", "fp64": "64-true"}

#: The largest learning rates and weights. Far larger ones overflow in float32, or leave nothing of the other terms.
LARGEST = 1e6

#: Keys of flexconv 0.1 that can no longer be set, with the values that apply. Recipes of old runs state them.
RETIRED: dict[str, dict[str, Any]] = {
    "": {"images_at_once": None},
    "data": {"split_seed": 0},
    "optim": {"betas": [0.9, 0.999], "momentum": 0.9},
    "schedule": {"floor": 1e-6},
}


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """A model of the registry with options, or a trained model to continue with."""

    name: str
    pretrained: bool = False  # `name` is then a name or folder for `from_pretrained`
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pretrained and self.options:
            given = ", ".join(f"model.{option}" for option in self.options)
            raise ArgumentError(
                f"the options of a trained model cannot be changed: leave out {given}, or set model.pretrained to false"
            )
        for option, instead in (("device", "--device, or device= of train"), ("dtype", "precision")):
            if option in self.options:
                raise ArgumentError(
                    f"model.{option} cannot be set in a recipe: use {instead}; got {self.options[option]!r}"
                )


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """A data set of the registry, and how it is split and preprocessed."""

    name: str
    root: str | None = None
    validation: float = 0.0  # fraction of the training set on which the best epoch is selected
    test: bool = True  # whether to test at the end; false while settings are chosen by their validation accuracy
    augment: bool = False
    resolution: int | None = None  # images are resized to this size
    protocol: str = "honest"  # "paper": statistics as in the authors' code, and selection on the test set
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of("data.protocol", self.protocol, ("honest", "paper"))
        if not 0 <= self.validation < 1:
            raise ArgumentError(
                f"data.validation must be a fraction of the training set, at least 0 and below 1; got {self.validation}"
            )
        if not self.test and self.protocol == "paper":
            raise ArgumentError(
                "data.test must be true for data.protocol 'paper', which selects epochs on the test set"
            )
        if self.resolution is not None and self.resolution < 1:
            raise ArgumentError(f"data.resolution must be at least 1 pixel; got {self.resolution}")

    @property
    def augmentation(self) -> str | None:
        """The augmentation of training batches: an argument of `DeviceBatches`."""
        return "crop_flip" if self.augment else None


@dataclass(frozen=True, kw_only=True)
class OptimRecipe:
    """Adam, or SGD with Nesterov momentum. Masks and the ω₀ of SIRENs have their own learning rates."""

    name: str = "adam"
    lr: float = 0.01
    mask_factor: float = 0.1  # learning rate of masks, relative to lr
    omega_factor: float = 1.0  # learning rate of the frequency factors of SIRENs, relative to lr
    feature_factor: float = 1.0  # learning rate of the features of generators, if they are trained, relative to lr
    weight_decay: float = 0.0  # of all weights but those of features; AdamW for Adam, added to the gradient for SGD
    kernel_norm: float = 0.0  # weight of Σ_layers ‖kernel‖ + ‖bias‖ in the loss, which the paper calls weight decay
    clip: float | None = None  # maximum norm of the gradient

    def __post_init__(self) -> None:
        _one_of("optim.name", self.name, ("adam", "sgd"))
        _between("optim", self, "lr", "mask_factor", "omega_factor", "feature_factor", "weight_decay", "kernel_norm")
        if self.clip is not None:
            positive("optim.clip", self.clip)


@dataclass(frozen=True, kw_only=True)
class ScheduleRecipe:
    """The learning rate: linear warm-up, then a cosine decay or a constant rate. See `optim.Schedule`."""

    name: str = "cosine"
    warmup_epochs: float = 5

    def __post_init__(self) -> None:
        _one_of("schedule.name", self.name, ("cosine", "constant"))
        _between("schedule", self, "warmup_epochs")


@dataclass(frozen=True, kw_only=True)
class AliasRecipe:
    """Arguments of `flexconv.alias_penalty`."""

    weight: float = 0.1
    method: str = "per_filter"
    mask: bool = False
    cutoff: float = 2.0
    formula: str = "authors"

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", RENAMED_METHODS.get(self.method, self.method))  # flexconv 0.1
        _one_of("alias.method", self.method, METHODS)
        _one_of("alias.formula", self.formula, FORMULAS)
        _between("alias", self, "weight")
        positive("alias.cutoff", self.cutoff)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Train a classifier and test it once, at the end."""

    model: ModelRecipe
    data: DataRecipe
    about: str = ""
    epochs: int = 100
    batch_size: int = 64  # over all processes
    optim: OptimRecipe = field(default_factory=OptimRecipe)
    schedule: ScheduleRecipe = field(default_factory=ScheduleRecipe)
    alias: AliasRecipe | None = None
    label_smoothing: float = 0.0
    precision: str = "fp32"
    engine: str = "auto"  # see `engine.make_engine`
    seed: int = 0
    deterministic: bool = False
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.model.pretrained:  # state the default: run folders without it are of older versions, see folder.py
            options = {"parametrization": "scaled", **self.model.options}
            object.__setattr__(self, "model", replace(self.model, options=options))
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("engine", self.engine, ENGINES)
        _check_seed(self.seed)
        _between("", self, "checkpoint_seconds")
        if not 0 <= self.label_smoothing < 1:
            raise ArgumentError(f"label_smoothing must be at least 0 and below 1; got {self.label_smoothing}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1; got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class CrossResolutionRecipe(Recipe):
    """Train at one resolution, then test at another one, before and after fine-tuning there."""

    source: int
    target: int
    crop: str = "taper"
    finetune_epochs: int = 100  # 0: no fine-tuning

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("crop", self.crop, ("taper", "hard"))
        if self.source < 2 or self.target < 2:
            raise ArgumentError(f"source and target must be at least 2 pixels; got {self.source} and {self.target}")
        if self.data.resolution is not None:
            raise ArgumentError(
                "data.resolution must be left out of a cross-resolution recipe: source and target set it"
            )
        if not self.data.test:
            raise ArgumentError("data.test must be true in a cross-resolution recipe, which compares test accuracies")
        if self.finetune_epochs < 0:
            raise ArgumentError(f"finetune_epochs must be at least 0; got {self.finetune_epochs}")


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """Fit kernel generators to images or kernels, one generator per target. All are functions on [−1, 1]²."""

    model: ModelRecipe  # names a generator of `flexconv.nn.GENERATORS`
    target: str  # a name of `flexconv.train.targets.TARGETS`, or the path of an image
    about: str = ""
    target_options: Mapping[str, Any] = field(default_factory=dict)  # see `flexconv.train.targets`
    root: str | None = None  # data folder, for targets that are read from files
    steps: int = 5000
    lr: float = 0.01
    omega_factor: float = 50.0  # learning rate of learnable frequency factors of SIRENs, relative to lr
    seed: int = 0
    record_every: int = 100  # steps between two records in metrics.jsonl

    def __post_init__(self) -> None:
        if self.model.pretrained:
            raise ArgumentError("model.pretrained must be false: a fit starts from new generators")
        if not self.target:
            raise ArgumentError(
                "target must be gabor, random, alexnet, kodak, flower, or the path of an image; got an empty one"
            )
        _between("", self, "lr", "omega_factor")
        _check_seed(self.seed)
        for name in ("steps", "record_every"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1; got {getattr(self, name)}")


KINDS: dict[str, type] = {"classify": Recipe, "cross-resolution": CrossResolutionRecipe, "fit": FitRecipe}

AnyRecipe = Recipe | FitRecipe


def _one_of(name: str, value: str, known: Mapping[str, Any] | Sequence[str]) -> None:
    if value not in known:
        unknown_name(name, value, known)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ArgumentError(f"seed must be at least 0 and below 2**63; got {seed}")


def _between(path: str, recipe: object, *names: str) -> None:
    for name in names:
        value, key = getattr(recipe, name), f"{path}.{name}" if path else name
        if not 0 <= value <= LARGEST:
            raise ArgumentError(f"{key} must be a number from 0 to {LARGEST:g}; got {value}")
