"""Which convolutions of a model can become FlexConvs, and what stands in the way of the others."""

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

Choice = str | Callable[[str, nn.Module], bool]


@dataclass
class Found:
    """A convolution to be replaced."""

    names: list[str]
    conv: Any  # a _ConvNd, or a parametrised one
    selected: list[bool]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def where(self) -> str:
        return f"{self.name or 'the model itself'} ({type(self.conv).__name__})"

    @property
    def kernel_size(self) -> tuple[int, ...]:
        return tuple(self.conv.kernel_size)

    def weight(self) -> torch.Tensor:
        """The kernel in use [out, in/groups, *k]: of a weight norm, its result."""
        for hook in self.conv._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                return hook.compute_weight(self.conv).detach()
        return self.conv.weight.detach()

    def report(self, layer: FlexConvNd, error: float | None) -> ConvertedLayer:
        notes = ["weight norm resolved"] * _weight_normed(self.conv)
        notes += ["hooks moved along"] * bool(_plain_hooks(self.conv))
        notes += [f"also {', '.join(self.names[1:])}"] * (len(self.names) > 1)
        count = sum(p.numel() for p in self.conv.parameters()), sum(p.numel() for p in layer.parameters())
        names, grid = tuple(self.names), layer.kernel_size
        return ConvertedLayer(self.name, names, self.kernel_size, grid, error, count, "; ".join(notes))


def find_convolutions(model: nn.Module, layers: Choice) -> tuple[list[Found], dict[str, str]]:
    """The convolutions that are chosen, and the chosen ones that stay as they are, with the reason."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"convert wants a torch.nn.Module; got {type(model).__name__}")
    if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        raise ArgumentError(
            f"this is a compiled {type(inner).__name__}: convert the model first, and compile the result"
        )
    if isinstance(layers, str):
        pattern = layers
        chosen: Callable[[str, nn.Module], bool] = lambda name, _: fnmatchcase(name, pattern)  # noqa: E731
    elif callable(layers):
        chosen = layers
    else:
        raise ArgumentTypeError(f"layers must be a pattern of names or a function of (name, module); got {layers!r}")
    found: dict[int, Found] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, _ConvNd | FlexConvNd):
            continue
        selected, reason = bool(chosen(name, module)), _reason_to_leave(module)
        if reason is None:
            each = found.setdefault(id(module), Found([], module, []))
            each.names.append(name)
            each.selected.append(selected)
        elif selected:
            left[name] = reason
    wanted = [each for each in found.values() if any(each.selected)]
    if not wanted:
        there = [f"{each.name} ({type(each.conv).__name__})" for each in found.values()]
        has = f"it has {', '.join(there[:8])}{', …' if len(there) > 8 else ''}" if there else "it has none"
        why = "".join(f"\n  {name or 'the model'} is left alone: {reason}" for name, reason in left.items())
        raise ArgumentError(f"no convolution of {type(model).__name__} to convert for layers={layers!r}: {has}{why}")
    return wanted, left


def _reason_to_leave(module: nn.Module) -> str | None:
    if isinstance(module, FlexConvNd):
        return "it is a FlexConv already"
    if isinstance(module, _ConvTransposeNd):
        return f"{type(module).__name__} has no FlexConv counterpart"
    if all(size == 1 for size in module.kernel_size):  # type: ignore[union-attr]
        return f"{'×'.join(map(str, module.kernel_size))}: nothing to resample or grow"  # type: ignore[arg-type]
    return None


def refuse_unconvertible(model: nn.Module, found: list[Found], init: str) -> None:
    """One error for all layers that cannot be converted, a line each."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    lines = [f"  {each.where} {reason}" for each in found if (reason := _objection(each, owners, init))]
    if lines:
        raise ArgumentError("cannot convert, leave out with layers=…:\n" + "\n".join(lines))


def _objection(each: Found, owners: dict[int, list[str]], init: str) -> str | None:
    conv = each.conv
    if isinstance(lazy := each.conv, LazyModuleMixin) and lazy.has_uninitialized_params():  # type: ignore[misc]
        return "is lazy and has no weights yet: run a batch through the model first"
    kind = parametrize.type_before_parametrizations(conv)
    if kind not in COUNTERPARTS:
        return "is a subclass of a convolution, and its forward may do something else"
    if not all(each.selected):
        others = [name for name, selected in zip(each.names, each.selected, strict=True) if not selected]
        return f"is one module with {', '.join(others)}, which was not chosen"
    if (constraint := _constraint(conv)) is not None:
        return f"has a weight that is computed by {constraint}, which a FlexConv would lose: remove that first"
    if any(not _of_torch(hook) for kind in _STATE_HOOKS for hook in getattr(conv, kind).values()):
        return "has hooks on its state dict, and a FlexConv has other entries there"
    tied = [n for n in owners.get(id(conv._parameters.get("weight")), []) if n.rpartition(".")[0] not in each.names]
    if tied:
        return f"shares its weight with {', '.join(tied)}"
    if each.weight().is_complex():
        return f"has complex weights ({each.weight().dtype})"
    if init == "fit" and each.weight().is_meta:
        return "is on the meta device: it has no kernel to fit until its weights are there"
    return None


def _constraint(conv: nn.Module) -> str | None:
    """What computes the weight of a parametrised, spectrally normalised or pruned layer; None for weight norm."""
    if parametrize.is_parametrized(conv):
        for name, steps in conv.parametrizations.items():  # type: ignore[union-attr, operator]
            for step in steps:
                if not isinstance(step, _WeightNorm) or name != "weight":
                    return f"a parametrisation ({type(step).__name__} of {name})"
    for hook in conv._forward_pre_hooks.values():
        if _of_torch(hook) and not (isinstance(hook, WeightNorm) and hook.name == "weight"):
            return f"{type(hook).__name__} at every forward"
    return None


def _of_torch(hook: Any) -> bool:
    """Whether a hook belongs to weight norm, spectral norm or pruning."""
    hook = getattr(hook, "hook", hook)  # some are wrapped
    module = hook.__module__ if hasattr(hook, "__qualname__") else type(hook).__module__
    return module.startswith("torch.nn.utils")


def _weight_normed(conv: nn.Module) -> bool:
    return parametrize.is_parametrized(conv, "weight") or any(
        isinstance(hook, WeightNorm) for hook in conv._forward_pre_hooks.values()
    )


def _plain_hooks(conv: nn.Module) -> list[Any]:
    return [hook for hook in hooks_of(conv) if not isinstance(hook, WeightNorm)]
