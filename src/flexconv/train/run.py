"""Run a recipe: load the data, train, test, and write the run folder."""

from __future__ import annotations

import copy
import gc
import math
import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import nn

from .. import data as datasets
from .._text import printable
from ..data import FULL_SCALE, DataSplits, DeviceBatches
from ..errors import ArgumentError, MissingPackageError, UsageError, first_line
from ..models import Inputs, Model, from_pretrained, save_pretrained
from ..nn import FlexConvNd, refresh_extents
from ..resolution import at_resolution, measurable_norms, recalibrate_batchnorm
from ._machine import choose_device, machine, now
from ._model import build_model
from .display import Display, short_sizes
from .evaluate import Score, evaluate_exactly
from .fitting import run_fit
from .folder import RunFolder, compare_recipes
from .loop import Trainer
from .plots import draw_plots
from .recipe import PRECISIONS, CrossResolutionRecipe, FitRecipe, Recipe
from .sync_norm import synchronise_norms

if TYPE_CHECKING:
    from lightning_fabric import Fabric

NORM_IMAGES = 2048  # at least, from the training part, for the statistics of batch norms at another resolution


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    device: str = "auto",
    console: Console | None = None,
    plots: bool = True,
) -> dict[str, Any]:
    """Run a recipe in a new folder `out`. Returns the content of its results.json.

    An interrupted or killed run can be continued with `resume(out)`. It ends with the same weights, on a GPU up to
    rounding. `plots`: whether to draw plots at the end.
    """
    folder = RunFolder(out)
    folder.refuse_used("train")
    return _run(recipe, folder, device, console, plots=plots)


def resume(
    out: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    device: str = "auto",
    console: Console | None = None,
) -> dict[str, Any]:
    """Continue a run or a fit from its newest intact checkpoint. Returns the results of a finished run unchanged.

    `root` and `engine` replace the data folder and the engine of the recipe. A fit has no engine.
    """
    folder = RunFolder(out)
    recipe = folder.read_recipe()
    if folder.finished:
        return folder.read_results()
    if isinstance(recipe, FitRecipe):
        if engine is not None:
            raise ArgumentError(f"engine={engine!r} is only for training; {folder.path} is a fit, which has no engine")
        recipe = recipe if root is None else replace(recipe, root=os.fspath(root))
        return run_fit(recipe, folder, device, console, new=False)
    if root is not None:
        recipe = replace(recipe, data=replace(recipe.data, root=os.fspath(root)))
    if engine is not None:
        recipe = replace(recipe, engine=engine)
    return _run(recipe, folder, device, console, plots=True)


def _run(recipe: Recipe, folder: RunFolder, device: str, console: Console | None, *, plots: bool) -> dict[str, Any]:
    fabric = make_fabric(recipe, device)
    console = console if fabric.is_global_zero else None
    data = load_data(recipe)
    cross = isinstance(recipe, CrossResolutionRecipe)
    # errors of the model are raised here, before the folder is created
    model = build_model(recipe, data.at_resolution(recipe.source) if cross else data)
    if not fabric.is_global_zero:
        results = _stages(model, recipe, data, folder, fabric, console, plots=plots)
    else:
        with folder.locked():
            folder.write_recipe(recipe)
            if console is not None:
                console.print(printable(f"run folder: {folder.path}"), highlight=False, markup=False)
            results = _stages(model, recipe, data, folder, fabric, console, plots=plots)
            folder.check_present()
            if (
                not folder.finished
            ):  # the stages of a cross-resolution run are; written twice, a kill could leave a part
                folder.write_results(results)
    leave_processes(fabric)
    return results


def _stages(
    model: Model,
    recipe: Recipe,
    data: DataSplits,
    folder: RunFolder,
    fabric: Fabric,
    console: Console | None,
    *,
    plots: bool,
) -> dict[str, Any]:
    if isinstance(recipe, CrossResolutionRecipe):
        return _cross_resolution(model, recipe, data, folder, fabric, console, plots=plots)
    return fit_classifier(model, data, recipe, folder, fabric, console, plots=plots)


