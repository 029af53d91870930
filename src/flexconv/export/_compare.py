"""Is what was exported the same function? Both are run, on several shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import ArgumentError
from ._example import Tensors, other_examples
from ._report import Comparison, ExportError, described

Runner = Callable[[Tensors], Sequence[torch.Tensor]]


class Case(NamedTuple):
    """Inputs, and what the model makes of them."""

    inputs: Tensors
    truth: list[torch.Tensor]
    needed: bool
    """False: a file may refuse it. In graphs of torch.export no axis can shrink to a single sample on the way."""


def outputs_of(model: nn.Module, inputs: Tensors) -> list[torch.Tensor]:
    """All tensors that the model returns, in order."""
    with torch.no_grad():
        leaves = pytree.tree_leaves(model(*inputs))
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        kinds = sorted({type(leaf).__name__ for leaf in leaves})
        raise ExportError(
            f"{type(model).__name__} returns {', '.join(kinds) or 'nothing'}: only tensors can be exported"
        )
    return leaves


def make_cases(model: nn.Module, example: Tensors, *, fixed_sizes: bool) -> list[Case]:
    """Inputs of several shapes with the model's own answers. Sizes that the model itself refuses are left out."""
    batches, sizes = other_examples(example, fixed_sizes=fixed_sizes)
    cases = []
    for inputs in [example, *batches]:
        try:
            cases.append(Case(inputs, outputs_of(model, inputs), needed=True))
        except ExportError:
            raise
        except Exception as error:
            raise ArgumentError(f"{type(model).__name__} does not run on {_shapes_text(inputs)}: {error}") from error
    if not all(output.isfinite().all() for output in cases[0].truth):
        raise ArgumentError(
            f"{type(model).__name__} returns NaN or infinity for the example: there is nothing to compare"
        )
    accepted, reason = [], None
    for inputs in sizes:
        try:
            accepted.append(Case(inputs, outputs_of(model, inputs), needed=not accepted))
        except Exception as error:
            reason = error
    if sizes and not accepted:
        raise ExportError(
            f"{type(model).__name__} takes no other sizes than those of the example ({reason}): "
            f"fixed_sizes=True exports it for these"
        ) from reason
    return cases + accepted


def compare(run: Runner, cases: Sequence[Case]) -> tuple[Comparison, ...]:
    """The error of what was exported, case by case; those left out that it refuses and need not take."""
    results = []
    for inputs, truth, needed in cases:
        try:
            found = run(inputs)
        except Exception as error:
            if not needed:
                continue
            raise ExportError(f"what was exported does not run on {_shapes_text(inputs)}: {error}") from error
        if [each.shape for each in found] != [each.shape for each in truth]:
            raise ExportError(
                f"for {_shapes_text(inputs)} the model gives {_shapes_text(truth)}, what was exported "
                f"{_shapes_text(found)}"
            )
        errors = [_relative_error(mine, theirs) for mine, theirs in zip(found, truth, strict=True)]
        results.append(Comparison(tuple(tuple(each.shape) for each in inputs), max(errors)))
    return tuple(results)


def _relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """‖result − truth‖ / ‖truth‖, infinite where the result is not finite."""
    result, truth = result.double(), truth.double()
    difference, size = (result - truth).norm().item(), truth.norm().item()
    if difference == 0:
        return 0.0
    return difference / size if size and difference == difference else float("inf")


def _shapes_text(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(described(tuple(each.shape)) for each in tensors)
