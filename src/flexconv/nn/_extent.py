"""Dynamic cropping: which taps of the grid a layer computes.

A window is a pair of Python integers per axis. It is decided outside `forward`, from a host copy of the few numbers
that matter (center and width of the mask), so tensor shapes never depend on values on the device. This keeps
`torch.compile(fullgraph=True)`, `torch.export` and CUDA graphs possible.

- Eager code checks before every forward pass whether the parameters of the mask may have changed, and reads them only
  if so.
- Compiled code cannot check. It uses the windows of the last `refresh_extents(model)`, and the whole grid if that was
  never called. Both give the same result, because taps outside the exact size are zero.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]  (there is no public way to ask)
    get_unwrapped,
    is_batchedtensor,
    is_gradtrackingtensor,
)
from torch.optim.optimizer import register_optimizer_step_post_hook

from .._registry import has_fast_version
from ..errors import ArgumentError
from ._grid import Axis, TapRange

Values = list[Any]  # of one parameter: numbers, nested like its shape

WINDOW_SLACK = 1e-4  # in taps: rounding may never make the window smaller than what the graph keeps


class _OptimizerSteps:
    """Counts the steps of all optimizers, because fused optimizers do not increase the version of a parameter."""

    taken = 0

    def __call__(self, *_: object) -> None:
        _OptimizerSteps.taken += 1


register_optimizer_step_post_hook(_OptimizerSteps())


def parameters_changed() -> None:
    """Make all layers check their sizes again, after a step that no hook sees, such as a replayed CUDA graph."""
    _OptimizerSteps.taken += 1


class SizeSource(Protocol):
    """A mask, or a generator with a size of its own."""

    def size_parameters(self) -> tuple[torch.Tensor, ...]: ...

    def bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor: ...


class Extent:
    """The taps that one layer keeps, and the windows that eager and compiled code compute.

    Holds integers and a record of the parameter values they came from. None of this is saved with the layer.
    """

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.axes = tuple(axes)
        self.whole = tuple(axis.whole for axis in axes)
        self.windows: tuple[TapRange, ...] = self.whole  # computed by eager code: the next larger of `window_sizes`
        self.compiled_windows: tuple[TapRange, ...] = self.whole  # computed by compiled code
        self._taps: tuple[TapRange, ...] | None = self.whole  # None until somebody asks
        self._values: Sequence[Values] = []  # of the size parameters, for `_taps`
        self._seen: _Values | Versions | None = None
        self._source: Callable[[], object] = _nothing
        self._settings: object = None
        self._compiled_settings: object = None

    def __getstate__(self) -> dict[str, object]:
        """Copy or pickle everything but the record of parameter values."""
        return {**self.__dict__, "_seen": None, "_source": _nothing}

    def taps(self, source: SizeSource | None) -> tuple[TapRange, ...]:
        """The taps that the mask keeps, as of the last update from this source."""
        if self._taps is None and source is not None:
            with torch.no_grad():
                bounds = source.bounds(as_tensors(source, self._values), self.axes)
                self._taps = tuple(_kept(axis, *ends) for axis, ends in zip(self.axes, bounds, strict=True))
        return self._taps or self.whole

    def update(self, source: SizeSource, values: Sequence[Values], *, name: str) -> None:
        """Set the window from the values of the source's size parameters."""
        if not all(math.isfinite(v) for parameter in values for v in _flat(parameter)):
            raise ArgumentError(
                f"the size of {name} is undefined: the parameters of its {type(source).__name__} must be finite; "
                f"got {list(values)}"
            )
        parameters = _stored(source)
        bounds = size_bounds(source, values, self.axes)
        needed = [axis.taps_between(*ends, slack=WINDOW_SLACK) for axis, ends in zip(self.axes, bounds, strict=True)]
        self.windows = tuple(axis.window_for(taps) for axis, taps in zip(self.axes, needed, strict=True))
        self._taps, self._values = None, values
        self._seen, self._source = _remember(parameters), weakref.ref(source)
        self._settings = size_settings(source)

    def publish(self) -> None:
        """Let compiled code use the window, with the same entry of `window_sizes` (from the largest) for all axes."""
        steps_below = min(axis.steps_below_whole(w) for axis, w in zip(self.axes, self.windows, strict=True))
        self.compiled_windows = tuple(
            axis.window_for(window, steps_below) for axis, window in zip(self.axes, self.windows, strict=True)
        )
        self._compiled_settings = self._settings

    def windows_in_compiled_code(self, source: SizeSource | None) -> tuple[TapRange, ...]:
        """The windows that compiled code uses: the whole grid if the settings of the mask have changed since."""
        return self.compiled_windows if self._compiled_settings == size_settings(source) else self.whole

    def invalidate(self) -> None:
        """Make compiled code use the whole grid, and eager code check again: the sizes may no longer be valid."""
        self.compiled_windows = self.whole
        self._seen = None

    def refresh_if_changed(self, source: SizeSource | None, *, name: Callable[[], str]) -> None:
        """Refresh if the size parameters may have changed since the last time (eager code only)."""
        if source is None:
            self._taps = self.windows = self.whole
            return
        parameters = _stored(source)
        if not all(map(readable, parameters)):
            self._taps = self.windows = self.whole  # no values to read: meta tensors, vmap over parameters
            self._seen = None
        elif (
            self._seen is None
            or self._source() is not source
            or self._settings != size_settings(source)
            or not self._seen.unchanged(parameters)
        ):
            self.update(source, read_values(parameters), name=name())


