"""The optimizer with its parameter groups, the learning-rate schedule, and the penalties on kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._registry import fast_version
from ..errors import ArgumentError, RunError
from ..nn import FlexConvNd, GaussianMask
from ..spectrum import alias_penalty
from .recipe import OptimRecipe, Recipe, ScheduleRecipe

BETAS = (0.9, 0.999)  # of Adam
MOMENTUM = 0.9  # of SGD
FLOOR = 1e-6  # lowest learning rate of the cosine schedule


def parameter_groups(model: nn.Module, recipe: OptimRecipe) -> list[dict[str, object]]:
    """Divide the parameters into groups: masks, frequency factors ω₀ of SIRENs, features of generators, and the rest.

    Each group has a `name` and its own `lr`. Empty groups are left out. Features are everything in a generator but its
    output map. They have a group of their own only if the recipe treats them differently.
    """
    masks = {id(p) for module in model.modules() if isinstance(module, GaussianMask) for p in module.parameters()}
    omegas = {id(p) for name, p in model.named_parameters() if name.rpartition(".")[2] == "omega_0"}
    features: set[int] = set()
    if recipe.weight_decay > 0 or recipe.feature_factor != 1:
        features = _feature_parameters(model)
    groups = [
        {"name": "rest", "lr": recipe.lr, "params": []},
        {"name": "omega_0", "lr": recipe.lr * recipe.omega_factor, "params": []},
        {"name": "masks", "lr": recipe.lr * recipe.mask_factor, "params": []},
        {"name": "features", "lr": recipe.lr * recipe.feature_factor, "params": []},
    ]
    for parameter in model.parameters():
        key = id(parameter)
        which = 2 if key in masks else 1 if key in omegas else 3 if key in features else 0
        groups[which]["params"].append(parameter)
    for group in groups:
        # no decay for masks and features: it would make kernels smaller, and lower their frequencies
        group["weight_decay"] = recipe.weight_decay if group["name"] == "rest" else 0.0
    return [group for group in groups if group["params"]]


def _feature_parameters(model: nn.Module) -> set[int]:
    """The ids of the parameters of all generators, without those of their output maps."""
    found: set[int] = set()
    for module in model.modules():
        if isinstance(module, FlexConvNd):
            output = module.generator.output_map
            own = set() if output is None else {id(p) for p in output.parameters()}
            found |= {id(p) for p in module.generator.parameters()} - own
    return found


def make_optimizer(model: nn.Module, recipe: OptimRecipe, *, fused: bool = False) -> torch.optim.Optimizer:
    """Return Adam, with decoupled weight decay if the recipe sets any, or SGD with Nesterov momentum.

    `fused`: whether to use fused versions, which are faster on a GPU.
    """
    groups = parameter_groups(model, recipe)
    if recipe.name == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=MOMENTUM, nesterov=True, fused=fused)
    cls = (fast_version("train.adam") if fused else None) or torch.optim.Adam
    return cls(groups, lr=recipe.lr, betas=BETAS, decoupled_weight_decay=recipe.weight_decay > 0)


_SETTINGS = ("name", "weight_decay", "decoupled_weight_decay", "betas", "momentum", "nesterov")


def check_same_settings(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: Path) -> None:
    """Raise an error unless a state, from a checkpoint at `where`, is of an optimizer with the same settings.

    `load_state_dict` would replace the settings of the optimizer by those of the state.
    """
    ours, theirs = ([_settings(group) for group in each] for each in (optimizer.param_groups, state["param_groups"]))
    differ = [f"{len(theirs)} parameter groups → {len(ours)}"] if len(ours) != len(theirs) else []
    for new, old in zip(ours, theirs, strict=False):
        differ += [f"{key} {old.get(key)} → {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)]
    if differ:
        raise RunError(
            f"the optimizer of recipe.yaml is not the one of the checkpoint in {where} ({'; '.join(differ)}): undo the "
            "change, or start another run with it"
        )


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group, with the learning rate before the schedule."""
    settings = {key: group[key] for key in _SETTINGS if key in group}
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
    return {**settings, "lr": float(group.get("base_lr", group["lr"]))}


class Schedule:
    """The learning rate as a function of the step and of the base rate r of a parameter group.

        warm-up     step i of W + 1:    r · i/W                                    (the first step has rate 0)
        cosine      step i of T:        floor + (top − floor) (1 + cos πi/T)/2,    top = r (W + 1)/W

    As in the authors' code, `top` is one warm-up step above r. Without warm-up the cosine starts at r.
    """

    def __init__(self, recipe: ScheduleRecipe, *, steps_per_epoch: int, epochs: int) -> None:
        self.recipe = recipe
        self.warmup = round(recipe.warmup_epochs * steps_per_epoch)
        self.decay = max(1, epochs * steps_per_epoch - self.warmup)

    def rate(self, step: int, base: float) -> float:
        """Return the learning rate of `step` for a group with base rate `base`."""
        warmup = self.warmup
        if warmup and step <= warmup + 1:
            return base * step / warmup if self.recipe.name == "cosine" or step <= warmup else base
        if self.recipe.name == "constant":
            return base
        top, start = (base * (warmup + 1) / warmup, warmup + 1) if warmup else (base, 0)
        floor = min(FLOOR, top)
        return floor + (top - floor) * (1 + math.cos(math.pi * min(1.0, (step - start) / self.decay))) / 2

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the learning rates of all groups for `step`, in place if they are tensors."""
        for group in optimizer.param_groups:
            base = group.setdefault("base_lr", group["lr"])
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self.rate(step, base))
            else:
                group["lr"] = self.rate(step, base)


def penalties(model: nn.Module, recipe: Recipe) -> torch.Tensor | float:
    """Return the penalties on the kernels of a model that the recipe adds to the loss → scalar."""
    total: torch.Tensor | float = 0.0
    if recipe.optim.kernel_norm:
        total = total + recipe.optim.kernel_norm * kernel_norm(model)
    if recipe.alias is not None:
        total = total + alias_penalty(model, **asdict(recipe.alias))
    return total


def kernel_norm(model: nn.Module) -> torch.Tensor:
    """Return Σ ‖kernel‖₂ + ‖bias‖₂ over the FlexConv layers of a model → scalar. The authors call it weight decay."""
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer, so there is no kernel to penalize")
    norms = [layer.window_kernel().norm() for layer in layers]
    norms += [layer.bias.norm() for layer in layers if layer.bias is not None]
    return torch.stack(norms).sum()
