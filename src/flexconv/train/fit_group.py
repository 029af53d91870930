"""Generators fitted side by side, as functions on [−1, 1]².

Their parameters are stacked and the network mapped over them (`torch.func.vmap`): the loss is the sum of their errors,
and Adam treats every number by itself, so each is fitted as it would be alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.func import functional_call, stack_module_state, vmap

from ..nn import Axis, coordinate_grid
from ..nn.kernels import KernelGenerator
from .recipe import FitRecipe

CPU_POINTS = 1 << 13  # of all targets, per pass on a CPU, whose caches hold no more


class FitGroup:
    """Generators fitted to targets [n, channels, height, width], one each, side by side.

    Every row of the grid has its own copy of the parameters: then their gradients are many short sums, one per row,
    and a sum over the rows. One sum over half a million points takes a GPU ten times as long as all the rest.
    The step is compiled there, where it is limited by memory, or made of kernels (`_fused_fit.py`) for generators that
    these are written for; a CPU goes through a few rows at a time, for its caches.
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
        in_a_row = len(targets) * targets.shape[3]
        self.rows_at_once = max(1, CPU_POINTS // in_a_row) if device.type == "cpu" else len(self.rows)
        self._loss = self._squared_error
        self._fused = None
        if device.type == "cuda":
            self._loss = torch.compile(self._squared_error, dynamic=False)
            self._fused = self._fuse(generators[0])

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
        """Gradients of all parameters by a few kernels; None without Triton, or where none are for this generator."""
        if torch.version.hip is not None:  # the kernels have instructions of NVIDIA's cards
            return None
        try:
            from .._fast.fused_fit import FusedSirenStep, FusedStep, can_fuse, can_fuse_siren
        except ImportError:
            return None
        lines = self.rows[:, 0, 0], self.rows[0, 1]
        if can_fuse_siren(generator):
            return FusedSirenStep(self.parameters, self.buffers["omega_0"], self.targets, *lines)
        return FusedStep(self.parameters, self.targets, *lines) if can_fuse(generator) else None

    def state(self) -> dict[str, Any]:
        """What `load_state` needs to go on from here."""
        return {"parameters": self.parameters, "optimizer": self.optimizer.state_dict()["state"]}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, whatever device it was on."""
        for name, parameter in self.parameters.items():
            parameter.copy_(state["parameters"][name])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})

    @torch.no_grad()
    def draw(self) -> torch.Tensor:
        """What the generators give on the grid → [n, channels, height, width]."""
        return torch.cat([self._evaluate(self.parameters, rows) for rows, _ in self._parts()], 2)

    @torch.no_grad()
    def errors(self) -> list[tuple[float, float]]:
        """Of every target: the mean squared error, and the same of the output clamped to [0, 1]."""
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