def _cross_resolution(
    model: Model,
    recipe: CrossResolutionRecipe,
    data: DataSplits,
    folder: RunFolder,
    fabric: Fabric,
    console: Console | None,
    *,
    plots: bool,
) -> dict[str, Any]:
    """Train at the source resolution, test at both, fine-tune at the target. Each stage is a run in a subfolder.

    Before fine-tuning, the network is tested at the target resolution as it is, and with batch-norm statistics of that
    resolution.
    """
    source = _stage(recipe, recipe.source, recipe.epochs)
    low, high = data.at_resolution(recipe.source), data.at_resolution(recipe.target)
    before = fit_classifier(model, low, source, RunFolder(folder.path / "source"), fabric, console, plots=plots)
    scaled = any(isinstance(module, FlexConvNd) for module in model.modules())  # other networks accept any size
    model = at_resolution(model, recipe.target / recipe.source, crop=recipe.crop) if scaled else model
    untuned = _test(model, high, recipe, fabric)
    change = untuned.accuracy - before["test_accuracy"]
    results = {"source": before, "out_of_the_box": _score(untuned), "change_out_of_the_box": change}
    message = f"test accuracy at {recipe.target} pixels, out of the box: {100 * untuned.accuracy:.2f} %"
    if measurable_norms(model):
        measured = _test(_with_norms_measured(model, high, recipe, fabric), high, recipe, fabric)
        change = measured.accuracy - before["test_accuracy"]
        results |= {"norms_measured": _score(measured), "change_norms_measured": change}
        message += f", with recalibrated batch norms: {100 * measured.accuracy:.2f} %"
    if console is not None:
        console.print(message, highlight=False)
    if recipe.finetune_epochs:
        target = _stage(recipe, recipe.target, recipe.finetune_epochs)
        tuned = RunFolder(folder.path / "target")
        origin = f"kernels from {recipe.source} pixels, crop={recipe.crop}"
        results["target"] = fit_classifier(model, high, target, tuned, fabric, console, plots=plots, origin=origin)
    return results


def _stage(recipe: CrossResolutionRecipe, resolution: int, epochs: int) -> Recipe:
    """Return the recipe of one stage."""
    settings = {f.name: getattr(recipe, f.name) for f in fields(Recipe)}
    return Recipe(**settings | {"data": replace(recipe.data, resolution=resolution), "epochs": epochs})


