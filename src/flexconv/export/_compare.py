"""Comparison of an exported file with its model: both run on inputs of several shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import ArgumentError
from ._example import Tensors, other_examples
from ._report import Comparison, ExportError, described

SMALLEST = 1e-30  # probabilities below are rounded to few bits in float32

Runner = Callable[[Tensors], Sequence[torch.Tensor]]


class Case(NamedTuple):
    """Inputs and the outputs of the model for them."""

    inputs: Tensors
    truth: list[torch.Tensor]
    needed: bool
    """If False, the file may fail on it: no axis can shrink to one sample inside a graph of torch.export."""


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
    """Inputs of several shapes with the outputs of the model. Sizes that the model does not accept are left out."""
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
            f"{type(model).__name__} returns NaN or infinity for the example, so nothing can be compared"
        )
    accepted, reason = [], None
    for inputs in sizes:
        try:
            accepted.append(Case(inputs, outputs_of(model, inputs), needed=not accepted))
        except Exception as error:
            reason = error
    if sizes and not accepted:
        raise ExportError(
            f"{type(model).__name__} accepts no other sizes than those of the example ({reason}): use fixed_sizes=True "
            f"to export it for these sizes"
        ) from reason
    return cases + accepted


def compare(run: Runner, cases: Sequence[Case], *, probabilities: bool = False) -> tuple[Comparison, ...]:
    """The error of the exported file for each case. Cases that it fails on and need not accept are left out.

    Probabilities are compared by their logarithms. They say as much as logits, whereas probabilities that are almost 0
    and 1 agree even if logits do not.
    """
    results = []
    for inputs, truth, needed in cases:
        try:
            found = run(inputs)
        except Exception as error:
            if not needed:
                continue
            raise ExportError(f"the exported file does not run on {_shapes_text(inputs)}: {error}") from error
        if [each.shape for each in found] != [each.shape for each in truth]:
            raise ExportError(
                f"for inputs {_shapes_text(inputs)} the model returns {_shapes_text(truth)}, but the exported file "
                f"returns {_shapes_text(found)}"
            )
        if probabilities:
            found, truth = ([each.clamp(min=SMALLEST).log() for each in tensors] for tensors in (found, truth))
        errors = [_relative_error(mine, theirs) for mine, theirs in zip(found, truth, strict=True)]
        results.append(Comparison(tuple(tuple(each.shape) for each in inputs), max(errors)))
    return tuple(results)


def _relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """‖result − truth‖ / ‖truth‖, or infinity if the result is not finite."""
    result, truth = result.double(), truth.double()
    difference, size = (result - truth).norm().item(), truth.norm().item()
    if difference == 0:
        return 0.0
    return difference / size if size and difference == difference else float("inf")


def _shapes_text(tensors: Sequence[torch.Tensor]) -> str:
    return ", ".join(described(tuple(each.shape)) for each in tensors)
