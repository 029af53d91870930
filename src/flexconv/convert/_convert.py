"""Plain convolutions of any model as FlexConvs: the reverse of `materialize`."""

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
from ._find import Choice, Found, find_convolutions, refuse_unconvertible
from ._fit import fit_kernels
from ._layer import GridSize, flexible_layer, grid_of, match_norm, target_of
from ._report import ConversionReport

if TYPE_CHECKING:
    from rich.console import Console

INITS = ("fresh", "fit")
_CARRIED_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@torch.inference_mode(False)  # it fits with gradients, also where the caller has none
def convert(
    model: nn.Module,
    *,
    kernel_size: int | Callable[[str, nn.Module], GridSize] | None = None,
    layers: Choice = "*",
    init: str = "fresh",
    generator: str | KernelFactory = "magnet",
    steps: int = 200,
    console: Console | None = None,
) -> tuple[nn.Module, ConversionReport]:
    """A copy of the model with `torch.nn.Conv1d/2d/3d` replaced by FlexConvs, and a report.

        flexible, report = convert(model, kernel_size=33)            # layers start as large as they were, and can grow
        flexible, report = convert(trained, init="fit")              # the same outputs, as functions of position …
        double = at_resolution(flexible, 2)                          # … so that the model runs at twice the resolution

    Stride, dilation, groups, padding of any form and mode, bias, device, dtype, mode and frozen parameters stay; so do
    output sizes, also on a larger grid: the old kernel's place is in the middle of it, and the mask starts around that.
    1×1 convolutions, ConvTranspose and FlexConvs are left alone. `materialize` is the way back.

    A convolution that cannot be replaced without changing what the model is (subclasses with a forward of their own,
    weights under a constraint or shared with other layers, lazy ones without weights) is an error that names it: leave
    it out with `layers`. Hooks on inputs, outputs and gradients move along; weight norm is resolved. A module that
    itself reads `conv.weight` in its forward finds none.

    Arguments:
        kernel_size: taps of the grid per axis; None: as many as the kernel has. An int is for every axis with more than
            one tap. Or a function of (name, module) that gives an int or one per axis.
        layers: a pattern of names ("stages.*.conv?", by the rules of fnmatch), or a function of (name, module).
        init: "fresh" draws new kernels, of the norm that the old ones had. "fit" fits each generator to the kernel
            that is there, and the report gives the relative error; see docs/convert.md.
        generator: a name from `flexconv.nn.GENERATORS`, or a function such as `functools.partial(MAGNet, hidden=64)`.
            By name, fitted ones get as many features as the kernel has taps (32 to 128), and frequencies that suit
            its grid.
        steps: of Adam, for "fit".
        console: shows a progress bar there, if it is a terminal.

    """
    if init not in INITS:
        unknown_name("init", init, INITS)
    count = as_int(steps)
    if count is None or count < 0:
        raise ArgumentError(f"steps must be a whole number, at least 0; got {steps!r}")
    if isinstance(generator, str) and generator not in GENERATORS:
        unknown_name("kernel generator", generator, GENERATORS)
    if isinstance(generator, nn.Module) or not (isinstance(generator, str) or callable(generator)):
        raise ArgumentTypeError(
            f"generator must be a name or a function that makes a new one per layer; got {generator!r}"
        )
    found, left = find_convolutions(model, layers)
    refuse_unconvertible(model, found, init)
    grids = {each.name: grid_of(each, kernel_size) for each in found}
    made = [flexible_layer(each, grids[each.name], generator, fit=init == "fit") for each in found]
    errors: list[float] | list[None] = [None] * len(found)
    if init == "fit":
        targets = [target_of(each, layer) for each, layer in zip(found, made, strict=True)]
        for each, target in zip(found, targets, strict=True):
            if not target.isfinite().all():
                raise ArgumentError(f"cannot fit the kernel of {each.where}: it holds values that are not finite")
        with _progress(console, len(found) * count) as advance:
            errors = fit_kernels(made, targets, steps=count, advance=advance)
    else:
        for each, layer in zip(found, made, strict=True):
            match_norm(each, layer)
    report = ConversionReport(
        tuple(each.report(layer, error) for each, layer, error in zip(found, made, errors, strict=True)), left
    )
    return _replaced(model, found, made), report


def _replaced(model: nn.Module, found: list[Found], made: list[FlexConvNd]) -> nn.Module:
    """A copy of the model with the new layers in it, wherever the old ones were used."""
    memo: dict[int, Any] = {id(each.conv): layer for each, layer in zip(found, made, strict=True)}
    for each, layer in zip(found, made, strict=True):
        if layer.bias is not None:
            layer.bias = memo.setdefault(id(each.conv.bias), layer.bias)  # tied biases stay tied
    for module in model.modules():  # weights of old-style weight norm and pruning, which torch does not copy
        results = [v for v in vars(module).values() if isinstance(v, torch.Tensor) and not v.is_leaf]
        memo |= {id(result): result.detach().clone() for result in results}
    for each, layer in zip(found, made, strict=True):
        for kind in _CARRIED_HOOKS:
            hooks = {key: hook for key, hook in getattr(each.conv, kind).items() if not isinstance(hook, WeightNorm)}
            getattr(layer, kind).update(copy.deepcopy(hooks, memo))
        layer._is_full_backward_hook = each.conv._is_full_backward_hook
    return copy.deepcopy(model, memo)


@contextmanager
def _progress(console: Console | None, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on the console, while it goes on."""
    if console is None or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("fitting kernels", total=total)
        yield lambda amount: bar.advance(task, amount)