@has_fast_version("nn.read_values")
def read_values(parameters: Sequence[torch.Tensor]) -> list[Values]:
    """The values of a few tensors. Waits for the device that they are on."""
    return [p.tolist() for p in parameters]


@has_fast_version("nn.size_bounds")
def size_bounds(source: SizeSource, values: Sequence[Values], axes: Sequence[Axis]) -> list[list[float]]:
    """Lower and upper bound of the kept taps per axis, for given values of the size parameters."""
    with torch.no_grad():
        return source.bounds(as_tensors(source, values), axes).tolist()


def refresh(extents: Iterable[tuple[str, Extent, SizeSource]]) -> None:
    """Set the windows of many layers from one host copy per device, and let compiled code use them."""
    by_device: dict[torch.device, list[tuple[str, Extent, SizeSource]]] = {}
    for each in extents:
        parameters = _stored(each[2])
        if all(map(readable, parameters)):
            by_device.setdefault(parameters[0].device, []).append(each)
    for layers in by_device.values():
        everything = [p.detach().flatten() for _, _, source in layers for p in _stored(source)]
        copy = torch.cat(everything).cpu()
        start = 0
        for name, extent, source in layers:
            values = []
            for parameter in source.size_parameters():
                values.append(copy[start : start + parameter.numel()].view(parameter.shape).tolist())
                start += parameter.numel()
            extent.update(source, values, name=name)
            extent.publish()


def size_settings(source: SizeSource | None) -> tuple[object, ...]:
    """Attributes of a mask, other than parameters, that its size depends on."""
    return getattr(source, "threshold", None), getattr(source, "form", None)


def as_tensors(source: SizeSource, values: Sequence[Values]) -> list[torch.Tensor]:
    """Values of the size parameters as tensors on the host, in the precision that the mask computes in."""
    dtypes = [torch.float32 if p.itemsize < 4 else p.dtype for p in source.size_parameters()]
    return [torch.tensor(v, dtype=dtype, device="cpu") for v, dtype in zip(values, dtypes, strict=True)]


def _flat(values: Values) -> Iterable[float]:
    return (n for v in values for n in (_flat(v) if isinstance(v, list) else (v,)))


def _nothing() -> None:
    """Stands for a weak reference to nothing; unlike one, it can be copied and pickled."""


def _kept(axis: Axis, low: torch.Tensor, high: torch.Tensor) -> TapRange:
    """The taps between two bounds, by the same comparison that the mask makes."""
    x = axis.coordinates(axis.whole, device=low.device, dtype=low.dtype)
    kept = ((x > low) & (x < high)).nonzero().flatten().tolist()
    return (kept[0], kept[-1] + 1) if kept else (0, 0)


class Versions:
    """Records identity and version of tensors, to tell without reading them whether their values may have changed."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.note = self._note(tensors)
        # Kept alive, because the same address could belong to another tensor later. Weak references would make
        # torch.utils.swap_tensors fail, and with it load_state_dict if torch is configured to swap parameters.
        self.tensors = list(tensors)

    def unchanged(self, tensors: Sequence[torch.Tensor]) -> bool:
        if len(tensors) != len(self.tensors):
            return False
        for tensor, other in zip(tensors, self.tensors, strict=True):
            if tensor is not other:
                return False
        return self.note == self._note(tensors)

    @staticmethod
    def _note(tensors: Sequence[torch.Tensor]) -> object:
        steps = 0
        note: list[object] = []
        for tensor in tensors:  # a loop, because layers ask in every forward pass
            if tensor.requires_grad:
                steps = _OptimizerSteps.taken
            note += 0 if tensor.is_inference() else tensor._version, tensor.data_ptr()
        return steps, note


class _Values:
    """Records the values of a few tensors in host memory."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.note = [t.tolist() for t in tensors]

    def unchanged(self, tensors: Sequence[torch.Tensor]) -> bool:
        return all(t.device.type == "cpu" for t in tensors) and self.note == [t.tolist() for t in tensors]


def _remember(tensors: Sequence[torch.Tensor]) -> _Values | Versions:
    return _Values(tensors) if all(t.device.type == "cpu" for t in tensors) else Versions(tensors)


def _stored(source: SizeSource) -> tuple[torch.Tensor, ...]:
    """The size parameters. Derivatives of `torch.func` wrap them in tensors without memory; these are unwrapped."""
    return tuple(map(unwrapped, source.size_parameters()))


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, without the wrappers of `torch.func`."""
    while is_gradtrackingtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def readable(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values to read. Meta and fake tensors have none, nor do parameters inside vmap."""
    tensor = unwrapped(tensor)
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta
    return plain and not is_batchedtensor(tensor)
