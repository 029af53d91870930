"""`convert`: replace the convolutions of any model with FlexConv layers. The reverse of `materialize`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.weight_norm import WeightNorm

from .._arguments import as_int, unknown_name
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import GENERATORS, FlexConvNd, KernelFactory
from ._find import Convolution, Selection, check_convertible, find_convolutions
from ._fit import fit_kernels
from ._layer import GridSize, grid_size, make_layer, match_norm, target_kernel
from ._report import ConversionReport

if TYPE_CHECKING:
    from rich.console import Console

INITS = ("fresh", "fit")
_COPIED_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@torch.inference_mode(False)  # fitting needs gradients, even if the caller has disabled them
def convert(
    model: nn.Module,
    *,
    kernel_size: int | Callable[[str, nn.Module], GridSize] | None = None,
    layers: Selection = "*",
    init: str = "fresh",
    generator: str | KernelFactory = "magnet",
    steps: int = 200,
    console: Console | None = None,
) -> tuple[nn.Module, ConversionReport]:
    """Return a copy of the model with `torch.nn.Conv1d/2d/3d` replaced by FlexConv layers, and a report.

        flexible, report = convert(model, kernel_size=33)    # kernels start at their old size and can grow to 33 taps
        flexible, report = convert(trained, init="fit")      # computes the same outputs as the trained model
        double = at_resolution(flexible, 2)                  # and can run at twice the resolution

    The new layers keep stride, dilation, groups, padding, padding mode, bias, device, dtype, training mode and
    `requires_grad`. Output sizes stay the same on a larger grid, too: the old kernel lies in the middle of the grid,
    and the mask starts around it. The new layers have parametrization="paper"; `flexconv.parameter_groups` returns
    suitable learning rates for them. 1×1 convolutions, transposed convolutions and FlexConv layers are skipped. Use
    `materialize` to convert FlexConv layers back.

    Some convolutions cannot be replaced without changing what the model computes: subclasses with their own forward,
    weights that are constrained or shared with other layers, and lazy layers without weights. They raise an error that
    names them. Exclude them with `layers`. Forward and backward hooks are copied to the new layer. Weight norm is
    folded into the kernel. A module that reads `conv.weight` in its own forward stops working, because a FlexConv has
    no such attribute.

    Arguments:
        kernel_size: taps of the grid per axis. None means the size of the kernel. An int applies to every axis on which
            the kernel has more than one tap. A function of (name, module) returns an int or one int per axis.
        layers: which convolutions to replace: a pattern of names, such as "stages.*.conv?" (see `fnmatch`), or a
            function of (name, module) that returns a bool.
        init: "fresh" initializes new kernels and scales them to the norm of the old ones. "fit" fits each generator to
            the old kernel, and the report contains the relative errors; see docs/convert.md.
        generator: a name from `flexconv.nn.GENERATORS`, or a function such as `functools.partial(MAGNet, hidden=64)`.
            If a name is combined with `init="fit"`, the generator gets as many features as the kernel has taps (32 to
            128), and frequencies that suit its grid.
        steps: number of Adam steps for `init="fit"`.
        console: shows a progress bar on this console, if it is a terminal.

    """
    if init not in INITS:
        unknown_name("init", init, INITS)
    count = as_int(steps)
    if count is None or count < 0:
        raise ArgumentError(f"steps must be an integer of at least 0; got {steps!r}")
    if isinstance(generator, str) and generator not in GENERATORS:
        unknown_name("kernel generator", generator, GENERATORS)
    if isinstance(generator, nn.Module) or not (isinstance(generator, str) or callable(generator)):
        raise ArgumentTypeError(
            f"generator must be a name or a function that creates a new generator for each layer; got {generator!r}"
        )
    found, skipped = find_convolutions(model, layers)
    check_convertible(model, found, init)
    grids = {each.name: grid_size(each, kernel_size) for each in found}
    made = [make_layer(each, grids[each.name], generator, fit=init == "fit") for each in found]
    errors: list[float] | list[None] = [None] * len(found)
    if init == "fit":
        targets = [target_kernel(each, layer) for each, layer in zip(found, made, strict=True)]
        for each, target in zip(found, targets, strict=True):
            if not target.isfinite().all():
                raise ArgumentError(f"cannot fit the kernel of {each.label}: it contains values that are not finite")
        with _progress(console, len(found) * count) as advance:
            errors = fit_kernels(made, targets, steps=count, advance=advance)
    else:
        for each, layer in zip(found, made, strict=True):
            match_norm(each, layer)
    report = ConversionReport(
        tuple(each.report(layer, error) for each, layer, error in zip(found, made, errors, strict=True)), skipped
    )
    return _replace(model, found, made), report


def _replace(model: nn.Module, found: list[Convolution], made: list[FlexConvNd]) -> nn.Module:
    """A copy of the model in which every reference to an old layer refers to the new one.

    `copy.deepcopy` returns the object in its memo in place of a copy, so the new layers go into the memo.
    """
    memo: dict[int, Any] = {id(each.conv): layer for each, layer in zip(found, made, strict=True)}
    for each, layer in zip(found, made, strict=True):
        if layer.bias is not None:
            layer.bias = memo.setdefault(id(each.conv.bias), layer.bias)  # tied biases stay tied
    for module in model.modules():  # computed weights (old-style weight norm, pruning), which torch cannot copy
        computed = [v for v in vars(module).values() if isinstance(v, torch.Tensor) and not v.is_leaf]
        memo |= {id(value): value.detach().clone() for value in computed}
    for each, layer in zip(found, made, strict=True):
        for kind in _COPIED_HOOKS:
            hooks = {key: hook for key, hook in getattr(each.conv, kind).items() if not isinstance(hook, WeightNorm)}
            getattr(layer, kind).update(copy.deepcopy(hooks, memo))
        layer._is_full_backward_hook = each.conv._is_full_backward_hook
    return copy.deepcopy(model, memo)


@contextmanager
def _progress(console: Console | None, total: int) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on the console; yields a function that advances it, or None without a terminal."""
    if console is None or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("fitting kernels", total=total)
        yield lambda amount: bar.advance(task, amount)
