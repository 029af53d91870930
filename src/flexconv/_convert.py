"""Plain convolutions of any model as FlexConvs: the reverse of `materialize`."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from ._arguments import per_axis, unknown_name
from ._fit_kernels import fit_kernels, output_map
from .nn import GENERATORS, FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask
from .nn._conv import FlexConvNd, KernelFactory
from .ops._geometry import Padding

if TYPE_CHECKING:
    from rich.console import Console

INITS = ("fresh", "fit")
_LAYERS: dict[type[nn.Module], type[FlexConvNd]] = {
    nn.Conv1d: FlexConv1d,
    nn.Conv2d: FlexConv2d,
    nn.Conv3d: FlexConv3d,
}
FLAT = 2.0  # σ of a mask over the whole grid, [−1, 1]
_USUAL_GRID = 33  # generators draw their frequencies for a grid of about so many taps
_CARRIED_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)

Choice = str | Callable[[str, nn.Module], bool]
GridSize = int | Sequence[int]


@dataclass(frozen=True)
class ConvertedLayer:
    """One convolution that became a FlexConv.

    name: where it is in the model; `names` are all its places, if it is used at several.
    kernel_size, grid: taps per axis of the kernel it had, and of the grid it can grow to.
    error: ‖new kernel − old kernel‖ / ‖old kernel‖; None where it was not fitted.
    parameters: how many numbers it had and has.
    note: what became of hooks or weight norm, if it had any.
    """

    name: str
    names: tuple[str, ...]
    kernel_size: tuple[int, ...]
    grid: tuple[int, ...]
    error: float | None
    parameters: tuple[int, int]
    note: str


@dataclass(frozen=True)
class ConversionReport:
    """What `convert` did: layer by layer, and which convolutions it left as they were and why."""

    layers: tuple[ConvertedLayer, ...]
    left: dict[str, str]

    @property
    def worst(self) -> float | None:
        """The largest relative error of a fitted layer."""
        return max((layer.error for layer in self.layers if layer.error is not None), default=None)

    def __str__(self) -> str:
        rows = [("layer", "kernel", "grid", "parameters", "error", "")]
        for each in self.layers:
            error = "–" if each.error is None else f"{each.error:.1e}"
            before, after = each.parameters
            kernel, grid = ("×".join(map(str, size)) for size in (each.kernel_size, each.grid))
            rows.append((each.name or "(the model)", kernel, grid, f"{before:,} → {after:,}", error, each.note))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"left alone: {name or '(the model)'}, {why}" for name, why in self.left.items())])


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
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps must be a whole number, at least 0; got {steps!r}")
    if isinstance(generator, str) and generator not in GENERATORS:
        unknown_name("kernel generator", generator, GENERATORS)
    if isinstance(generator, nn.Module) or not (isinstance(generator, str) or callable(generator)):
        raise TypeError(f"generator must be a name or a function that makes a new one per layer; got {generator!r}")
    found, left = _find(model, layers)
    _refuse(model, found, init)
    grids = {each.name: _grid(each, kernel_size) for each in found}
    made = [_flexible(each, grids[each.name], generator, fit=init == "fit") for each in found]
    errors: list[float] | list[None] = [None] * len(found)
    if init == "fit":
        targets = [_target(each, layer) for each, layer in zip(found, made, strict=True)]
        for each, target in zip(found, targets, strict=True):
            if not target.isfinite().all():
                raise ValueError(f"cannot fit the kernel of {each.where}: it holds values that are not finite")
        with _progress(console, len(found) * steps) as advance:
            errors = fit_kernels(made, targets, steps=steps, advance=advance)
    else:
        for each, layer in zip(found, made, strict=True):
            _match_norm(each, layer)
    report = ConversionReport(
        tuple(each.report(layer, error) for each, layer, error in zip(found, made, errors, strict=True)), left
    )
    return _replaced(model, found, made), report


# --- which layers -----------------------------------------------------------------------------------------------------


@dataclass
class _Found:
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


def _find(model: nn.Module, layers: Choice) -> tuple[list[_Found], dict[str, str]]:
    """The convolutions that are chosen, and the chosen ones that stay as they are, with the reason."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert wants a torch.nn.Module; got {type(model).__name__}")
    if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        raise ValueError(f"this is a compiled {type(inner).__name__}: convert the model first, and compile the result")
    if isinstance(layers, str):
        pattern = layers
        chosen: Callable[[str, nn.Module], bool] = lambda name, _: fnmatchcase(name, pattern)  # noqa: E731
    elif callable(layers):
        chosen = layers
    else:
        raise TypeError(f"layers must be a pattern of names or a function of (name, module); got {layers!r}")
    found: dict[int, _Found] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, _ConvNd | FlexConvNd):
            continue
        selected, reason = bool(chosen(name, module)), _reason_to_leave(module)
        if reason is None:
            each = found.setdefault(id(module), _Found([], module, []))
            each.names.append(name)
            each.selected.append(selected)
        elif selected:
            left[name] = reason
    wanted = [each for each in found.values() if any(each.selected)]
    if not wanted:
        there = [f"{each.name} ({type(each.conv).__name__})" for each in found.values()]
        has = f"it has {', '.join(there[:8])}{', …' if len(there) > 8 else ''}" if there else "it has none"
        why = "".join(f"\n  {name or 'the model'} is left alone: {reason}" for name, reason in left.items())
        raise ValueError(f"no convolution of {type(model).__name__} to convert for layers={layers!r}: {has}{why}")
    return wanted, left


