"""Fitting: how well a generator can draw a given kernel or picture, as a function on [−1, 1]².

Every target gets a generator of its own. Those of a group are trained side by side, their parameters stacked and the
network mapped over them (`torch.func.vmap`): the loss is the sum of their errors, and Adam treats every number by
itself, so each is fitted as it would be alone.

recipe.yaml         the whole recipe, defaults written out
metrics.jsonl       a line per target and recorded step
reconstructions/    what the generators draw in the end, as PNG
results.json        errors of all targets and their mean; written last
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch.func import functional_call, stack_module_state, vmap

from .._arguments import unknown_name
from ..data._pictures import _pillow
from ..nn._grid import Axis, coordinate_grid
from ..nn.kernels import GENERATORS, KernelGenerator
from .folder import RunError, RunFolder
from .recipe import FitRecipe
from .targets import Targets, load_targets

POINTS_AT_ONCE = 1 << 21  # of a group of targets: enough to keep a GPU busy
CPU_POINTS = 1 << 13  # per pass on a CPU, whose caches hold no more


def fit(
    recipe: FitRecipe, out: str | os.PathLike[str], *, device: str = "auto", console: Console | None = None
) -> dict[str, Any]:
    """Fit by a recipe in a new folder `out`; returns what is in its results.json.

    PSNR, of pictures, is that of the output clamped to [0, 1]. A target whose error is not finite any more has no
    numbers, and then there is no mean either.
    """
    if not isinstance(recipe, FitRecipe):
        raise TypeError(f"fit wants a recipe of kind fit; got {type(recipe).__name__}")
    folder = RunFolder(out)
    if folder.exists:
        raise RunError(f"{folder.path} already holds a run: choose another folder")
    place = _device(device)
    targets = load_targets(recipe.target, root=recipe.root, **recipe.target_options)
    make = _generator_maker(recipe, targets)
    with folder.locked():
        folder.write_recipe(recipe)
        parameters = sum(p.numel() for p in make(0).parameters())
        if console is not None:
            size = " × ".join(map(str, targets.values.shape[:1:-1]))
            console.print(
                f"{recipe.model.name} ({parameters:,} parameters) fitted to {len(targets.names)} targets of {size}, "
                f"{recipe.steps} steps on {place}",
                highlight=False,
            )
        began = time.monotonic()
        errors = _fit_all(recipe, targets, make, folder, place, console)
        seconds = time.monotonic() - began
        results = {**_summary(targets, errors), "parameters": parameters, **_circumstances(recipe, seconds, place)}
        folder.write_results(results)
    if console is not None:
        mean = "  ".join(f"{name} {value:.6g}" for name, value in results.items() if name.startswith("mean_") and value)
        console.print(f"{mean or 'not all errors are finite'}  ({seconds:.0f} s)", highlight=False)
    return results


# --- fitting ----------------------------------------------------------------------------------------------------------


def _fit_all(
    recipe: FitRecipe,
    targets: Targets,
    make: Callable[[int], KernelGenerator],
    folder: RunFolder,
    device: torch.device,
    console: Console | None,
) -> list[dict[str, float]]:
    """Fit group by group, write what comes out → the last errors of every target."""
    pictures = folder.path / "reconstructions"
    pictures.mkdir(exist_ok=True)
    count, points = len(targets.names), targets.values[0, 0].numel()
    size = min(count, recipe.images_at_once or max(1, POINTS_AT_ONCE // points))
    shown = Progress(console=console, transient=True, disable=console is None or not console.is_terminal)
    errors: list[dict[str, float]] = []
    with shown:
        task = shown.add_task("fitting", total=count * recipe.steps)
        for start in range(0, count, size):
            chosen = range(start, min(start + size, count))
            values = targets.values[start : chosen.stop].to(device)
            group = FitGroup([make(index) for index in chosen], values, recipe)
            step = 0
            for step, found in group.run(recipe.steps, recipe.record_every):
                errors[start:] = [_errors(*pair, pictures=targets.pictures) for pair in found]
                for index in chosen:
                    folder.append_metrics({"target": targets.names[index], "step": step, **errors[index]})
                shown.update(task, completed=start * recipe.steps + step * len(chosen))
            outputs = group.draw().cpu()
            for index, output in zip(chosen, outputs, strict=True):
                _save_png(output, targets.values[index], pictures / f"{targets.names[index]}.png", targets.pictures)
    return errors


class FitGroup:
    """Generators fitted to targets [n, channels, height, width], one each, side by side.

    Every row of the grid has its own copy of the parameters: then their gradients are many short sums, one per row,
    and a sum over the rows. One sum over half a million points takes a GPU ten times as long as all the rest.
    The step is compiled there, where it is limited by memory, or one kernel (`_fused_fit.py`) for generators that this
    is written for; a CPU goes through a few rows at a time, for its caches.
    """

    def __init__(self, generators: list[KernelGenerator], targets: torch.Tensor, recipe: FitRecipe) -> None:
        self.targets, device = targets, targets.device
        axes = [Axis(size, causal=False) for size in targets.shape[2:]]
        grid = coordinate_grid(axes, [axis.whole for axis in axes], device=device, dtype=torch.float32)
        self.rows = grid.transpose(0, 1).contiguous()  # [height, 2, width]
        for generator in generators:
            generator.attach_(axes)
            generator.to(device)
        parameters, self.buffers = stack_module_state(list(generators))  # type: ignore[arg-type]
        self.parameters = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
        self.skeleton = copy.deepcopy(generators[0]).to("meta")
        omegas = [p for name, p in self.parameters.items() if name == "omega_0"]
        rest = [p for name, p in self.parameters.items() if name != "omega_0"]
        groups = [{"params": rest}, {"params": omegas, "lr": recipe.lr * recipe.omega_factor}]
        self.optimizer = torch.optim.Adam([g for g in groups if g["params"]], lr=recipe.lr, fused=device.type == "cuda")
        width = targets.shape[3]
        self.rows_at_once = max(1, CPU_POINTS // width) if device.type == "cpu" else len(self.rows)
        self._loss = self._squared_error
        self._fused = None
        if device.type == "cuda":
            self._loss = torch.compile(self._squared_error, dynamic=False)
            self._fused = self._fuse(generators[0])

    def run(self, steps: int, record_every: int) -> Iterator[tuple[int, list[tuple[float, float]]]]:
        """Train, and yield (step, errors) of step 0, every `record_every` steps, and the last.

        An error is (mean squared error, the same of the output clamped to [0, 1]), after so many steps.
        """
        yield 0, self.errors()
        for step in range(1, steps + 1):
            self.step()
            if step % record_every == 0 or step == steps:
                yield step, self.errors()

    def step(self) -> None:
        """One step of Adam on the mean squared error of every target."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._fused is not None:
            self._fused()
        else:
            for rows, values in self._parts():
                self._loss(self.parameters, rows, values).backward()
        self.optimizer.step()

    def _fuse(self, generator: KernelGenerator) -> Callable[[], torch.Tensor] | None:
        """Gradients of all parameters by one kernel; None where Triton, or a kernel for this generator, is missing."""
        try:
            from ._fused_fit import FusedStep, can_fuse
            from ._fused_siren import FusedSirenStep, can_fuse_siren
        except ImportError:
            return None
        lines = self.rows[:, 0, 0], self.rows[0, 1]
        if can_fuse_siren(generator):
            return FusedSirenStep(self.parameters, self.buffers["omega_0"], self.targets, *lines)
        return FusedStep(self.parameters, self.targets, *lines) if can_fuse(generator) else None

    @torch.no_grad()
    def draw(self) -> torch.Tensor:
        """What the generators give on the grid → [n, channels, height, width]."""
        return torch.cat([self._evaluate(self.parameters, rows) for rows, _ in self._parts()], 2)

    @torch.no_grad()
    def errors(self) -> list[tuple[float, float]]:
        output = self.draw()
        pairs = [(drawn - self.targets).square().mean((1, 2, 3)) for drawn in (output, output.clamp(0, 1))]
        return [(plain, clamped) for plain, clamped in torch.stack(pairs, 1).tolist()]

    def _squared_error(
        self, parameters: dict[str, torch.Tensor], rows: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        return (self._evaluate(parameters, rows) - values).square().sum() / self.targets[0].numel()

    def _evaluate(self, parameters: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """All generators on rows [m, 2, width] → [n, channels, m, width]."""
        copies = {name: p[:, None].expand(-1, len(rows), *p.shape[1:]) for name, p in parameters.items()}
        each_row = vmap(self._one, in_dims=(0, None, 0), out_dims=1)
        return vmap(each_row, in_dims=(0, 0, None))(copies, self.buffers, rows)

    def _one(
        self, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], points: torch.Tensor
    ) -> torch.Tensor:
        return functional_call(self.skeleton, (parameters, buffers), (points,))

    def _parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Some rows [m, 2, width] at a time, and the target values there [n, channels, m, width]."""
        yield from zip(self.rows.split(self.rows_at_once), self.targets.split(self.rows_at_once, 2), strict=True)


def _generator_maker(recipe: FitRecipe, targets: Targets) -> Callable[[int], KernelGenerator]:
    """Target number → a new generator for it, drawn with a seed of its own name: whatever else is fitted along."""
    name, options = recipe.model.name, recipe.model.options
    if name not in GENERATORS:
        unknown_name("generator", name, GENERATORS)
    known = [k for k, p in inspect.signature(GENERATORS[name]).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known or option in ("device", "dtype"):
            unknown_name(f"option of the generator {name!r}", option, set(known) - {"device", "dtype"})
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
    """Means over all targets, then each by itself."""
    kinds = ("psnr", "mse") if targets.pictures else ("mse",)
    columns = {kind: [error[kind] for error in errors] for kind in kinds}
    means = {f"mean_{k}": None if None in column else sum(column) / len(column) for k, column in columns.items()}
    note = {"note": targets.note} if targets.note else {}
    return {**means, "targets": dict(zip(targets.names, errors, strict=True)), **note}


def _circumstances(recipe: FitRecipe, seconds: float, device: torch.device) -> dict[str, Any]:
    from .. import __version__

    cuda = device.type == "cuda"
    return {
        "steps": recipe.steps,
        "seed": recipe.seed,
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name(device) if cuda else f"cpu, {torch.get_num_threads()} threads",
        "flexconv": __version__,
        "torch": torch.__version__,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _save_png(output: torch.Tensor, target: torch.Tensor, path: Path, is_picture: bool) -> None:
    """[channels, height, width] as PNG. The grey of a kernel runs from its target's lowest value to its highest."""
    if not is_picture:
        low, high = target.amin(), target.amax()
        output = (output - low) / (high - low).clamp(min=1e-12)
    pixels = (output.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    _pillow().fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)).save(path)


def _device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
