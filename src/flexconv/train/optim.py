"""The optimiser with the paper's three groups of parameters, its schedule, and the penalties on kernels."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import nn

from .._registry import fast_version
from ..errors import ArgumentError
from ..nn import FlexConvNd, GaussianMask
from ..spectrum import alias_penalty
from .recipe import OptimRecipe, Recipe, ScheduleRecipe

FLOOR = 1e-6  # where the cosine ends


def parameter_groups(model: nn.Module, recipe: OptimRecipe) -> list[dict[str, object]]:
    """Every parameter once, in three groups: masks, the frequency factors ω₀ of SIRENs, and the rest.

    `name` says which, `lr` is the group's own; groups without parameters are left out.
    """
    masks = {id(p) for module in model.modules() if isinstance(module, GaussianMask) for p in module.parameters()}
    omegas = {id(p) for name, p in model.named_parameters() if name.rpartition(".")[2] == "omega_0"}
    groups = [
        {"name": "rest", "lr": recipe.lr, "params": []},
        {"name": "omega_0", "lr": recipe.lr * recipe.omega_factor, "params": []},
        {"name": "masks", "lr": recipe.lr * recipe.mask_factor, "params": []},
    ]
    for parameter in model.parameters():
        which = 2 if id(parameter) in masks else 1 if id(parameter) in omegas else 0
        groups[which]["params"].append(parameter)
    for group in groups:
        # decay is for weights: a mask that shrinks for no reason would shrink its layer
        group["weight_decay"] = recipe.weight_decay if group["name"] == "rest" else 0.0
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, recipe: OptimRecipe, *, fused: bool = False) -> torch.optim.Optimizer:
    """Adam, with decoupled weight decay where the recipe has any; or SGD with Nesterov momentum."""
    groups = parameter_groups(model, recipe)
    if recipe.name == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, nesterov=True, fused=fused)
    cls = (fast_version("train.adam") if fused else None) or torch.optim.Adam
    return cls(groups, lr=recipe.lr, decoupled_weight_decay=recipe.weight_decay > 0)


class Schedule:
    """The learning rate of every step, a function of the step and of each group's own rate r.

        warm-up     step i of W + 1:    r · i/W                                    (the first step stands still)
        cosine      step i of T:        floor + (top − floor) (1 + cos πi/T)/2,    top = r (W + 1)/W

    `top` is a step above r, as in the authors' code. Without warm-up the cosine starts at r.
    """

    def __init__(self, recipe: ScheduleRecipe, *, steps_per_epoch: int, epochs: int) -> None:
        self.recipe = recipe
        self.warmup = round(recipe.warmup_epochs * steps_per_epoch)
        self.decay = max(1, epochs * steps_per_epoch - self.warmup)

    def rate(self, step: int, base: float) -> float:
        """Learning rate of `step` for a group whose own rate is `base`."""
        warmup = self.warmup
        if warmup and step <= warmup + 1:
            return base * step / warmup if self.recipe.name == "cosine" or step <= warmup else base
        if self.recipe.name == "constant":
            return base
        top, start = (base * (warmup + 1) / warmup, warmup + 1) if warmup else (base, 0)
        floor = min(FLOOR, top)
        return floor + (top - floor) * (1 + math.cos(math.pi * min(1.0, (step - start) / self.decay))) / 2

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the rates of all groups for `step`; in place where they are tensors."""
        for group in optimizer.param_groups:
            base = group.setdefault("base_lr", group["lr"])
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self.rate(step, base))
            else:
                group["lr"] = self.rate(step, base)


def penalties(model: nn.Module, recipe: Recipe) -> torch.Tensor | float:
    """What a recipe adds to the loss for the kernels of a model → scalar."""
    total: torch.Tensor | float = 0.0
    if recipe.optim.kernel_norm:
        total = total + recipe.optim.kernel_norm * kernel_norm(model)
    if recipe.alias is not None:
        total = total + alias_penalty(model, **asdict(recipe.alias))
    return total


def kernel_norm(model: nn.Module) -> torch.Tensor:
    """Σ ‖kernel‖₂ + ‖bias‖₂ over the FlexConvs of a model → scalar: what the paper's code calls weight decay."""
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    if not layers:
        raise ArgumentError(f"{type(model).__name__} has no FlexConv layer: there is no kernel to penalise")
    norms = [layer.window_kernel().norm() for layer in layers]
    norms += [layer.bias.norm() for layer in layers if layer.bias is not None]
    return torch.stack(norms).sum()
