"""Training: recipes, runs that can be killed and resumed, evaluation.

    from flexconv.train import load_recipe, train
    results = train(load_recipe("digits"), "runs/digits")

The command `flexconv train` does the same.
"""

from ..errors import MissingPackageError

try:
    import rich as _rich  # noqa: F401
except ImportError as error:
    raise MissingPackageError("flexconv.train needs rich and a few more packages", extra="train") from error

from ._machine import choose_device
from ._model import build_model
from ._read import build_recipe, import_yaml, list_recipes, load_recipe, merge, parse_override, plain
from .checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from .evaluate import ClassReport, ConfidenceBin, Score, evaluate, evaluate_classes, evaluate_exactly
from .fitting import fit
from .folder import RunError, RunFolder
from .loop import DivergedError, Trainer
from .recipe import (
    AliasRecipe,
    CrossResolutionRecipe,
    DataRecipe,
    FitRecipe,
    ModelRecipe,
    OptimRecipe,
    Recipe,
    ScheduleRecipe,
)
from .run import default_folder, fit_classifier, leave_processes, load_data, make_fabric, resume, train
from .stopping import Interrupted

__all__ = [
    "AliasRecipe",
    "CheckpointError",
    "ClassReport",
    "ConfidenceBin",
    "CrossResolutionRecipe",
    "DataRecipe",
    "DivergedError",
    "FitRecipe",
    "Interrupted",
    "ModelRecipe",
    "OptimRecipe",
    "Recipe",
    "RunError",
    "RunFolder",
    "ScheduleRecipe",
    "Score",
    "Trainer",
    "build_model",
    "build_recipe",
    "choose_device",
    "default_folder",
    "evaluate",
    "evaluate_classes",
    "evaluate_exactly",
    "fit",
    "fit_classifier",
    "import_yaml",
    "leave_processes",
    "list_recipes",
    "load_checkpoint",
    "load_data",
    "load_recipe",
    "make_fabric",
    "merge",
    "parse_override",
    "plain",
    "resume",
    "save_checkpoint",
    "train",
]
