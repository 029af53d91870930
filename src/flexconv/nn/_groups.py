"""Parameter groups for an optimizer in a training loop of one's own."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._arguments import positive
from ..errors import ArgumentError
from ._sized import SizedKernel

GENERATOR_FACTOR = 10.0  # the paper's rate, 0.01, relative to the usual 0.001


def parameter_groups(model: nn.Module, lr: float, *, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Divide the parameters of a model into groups with suitable learning rates, for any optimizer of `torch.optim`.

        optimizer = torch.optim.AdamW(flexconv.parameter_groups(model, lr=1e-3, weight_decay=0.05))

    `lr` is the rate for ordinary layers. Generators of FlexConvs in the parametrization of the paper get ten times as
    much, because they learn too slowly at rates that suit ordinary layers. Generators in the scaled parametrization get
    `lr`. Masks get `lr` and no weight decay, which would make kernels smaller. Each group has a `name`: "rest",
    "generators" or "masks". Empty groups are left out, and so are parameters that do not require a gradient.
    """
    lr = positive("lr", lr)
    if not (isinstance(weight_decay, int | float) and weight_decay >= 0):
        raise ArgumentError(f"weight_decay must be a number of at least 0; got {weight_decay!r}")
    layers = [module for module in model.modules() if isinstance(module, SizedKernel)]
    masks = {id(p) for layer in layers if layer.mask is not None for p in layer.mask.parameters()}
    slow = {id(p) for layer in layers if layer.parametrization == "paper" for p in layer.generator.parameters()}
    groups: dict[str, dict[str, Any]] = {
        "rest": {"lr": lr, "weight_decay": weight_decay},
        "generators": {"lr": GENERATOR_FACTOR * lr, "weight_decay": weight_decay},
        "masks": {"lr": lr, "weight_decay": 0.0},
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in groups}
    for parameter in model.parameters():
        if parameter.requires_grad:
            name = "masks" if id(parameter) in masks else "generators" if id(parameter) in slow else "rest"
            members[name].append(parameter)
    return [{"name": name, "params": members[name], **groups[name]} for name in groups if members[name]]
