"""Fit several generators at once, as functions on [−1, 1]².

Their parameters are stacked and the network is mapped over them (`torch.func.vmap`). The loss is the sum of their
errors, and Adam updates every number independently, so each generator is fitted as if it were alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.func import functional_call, stack_module_state, vmap

from .._registry import fast_version
from ..nn import Axis, Placement, coordinate_grid
from ..nn.kernels import KernelGenerator
from .recipe import FitRecipe

CPU_POINTS = 1 << 13  # of all targets per pass on a CPU, so that values stay in its caches


class FitGroup:
    """Generators that are fitted to targets [n, channels, height, width], one generator per target.

    Every row of the grid has its own copy of the parameters, so their gradients are short sums, one per row, and a sum
    over rows. A single sum over half a million points would take a GPU ten times as long as everything else. On a CPU,
    a pass works on a few rows at a time.
    """

    def __init__(self, generators: list[KernelGenerator], targets: torch.Tensor, recipe: FitRecipe) -> None:
        self.targets, device = targets, targets.device
        axes = [Axis(size, causal=False) for size in targets.shape[2:]]
        grid = coordinate_grid(axes, [axis.whole for axis in axes], device=device, dtype=torch.float32)
        self.rows = grid.transpose(0, 1).contiguous()  # [height, 2, width]
        for generator in generators:
            generator.attach(Placement(axes))
            generator.to(device)
        parameters, self.buffers = stack_module_state(list(generators))  # type: ignore[arg-type]
        self.parameters = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
        self.skeleton = copy.deepcopy(generators[0]).to("meta")
        omegas = [p for name, p in self.parameters.items() if name == "omega_0"]
        rest = [p for name, p in self.parameters.items() if name != "omega_0"]
        groups = [{"params": rest}, {"params": omegas, "lr": recipe.lr * recipe.omega_factor}]
        self.optimizer = torch.optim.Adam([g for g in groups if g["params"]], lr=recipe.lr, fused=device.type == "cuda")
        points_per_row = len(targets) * targets.shape[3]
        self.rows_at_once = max(1, CPU_POINTS // points_per_row) if device.type == "cpu" else len(self.rows)
        make_step = fast_version("train.fit_step")
        self._fast_gradients = None if make_step is None else make_step(self, generators[0])

    def step(self) -> None:
        """Run one step of Adam on the mean squared error of every target."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._fast_gradients is not None:
            self._fast_gradients()
        else:
            self.compute_gradients(self.squared_error)
        self.optimizer.step()

    def compute_gradients(self, squared_error: Callable[..., torch.Tensor]) -> None:
        """Set the gradients of all parameters, by `squared_error` or a compiled version of it."""
        for rows, values in self.parts():
            squared_error(self.parameters, rows, values).backward()

    def state(self) -> dict[str, Any]:
        """Return the state for `load_state`."""
        return {"parameters": self.parameters, "optimizer": self.optimizer.state_dict()["state"]}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which may have been saved on another device."""
        for name, parameter in self.parameters.items():
            parameter.copy_(state["parameters"][name])
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})

    @torch.no_grad()
    def draw(self) -> torch.Tensor:
        """Evaluate the generators on the grid → [n, channels, height, width]."""
        return torch.cat([self._evaluate(self.parameters, rows) for rows, _ in self.parts()], 2)

    @torch.no_grad()
    def errors(self) -> list[tuple[float, float]]:
        """Return for every target the mean squared error of the output, and of the output clamped to [0, 1]."""
        output = self.draw()
        pairs = [(drawn - self.targets).square().mean((1, 2, 3)) for drawn in (output, output.clamp(0, 1))]
        return [(plain, clamped) for plain, clamped in torch.stack(pairs, 1).tolist()]

    def squared_error(
        self, parameters: dict[str, torch.Tensor], rows: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean squared error of rows [m, 2, width], summed over the targets.

        The mean is over all points of a target, so the results of several calls add up.
        """
        return (self._evaluate(parameters, rows) - values).square().sum() / self.targets[0].numel()

    def _evaluate(self, parameters: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """Evaluate all generators on rows [m, 2, width] → [n, channels, m, width]."""
        copies = {name: p[:, None].expand(-1, len(rows), *p.shape[1:]) for name, p in parameters.items()}
        each_row = vmap(self._one, in_dims=(0, None, 0), out_dims=1)
        return vmap(each_row, in_dims=(0, 0, None))(copies, self.buffers, rows)

    def _one(
        self, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], points: torch.Tensor
    ) -> torch.Tensor:
        return functional_call(self.skeleton, (parameters, buffers), (points,))

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield rows [m, 2, width] of the grid with their target values [n, channels, m, width], a few at a time."""
        yield from zip(self.rows.split(self.rows_at_once), self.targets.split(self.rows_at_once, 2), strict=True)