def _reason_to_leave(module: nn.Module) -> str | None:
    if isinstance(module, FlexConvNd):
        return "it is a FlexConv already"
    if isinstance(module, _ConvTransposeNd):
        return f"{type(module).__name__} has no FlexConv counterpart"
    if all(size == 1 for size in module.kernel_size):  # type: ignore[union-attr]
        return f"{'×'.join(map(str, module.kernel_size))}: nothing to resample or grow"  # type: ignore[arg-type]
    return None


# --- what cannot be converted -----------------------------------------------------------------------------------------


def _refuse(model: nn.Module, found: list[_Found], init: str) -> None:
    """One error for all layers that cannot be converted, a line each."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    lines = [f"  {each.where} {reason}" for each in found if (reason := _objection(each, owners, init))]
    if lines:
        raise ValueError("cannot convert, leave out with layers=…:\n" + "\n".join(lines))


def _objection(each: _Found, owners: dict[int, list[str]], init: str) -> str | None:
    conv = each.conv
    if isinstance(lazy := each.conv, LazyModuleMixin) and lazy.has_uninitialized_params():  # type: ignore[misc]
        return "is lazy and has no weights yet: run a batch through the model first"
    kind = parametrize.type_before_parametrizations(conv)
    if kind not in _LAYERS:
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
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [hook for kind in kinds for hook in getattr(conv, kind).values()]
    return [hook for hook in hooks if not isinstance(hook, WeightNorm)]


# --- the new layers ---------------------------------------------------------------------------------------------------


def _grid(each: _Found, kernel_size: int | Callable[[str, nn.Module], GridSize] | None) -> tuple[int, ...]:
    """Taps per axis of the new grid."""
    old = each.kernel_size
    if kernel_size is None:
        return old
    if isinstance(kernel_size, int):
        per_axis("kernel_size", kernel_size, 1, minimum=1)
        new = tuple(kernel_size if size > 1 else 1 for size in old)
    elif callable(kernel_size):
        new = per_axis("kernel_size", kernel_size(each.name, each.conv), len(old), minimum=1)
    else:
        raise TypeError(f"kernel_size must be an int, None or a function of (name, module); got {kernel_size!r}")
    if any(after < before for after, before in zip(new, old, strict=True)):
        sizes = ("×".join(map(str, size)) for size in (new, old))
        raise ValueError("a grid of {} is smaller than the {} kernel of {}".format(*sizes, each.where))
    return new


def _starts(old: Sequence[int], grid: Sequence[int]) -> list[int]:
    """The tap of the grid where the old kernel begins, per axis: in the middle, or half a tap before it."""
    return [(size - taps) // 2 for size, taps in zip(grid, old, strict=True)]


def _padding(each: _Found, grid: Sequence[int]) -> Padding:
    """The padding that puts the old taps where they were."""
    conv, old = each.conv, each.kernel_size
    pads = []
    for axis, (taps, size, step, start) in enumerate(zip(old, grid, conv.dilation, _starts(old, grid), strict=True)):
        reach = step * (taps - 1)
        if conv.padding == "same":
            left, right = reach // 2, reach - reach // 2
        else:
            left = right = 0 if conv.padding == "valid" else conv.padding[axis]
        pads.append((left + start * step, right + (size - taps - start) * step))
    if all(
        left == right == step * (size - 1) / 2
        for (left, right), step, size in zip(pads, conv.dilation, grid, strict=True)
    ):
        return "same"
    return tuple(left if left == right else (left, right) for left, right in pads)


def _flexible(each: _Found, grid: tuple[int, ...], generator: str | KernelFactory, *, fit: bool) -> FlexConvNd:
    """A FlexConv in place of a convolution: its mask keeps just the taps that the kernel had."""
    conv, old, weight = each.conv, each.kernel_size, each.weight()
    place: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    kind = parametrize.type_before_parametrizations(conv)
    factory = _suited(generator, grid, old) if fit and isinstance(generator, str) else generator
    layer = _LAYERS[kind](
        conv.in_channels,
        conv.out_channels,
        grid,
        conv.stride,
        _padding(each, grid),
        conv.dilation,
        conv.groups,
        conv.bias is not None,
        conv.padding_mode,
        **place,
        kernel=factory,
        mask=None,
    )
    if not hasattr(layer.generator, "size_parameters"):
        layer.mask = _mask_around(old, grid, **place)
        layer._settle(fresh=True)
    elif fit:
        raise ValueError(
            f"init='fit' shapes a kernel under a mask; {type(layer.generator).__name__} has a size of its own: "
            "choose another generator"
        )
    trained = [p for name, p in conv.named_parameters() if not name.endswith("bias")]
    for part in (layer.generator, layer.mask):
        if part is not None:
            part.requires_grad_(any(p.requires_grad for p in trained))
    if layer.bias is not None:
        with torch.no_grad():
            layer.bias.copy_(conv.bias)
        layer.bias.requires_grad_(conv.bias.requires_grad)
    return layer.train(conv.training)


def _mask_around(old: Sequence[int], grid: Sequence[int], **place: Any) -> GaussianMask:
    """A mask that falls to its threshold half a tap outside the old kernel; nearly flat where that fills the grid.

    (At another resolution a mask keeps its own sum. The flatter it is, the less that says about the kernel under it.)
    """
    means, sigmas = [], []
    for taps, size, start in zip(old, grid, _starts(old, grid), strict=True):
        spacing = 2.0 / max(size - 1, 1)
        means.append((start + (taps - 1) / 2 - (size - 1) / 2) * spacing)
        sigmas.append(FLAT if size == taps else taps / 2 * spacing / math.sqrt(-2 * math.log(0.1)))
    return GaussianMask(len(grid), mean=means, sigma=sigmas, threshold=0.1, **place)


def _suited(name: str, grid: Sequence[int], kernel_size: Sequence[int]) -> KernelFactory:
    """A generator that can meet a kernel of so many taps, and is no wilder between them than the grid can show."""
    taps = math.prod(max(taps, min(size, 3)) for taps, size in zip(kernel_size, grid, strict=True))  # masks keep ≥ 3
    finer = (_USUAL_GRID - 1) / (max(grid) - 1)  # how much coarser this grid is than the usual one
    options: dict[str, dict[str, float]] = {
        "magnet": {"beta": finer},  # smaller γ, and frequencies ∝ γ
        "gabor": {"beta": finer},
        "fourier": {"input_scale": 25.6 / finer},
        "siren": {"omega_0": 30.0 / finer},
        "nsiren": {"omega_0": 30.0 / finer},
    }
    if name != "njet":
        options[name] = options.get(name, {}) | {"hidden": min(128, max(32, 2 ** math.ceil(math.log2(taps + 1))))}
    return functools.partial(GENERATORS[name], **options.get(name, {}))


def _target(each: _Found, layer: FlexConvNd) -> torch.Tensor:
    """The old kernel on the taps that the mask keeps, zeros where it keeps more."""
    layer._follow()
    weight = each.weight()
    whole = weight.new_zeros(*weight.shape[:2], *layer.kernel_size)
    starts = _starts(each.kernel_size, layer.kernel_size)
    inner = tuple(slice(start, start + taps) for start, taps in zip(starts, each.kernel_size, strict=True))
    whole[(..., *inner)] = weight
    return whole[(..., *(slice(*window) for window in layer._extent.taps))]


@torch.no_grad()
def _match_norm(each: _Found, layer: FlexConvNd) -> None:
    """Scale a fresh kernel to the norm of the old one: activations keep the size they had."""
    last = output_map(layer.generator)
    if last is None or last.weight.is_meta:
        return
    old, new = each.weight().double().norm().item(), layer.kernel().double().norm().item()
    if old > 0 and new > 0 and math.isfinite(old / new):
        last.weight.mul_(old / new)
        last.bias.mul_(old / new)


def _replaced(model: nn.Module, found: list[_Found], made: list[FlexConvNd]) -> nn.Module:
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