def fit_classifier(
    model: Model,
    data: DataSplits,
    recipe: Recipe,
    folder: RunFolder,
    fabric: Fabric,
    console: Console | None = None,
    *,
    plots: bool = True,
    origin: str = "",
) -> dict[str, Any]:
    """Train a model in a folder, continuing the run in it if there is one, then test the model once.

    `origin` says where the model is from, if the recipe does not. A run with another origin is not continued.
    Afterwards `model` has its final weights, also if the run was already finished.
    """
    if folder.finished and folder.weights.is_dir():
        if folder.exists:
            compare_recipes(recipe, folder.read_recipe(), folder.path)
        model.load_state_dict(from_pretrained(folder.weights).state_dict())
        return folder.read_results()
    model.inputs = _inputs(data)
    display = Display(console, epochs=recipe.epochs, steps_per_epoch=-(-len(data.train) // recipe.batch_size))
    display.say(escape(_headline(model, data, recipe, fabric)))
    if fabric.world_size > 1:
        synchronise_norms(model)
    trainer = Trainer(model, data, recipe, folder, fabric, display, origin=origin)
    resumed = trainer.resume()
    if fabric.is_global_zero:
        folder.write_recipe(recipe)
    if fabric.is_global_zero and not folder.finished:
        facts = machine(fabric.device, processes=fabric.world_size)
        folder.append_machine({"started": now(), **facts, "engine": trainer.engine.name, **resumed})
    trainer.run()
    if folder.finished:
        return folder.read_results()
    results = _results(trainer, data, recipe, fabric)
    if fabric.is_global_zero:
        folder.check_present()
        save_pretrained(model, folder.weights)
        folder.write_results(results)
        if plots:
            draw_plots(folder, model)
    display.say(_summary(results))
    return results


# --- parts ------------------------------------------------------------------------------------------------------------


def make_fabric(recipe: Recipe, device: str) -> Fabric:
    """Return a launched Fabric with the device and precision of a run, and the processes that torchrun started."""
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(recipe.deterministic)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = _import_fabric()(
        accelerator=choose_device(device).type,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=processes // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if processes > 1 else "auto",
        precision=PRECISIONS[recipe.precision],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def _import_fabric() -> type[Fabric]:
    """Import Fabric, which takes seconds, only for training."""
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"training needs {error.name}", extra="train") from error
    except Exception as error:  # Fabric imports torchmetrics if it is there, which imports torchvision
        raise UsageError(
            f"training needs Lightning Fabric, which cannot be imported: {type(error).__name__}: {first_line(error)}. "
            f"If torchvision causes this, install the version for torch {torch.__version__}, or uninstall torchvision"
        ) from error
    return Fabric


def leave_processes(fabric: Fabric) -> None:
    """Close the process group of `make_fabric`, when no trainer is in use any more."""
    if fabric.world_size > 1:
        fabric.barrier()  # a process that waits for one that has ended aborts
        torch.distributed.destroy_process_group()
        gc.collect()  # reference cycles keep the threads of the group alive, which would abort at exit


def load_data(recipe: Recipe) -> DataSplits:
    """Load the data set of a recipe, split and preprocessed."""
    settings = recipe.data
    datasets.check_options(settings.name, dict(settings.options))  # `root` and others are arguments of `load`
    data = datasets.load(
        settings.name,
        root=settings.root,
        validation=settings.validation,
        protocol=settings.protocol,
        **settings.options,
    )
    if not settings.test:
        data = replace(data, test=None)
    if settings.resolution is None:
        return data
    if data.length is not None:
        raise ArgumentError(
            f"data.resolution={settings.resolution} resizes images, but the samples of {data.name} are series; set "
            "data.resolution=null"
        )
    return data.at_resolution(settings.resolution)


def _inputs(data: DataSplits) -> Inputs | None:
    """Return how the samples of a data set are standardized; None if not by one mean and std per channel."""
    split, channels = data.train, data.in_channels
    unknown_tail = split.tail is not None and split.images is None
    if unknown_tail or split.mean.numel() not in (1, channels):
        return None
    mean, std = (tuple(values.flatten().expand(channels).tolist()) for values in (split.mean, split.std))
    size = split.sample_shape[1:]
    scale = split.scale if split.mfcc_rate is None else 1 / FULL_SCALE  # MFCCs are computed from waves on [−1, 1]
    return Inputs(
        size=size,
        scale=scale,
        mean=mean,
        std=std,
        classes=data.class_names,
        mfcc_rate=split.mfcc_rate,
        rate=split.rate,
        varying=split.lengths is not None if data.length is not None else None,
        images=split.images,
    )


def _test(model: nn.Module, data: DataSplits, recipe: Recipe, fabric: Fabric) -> Score:
    assert data.test is not None
    batches = DeviceBatches(
        data.test,
        recipe.batch_size,
        device=fabric.device,
        dtype=torch.float64 if recipe.precision == "fp64" else torch.float32,
        world_size=fabric.world_size,
        rank=fabric.global_rank,
    )
    return evaluate_exactly(model.to(fabric.device), batches)


def _with_norms_measured(model: Model, data: DataSplits, recipe: Recipe, fabric: Fabric) -> Model:
    """Return a copy whose batch norms have the statistics of augmented training data. Labels are not used."""
    model = copy.deepcopy(model).to(fabric.device)
    batches = DeviceBatches(
        data.train,
        recipe.batch_size,
        shuffle=True,
        augment=recipe.data.augmentation,
        device=fabric.device,
        dtype=torch.float64 if recipe.precision == "fp64" else torch.float32,
        seed=recipe.seed,
    )  # the same batches in every process
    recalibrate_batchnorm(model, islice(batches, math.ceil(NORM_IMAGES / recipe.batch_size)))
    return model


def _results(trainer: Trainer, data: DataSplits, recipe: Recipe, fabric: Fabric) -> dict[str, Any]:
    model, progress = trainer.model, trainer.progress
    score = None if data.test is None else _test(model, data, recipe, fabric)
    if score is not None and not math.isfinite(score.loss):
        raise trainer.diverged("the test loss", progress.step - 1)
    test = {} if score is None else {f"test_{name}": value for name, value in _score(score).items()}
    selected = "last" if trainer.best_state is None else ("test" if data.selects_on_test else "validation")
    return {
        **test,
        "selected": selected,
        **({"best": progress.best} if progress.best else {}),
        "epochs": recipe.epochs,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "sizes": {name: list(size) for name, size in refresh_extents(model).items()},
        "data": data.name,
        **({"note": data.note} if data.note else {}),
        "protocol": data.protocol,
        "seed": recipe.seed,
        **machine(fabric.device, processes=fabric.world_size),
        "engine": trainer.engine.name,
        **trainer.folder.all_machines(),
        "finished": now(),
    }


def _summary(results: Mapping[str, Any]) -> str:
    """Return the test accuracy, or else the best validation accuracy, and the sizes."""
    sizes = f"sizes {short_sizes(results['sizes'], most=20)}"
    if "test_accuracy" in results:
        return f"test accuracy {100 * results['test_accuracy']:.2f} %  {sizes}"
    if "best" in results:
        return f"not tested; best validation accuracy {100 * results['best']['accuracy']:.2f} %  {sizes}"
    return f"finished without a test  {sizes}"


def _score(score: Score) -> dict[str, float]:
    top5 = {} if score.top5_accuracy is None else {"top5_accuracy": score.top5_accuracy}
    return {"accuracy": score.accuracy, **top5, "loss": score.loss, "count": score.count}


def _headline(model: nn.Module, data: DataSplits, recipe: Recipe, fabric: Fabric) -> str:
    parts: Mapping[str, object] = {
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "training": f"{len(data.train):,}",
        **({"validation": f"{len(data.validation):,}"} if data.validation is not None else {}),
        **({"test": f"{len(data.test):,}"} if data.test is not None else {}),
    }
    counts = ", ".join(f"{value} {name}" for name, value in parts.items())
    trained = " (pretrained)" if recipe.model.pretrained else ""
    where = f"{recipe.epochs} epoch{'' if recipe.epochs == 1 else 's'} on {fabric.device}"
    return f"{recipe.model.name}{trained} on {data.name} ({counts}), {where}{_long_warmup(recipe)}"


def _long_warmup(recipe: Recipe) -> str:
    """A remark if the learning rate rises for more than half of the training."""
    warmup, epochs = recipe.schedule.warmup_epochs, recipe.epochs
    if warmup >= epochs:
        return f"; warm-up takes {warmup:g} (schedule.warmup_epochs), so optim.lr is not reached before the end"
    return f"; warm-up takes {warmup:g} of them (schedule.warmup_epochs)" if 2 * warmup > epochs else ""


def default_folder(name: str) -> Path:
    """Return runs/NAME for a recipe or a recipe file, or runs/NAME-2 and so on if that exists."""
    file = re.match(r"(.*)\.ya?ml(?=/|$)(.*)", name)  # a recipe file, and a variant after a slash
    stem = Path("runs") / (Path(file[1]).name + file[2] if file else name).replace("/", "-")
    count = 1
    while (path := stem if count == 1 else stem.with_name(f"{stem.name}-{count}")).exists():
        count += 1
    return path
