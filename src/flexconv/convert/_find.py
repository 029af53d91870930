"""Find the convolutions of a model, and check that they can be replaced with FlexConv layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from .._hooks import hooks_of
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import FlexConv1d, FlexConv2d, FlexConv3d, FlexConvNd
from ._report import ConvertedLayer

COUNTERPARTS: dict[type[nn.Module], type[FlexConvNd]] = {
    nn.Conv1d: FlexConv1d,
    nn.Conv2d: FlexConv2d,
    nn.Conv3d: FlexConv3d,
}
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

Selection = str | Callable[[str, nn.Module], bool]


@dataclass
class Convolution:
    """A convolution of the model, and all the names it has there."""

    names: list[str]
    conv: Any  # a _ConvNd, possibly with parametrizations
    selected: list[bool]  # per name

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def label(self) -> str:
        """Name and class, for messages."""
        return f"{self.name or 'the model itself'} ({type(self.conv).__name__})"

    @property
    def kernel_size(self) -> tuple[int, ...]:
        return tuple(self.conv.kernel_size)

    def weight(self) -> torch.Tensor:
        """The kernel [out, in/groups, *k], with weight norm applied."""
        for hook in self.conv._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                return hook.compute_weight(self.conv).detach()
        return self.conv.weight.detach()

    def report(self, layer: FlexConvNd, error: float | None) -> ConvertedLayer:
        notes = ["weight norm folded in"] * _has_weight_norm(self.conv)
        notes += ["hooks copied"] * bool(_user_hooks(self.conv))
        notes += [f"also used as {', '.join(self.names[1:])}"] * (len(self.names) > 1)
        count = sum(p.numel() for p in self.conv.parameters()), sum(p.numel() for p in layer.parameters())
        names, grid = tuple(self.names), layer.kernel_size
        return ConvertedLayer(self.name, names, self.kernel_size, grid, error, count, "; ".join(notes))


def find_convolutions(model: nn.Module, layers: Selection) -> tuple[list[Convolution], dict[str, str]]:
    """The selected convolutions to replace, and the selected ones to skip: name → reason."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"convert expects a torch.nn.Module; got {type(model).__name__}")
    if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        raise ArgumentError(
            f"the model is a compiled {type(inner).__name__}: convert the model first, then compile the result"
        )
    if isinstance(layers, str):
        pattern = layers
        is_selected: Callable[[str, nn.Module], bool] = lambda name, _: fnmatchcase(name, pattern)  # noqa: E731
    elif callable(layers):
        is_selected = layers
    else:
        raise ArgumentTypeError(f"layers must be a pattern of names or a function of (name, module); got {layers!r}")
    found: dict[int, Convolution] = {}
    skipped: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, _ConvNd | FlexConvNd):
            continue
        selected, reason = bool(is_selected(name, module)), _reason_to_skip(module)
        if reason is None:
            each = found.setdefault(id(module), Convolution([], module, []))
            each.names.append(name)
            each.selected.append(selected)
        elif selected:
            skipped[name] = reason
    selected_ones = [each for each in found.values() if any(each.selected)]
    if not selected_ones:
        names = [f"{each.name} ({type(each.conv).__name__})" for each in found.values()]
        existing = f"it has {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else "it has none"
        reasons = "".join(f"\n  {name or 'the model'} is skipped: {reason}" for name, reason in skipped.items())
        raise ArgumentError(
            f"{type(model).__name__} has no convolution to convert that matches layers={layers!r}: {existing}{reasons}"
        )
    return selected_ones, skipped


def _reason_to_skip(module: nn.Module) -> str | None:
    if isinstance(module, FlexConvNd):
        return "it is already a FlexConv"
    if isinstance(module, _ConvTransposeNd):
        return f"{type(module).__name__} has no FlexConv counterpart"
    if all(size == 1 for size in module.kernel_size):  # type: ignore[union-attr]
        return f"{'×'.join(map(str, module.kernel_size))} kernels cannot be resampled or grow"  # type: ignore[arg-type]
    return None


def check_convertible(model: nn.Module, found: list[Convolution], init: str) -> None:
    """Raise one error that lists every layer that cannot be converted, with the reason."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    lines = [f"  {each.label} {reason}" for each in found if (reason := _problem(each, owners, init))]
    if lines:
        raise ArgumentError("cannot convert these layers; exclude them with layers=…:\n" + "\n".join(lines))


def _problem(each: Convolution, owners: dict[int, list[str]], init: str) -> str | None:
    conv = each.conv
    if isinstance(lazy := each.conv, LazyModuleMixin) and lazy.has_uninitialized_params():  # type: ignore[misc]
        return "is lazy and has no weights yet: run a batch through the model first"
    kind = parametrize.type_before_parametrizations(conv)
    if kind not in COUNTERPARTS:
        return "is a subclass of a convolution, whose forward may compute something else"
    if not all(each.selected):
        others = [name for name, selected in zip(each.names, each.selected, strict=True) if not selected]
        return f"is the same module as {', '.join(others)}, which is not selected"
    if (constraint := _constraint(conv)) is not None:
        return f"has a weight that is computed by {constraint}, which a FlexConv would not apply: remove it first"
    if any(not _is_torch_hook(hook) for kind in _STATE_HOOKS for hook in getattr(conv, kind).values()):
        return "has state dict hooks, and the state dict of a FlexConv has other entries"
    tied = [n for n in owners.get(id(conv._parameters.get("weight")), []) if n.rpartition(".")[0] not in each.names]
    if tied:
        return f"shares its weight with {', '.join(tied)}"
    if each.weight().is_complex():
        return f"has complex weights ({each.weight().dtype})"
    if init == "fit" and each.weight().is_meta:
        return "is on the meta device and has no kernel to fit"
    return None


def _constraint(conv: nn.Module) -> str | None:
    """What computes the weight of a layer, such as a parametrization or pruning; None for weight norm."""
    if parametrize.is_parametrized(conv):
        for name, steps in conv.parametrizations.items():  # type: ignore[union-attr, operator]
            for step in steps:
                if not isinstance(step, _WeightNorm) or name != "weight":
                    return f"a parametrization ({type(step).__name__} of {name})"
    for hook in conv._forward_pre_hooks.values():
        if _is_torch_hook(hook) and not (isinstance(hook, WeightNorm) and hook.name == "weight"):
            return f"{type(hook).__name__} in every forward"
    return None


def _is_torch_hook(hook: Any) -> bool:
    """Whether a hook comes from torch.nn.utils: weight norm, spectral norm or pruning."""
    hook = getattr(hook, "hook", hook)  # some hooks are wrapped
    module = hook.__module__ if hasattr(hook, "__qualname__") else type(hook).__module__
    return module.startswith("torch.nn.utils")


def _has_weight_norm(conv: nn.Module) -> bool:
    return parametrize.is_parametrized(conv, "weight") or any(
        isinstance(hook, WeightNorm) for hook in conv._forward_pre_hooks.values()
    )


def _user_hooks(conv: nn.Module) -> list[Any]:
    return [hook for hook in hooks_of(conv) if not isinstance(hook, WeightNorm)]
