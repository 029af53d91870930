"""Fit generators to kernels or images, as functions on [−1, 1]².

Every target has its own generator. The generators of a group are fitted at once (`fit_group.py`). The folder of a fit:

recipe.yaml         the recipe with every default stated
metrics.jsonl       a record per target and recorded step
reconstructions/    the final outputs of the generators, as PNG
checkpoints/        the last two checkpoints, one per minute, for `flexconv fit --resume`
results.json        the errors of all targets and their mean; written last
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from .._arguments import unknown_name
from .._text import printable
from ..data import import_pillow
from ..errors import ArgumentTypeError
from ..nn.kernels import GENERATORS, KernelGenerator
from ._machine import choose_device, machine, now
from .checkpoint import newest_checkpoint, save_checkpoint
from .fit_group import FitGroup
from .folder import RunFolder, compare_recipes, recipe_text
from .recipe import FitRecipe
from .stopping import Interrupted, stop_on_signal
from .targets import Targets, load_targets

POINTS_AT_ONCE = 1 << 21  # in a group of targets: enough to keep a GPU busy
CHECKPOINT_SECONDS = 60.0


def fit(
    recipe: FitRecipe, out: str | os.PathLike[str], *, device: str = "auto", console: Console | None = None
) -> dict[str, Any]:
    """Run a fit in a new folder `out`. Returns the content of its results.json.

    An interrupted or killed fit can be continued with `resume(out)` and ends with the same errors. The PSNR of an image
    is that of the output clamped to [0, 1]. If the error of a target is not finite, its entries and the means are None.
    """
    if not isinstance(recipe, FitRecipe):
        raise ArgumentTypeError(f"fit needs a recipe of kind fit; got {type(recipe).__name__}")
    folder = RunFolder(out)
    folder.refuse_used("fit")
    return run_fit(recipe, folder, device, console, new=True)


def run_fit(recipe: FitRecipe, folder: RunFolder, device: str, console: Console | None, *, new: bool) -> dict[str, Any]:
    """Run a fit in a new folder, or continue it from its newest checkpoint."""
    place = choose_device(device)
    targets = load_targets(recipe.target, root=recipe.root, **recipe.target_options)
    make = generator_maker(recipe, targets)
    with folder.locked():
        if new:
            folder.refuse_used("fit")  # another process may have taken it since
        folder.write_recipe(recipe)
        parameters = sum(p.numel() for p in make(0).parameters())
        if console is not None:
            console.print(printable(f"run folder: {folder.path}"), highlight=False, markup=False)
            size = " × ".join(map(str, targets.values.shape[:1:-1]))
            console.print(
                f"{recipe.model.name} ({parameters:,} parameters) fitted to {len(targets.names)} targets of {size}, "
                f"{recipe.steps} steps on {place}",
                highlight=False,
            )
        work = _Fit(recipe, targets, folder, place, console)
        work.run(make)
        results = {
            **_summary(targets, work.errors),
            "parameters": parameters,
            "steps": recipe.steps,
            "seed": recipe.seed,
            "seconds": round(work.seconds, 1),
            **machine(place),
            **folder.all_machines(),
            "finished": now(),
        }
        folder.check_present()
        folder.write_results(results)
    if console is not None:
        mean = "  ".join(f"{name} {value:.6g}" for name, value in results.items() if name.startswith("mean_") and value)
        console.print(f"{mean or 'some errors are not finite'}  ({work.seconds:.0f} s)", highlight=False)
    return results


# --- fitting ----------------------------------------------------------------------------------------------------------


class _Fit:
    """Fits group by group, writes the results, and saves checkpoints."""

    def __init__(
        self,
        recipe: FitRecipe,
        targets: Targets,
        folder: RunFolder,
        device: torch.device,
        console: Console | None,
    ) -> None:
        self.recipe, self.targets, self.folder, self.device, self.console = recipe, targets, folder, device, console
        self.errors: list[dict[str, Any]] = []  # the latest errors of every target so far
        self._start = 0  # number of the first target in the group
        self._step = self._metrics_bytes = 0
        self._changed: list[str] = []  # differences between the recipe and that of the checkpoint
        self._earlier = 0.0  # seconds of earlier sessions
        self._pictures = folder.path / "reconstructions"

    @property
    def seconds(self) -> float:
        """The duration of the fit over all sessions."""
        return self._earlier + time.monotonic() - self._began

    def run(self, make: Callable[[int], KernelGenerator]) -> None:
        """Fit all targets. `make(number)` returns a new generator for a target."""
        self._began = self._saved_at = time.monotonic()
        saved = self._resume()
        changed = {"changed": self._changed} if self._changed else {}
        self.folder.append_machine({"started": now(), **machine(self.device), **changed})
        self._pictures.mkdir(exist_ok=True)
        count, points = len(self.targets.names), self.targets.values[0, 0].numel()
        size = min(count, max(1, POINTS_AT_ONCE // points))
        visible = self.console is not None and self.console.is_terminal
        with stop_on_signal() as stop_asked, Progress(console=self.console, transient=True, disable=not visible) as bar:
            task = bar.add_task("fitting", total=count * self.recipe.steps)
            while self._start < count:
                number = min(size if saved is None else saved["targets"], count - self._start)
                chosen = range(self._start, self._start + number)
                values = self.targets.values[chosen.start : chosen.stop].to(self.device)
                group = FitGroup([make(index) for index in chosen], values, self.recipe)
                if saved is not None:
                    group.load_state(saved)
                    saved = None
                self._steps(group, stop_asked, lambda done: bar.update(task, completed=done))
                self._draw(group, chosen)
                self._start, self._step = chosen.stop, 0

    def _steps(self, group: FitGroup, stop_asked: Callable[[], str | None], show: Callable[[int], None]) -> None:
        if self._step == 0:
            self._record(group)
        show(self._start * self.recipe.steps + self._step * len(group.targets))
        while self._step < self.recipe.steps:
            group.step()
            self._step += 1
            if self._step % self.recipe.record_every == 0 or self._step == self.recipe.steps:
                self._record(group)
                show(self._start * self.recipe.steps + self._step * len(group.targets))
            reason = stop_asked()
            if reason or time.monotonic() - self._saved_at > CHECKPOINT_SECONDS:
                self._save(group)
                self._tell(group)
            if reason:
                raise Interrupted(reason)

    def _tell(self, group: FitGroup) -> None:
        """Print the progress if there is no progress bar."""
        if self.console is not None and not self.console.is_terminal:
            last, count = self._start + len(group.targets), len(self.targets.names)
            which = f"target {last}" if last == self._start + 1 else f"targets {self._start + 1} to {last}"
            self.console.print(f"{which} of {count}, step {self._step} of {self.recipe.steps}", highlight=False)

    def _record(self, group: FitGroup) -> None:
        self.folder.check_present()
        self.errors[self._start :] = [_errors(*pair, pictures=self.targets.pictures) for pair in group.errors()]
        for name, error in zip(self.targets.names[self._start :], self.errors[self._start :], strict=False):
            self._metrics_bytes = self.folder.append_metrics({"target": name, "step": self._step, **error})

    def _draw(self, group: FitGroup, chosen: range) -> None:
        for index, output in zip(chosen, group.draw().cpu(), strict=True):
            path = self._pictures / f"{self.targets.names[index]}.png"
            _save_png(output, self.targets.values[index], path, self.targets.pictures)

    def _save(self, group: FitGroup) -> None:
        self.folder.check_present()
        state = {
            **group.state(),
            "start": self._start,
            "targets": len(group.targets),
            "step": self._step,
            "errors": self.errors,
            "seconds": self.seconds,
            "metrics_bytes": self._metrics_bytes,
            "metrics": self.folder.metrics_text(self._metrics_bytes),
            "recipe": recipe_text(self.recipe),
        }
        save_checkpoint(self.folder.checkpoints, self._start * self.recipe.steps + self._step, state)
        self._saved_at = time.monotonic()

    def _resume(self) -> dict[str, Any] | None:
        """Load the newest checkpoint and return it, or None."""

        def say(text: str) -> None:
            if self.console is not None:
                self.console.print(printable(text), highlight=False)

        saved = newest_checkpoint(self.folder.checkpoints, say)
        if saved is not None:
            if "recipe" in saved:  # older versions did not save it
                self._changed = compare_recipes(self.recipe, saved["recipe"], self.folder.checkpoints)
            for change in self._changed:
                say(escape(f"changed since the last checkpoint: {change}"))
            self._start, self._step, self.errors = saved["start"], saved["step"], saved["errors"]
            self._earlier, self._metrics_bytes = saved["seconds"], saved["metrics_bytes"]
            say(f"resumed at step {self._step} of target {self._start + 1} of {len(self.targets.names)}")
        self.folder.restore_metrics(saved, self._metrics_bytes)
        return saved


def generator_maker(recipe: FitRecipe, targets: Targets) -> Callable[[int], KernelGenerator]:
    """Return a function that makes a new generator for a target number.

    The seed follows from the name of the target, so it does not matter which other targets are fitted.
    """
    name, options = recipe.model.name, recipe.model.options
    if name not in GENERATORS:
        unknown_name("generator", name, GENERATORS)
    known = [k for k, p in inspect.signature(GENERATORS[name]).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known or option in ("device", "dtype"):
            unknown_name("option", option, set(known) - {"device", "dtype"}, of=f"of the generator {name!r}")
    channels = targets.values.shape[1]
    make = functools.partial(GENERATORS[name], 2, channels, **options)

    def seeded(index: int) -> KernelGenerator:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(f"{recipe.seed} {targets.names[index]}".encode()))
            return make()

    return seeded


# --- results ----------------------------------------------------------------------------------------------------------


def _errors(plain: float, clamped: float, *, pictures: bool) -> dict[str, Any]:
    finite = math.isfinite(plain)
    if not pictures:
        return {"mse": plain if finite else None}
    psnr = -10 * math.log10(max(clamped, 1e-12)) if finite else None
    return {"mse": plain if finite else None, "psnr": psnr}


def _summary(targets: Targets, errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over all targets, then the errors of each target."""
    kinds = ("psnr", "mse") if targets.pictures else ("mse",)
    columns = {kind: [error[kind] for error in errors] for kind in kinds}
    means = {f"mean_{k}": None if None in column else sum(column) / len(column) for k, column in columns.items()}
    note = {"note": targets.note} if targets.note else {}
    return {**means, "targets": dict(zip(targets.names, errors, strict=True)), **note}


def _save_png(output: torch.Tensor, target: torch.Tensor, path: Path, is_picture: bool) -> None:
    """Save [channels, height, width] as PNG. A kernel is scaled to the range of its target."""
    if not is_picture:
        low, high = target.amin(), target.amax()
        output = (output - low) / (high - low).clamp(min=1e-12)
    pixels = (output.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    import_pillow().fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)).save(path)
