"""Dynamic cropping: which taps of the grid a layer computes, kept up to date without stopping the device.

A window is plain Python integers, decided outside `forward` from a host copy of the few numbers that matter (centre
and width of the mask). So shapes never depend on device data: `torch.compile(fullgraph=True)`, `torch.export` and CUDA
graphs stay possible.

- Eager code asks `current_windows` at every forward; it looks at the parameters again only after they may have changed.
- Compiled code cannot ask. It uses windows it was given by `refresh_extents(model)`, and the whole grid where nobody
  ever called that: slower, never wrong, because taps outside the exact size are zeroed in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import nn
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]  (there is no public way to ask)
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
)

from ._grid import Axis, Window

__all__ = ["Extent", "SizeSource", "is_functorch_wrapped_tensor", "refresh"]

WINDOW_SLACK = 1e-4  # in taps: rounding may never make the window smaller than what the graph keeps


class SizeSource(Protocol):
    """A mask, or a generator with a size of its own."""

    def size_parameters(self) -> tuple[nn.Parameter, ...]: ...

    def bounds(self, parameters: Sequence[torch.Tensor], axes: Sequence[Axis]) -> torch.Tensor: ...


class Extent:
    """The window of one layer: which taps its size covers, and which the ladder makes of that.

    Holds integers and a note of which parameter values they came from; nothing of it is state to be saved.
    """

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.axes = tuple(axes)
        self.whole = tuple(axis.whole for axis in axes)
        self.taps: tuple[Window, ...] = self.whole  # exactly what is kept
        self.windows: tuple[Window, ...] = self.whole  # what is computed: the rung above
        self.given = False  # whether compiled code may rely on `windows`
        self._seen: object = None
        self._touched = False

    def update(self, source: SizeSource, values: Sequence[torch.Tensor], *, name: str = "") -> None:
        """Set the window from host copies `values` of the source's size parameters."""
        for parameter in values:
            if not all(math.isfinite(v) for v in parameter.flatten().tolist()):
                raise ValueError(
                    f"cannot size the kernel of {name or 'a layer'}: its size parameters must be finite, "
                    f"but are {[v.tolist() for v in values]}"
                )
        with torch.no_grad():
            bounds = source.bounds(
                [v.to(torch.float32 if v.itemsize < 4 else v.dtype) for v in values], self.axes
            ).tolist()
        self.taps = tuple(axis.taps_between(*low_high) for axis, low_high in zip(self.axes, bounds, strict=True))
        self.windows = tuple(
            axis.rung(axis.taps_between(*low_high, slack=WINDOW_SLACK))
            for axis, low_high in zip(self.axes, bounds, strict=True)
        )
        self._seen = _fingerprint(source.size_parameters())
        self._touched = False

    def follow(self, source: SizeSource) -> None:
        """Refresh if the size parameters may have changed since the last time (eager code only)."""
        parameters = source.size_parameters()
        if not all(map(_readable, parameters)):
            self.taps = self.windows = self.whole  # no numbers to read: meta tensors, vmap over parameters
            self._seen = None
        elif self._touched or self._seen != _fingerprint(parameters):
            self.update(source, [p.detach().cpu() for p in parameters])

    def touch(self) -> None:
        """Note that a gradient reached the mask: an optimiser is about to change it, perhaps behind our back.

        (Fused optimisers write to parameters without counting up their version.)
        """
        self._touched = True


def refresh(extents: Iterable[tuple[str, Extent, SizeSource]]) -> None:
    """Give many layers their windows from one host copy per device, and let compiled code rely on them."""
    by_device: dict[torch.device, list[tuple[str, Extent, SizeSource]]] = {}
    for each in extents:
        parameters = each[2].size_parameters()
        if all(map(_readable, parameters)):
            by_device.setdefault(parameters[0].device, []).append(each)
    for layers in by_device.values():
        everything = [p.detach().flatten().double() for _, _, source in layers for p in source.size_parameters()]
        copy = torch.cat(everything).cpu()
        start = 0
        for name, extent, source in layers:
            values = []
            for parameter in source.size_parameters():
                piece = copy[start : start + parameter.numel()].view(parameter.shape)
                values.append(piece.to(parameter.dtype))
                start += parameter.numel()
            extent.update(source, values, name=name)
            extent.given = True


def _fingerprint(parameters: Sequence[torch.Tensor]) -> object:
    """Changes whenever the values may have; on a GPU without reading them."""
    if all(p.device.type == "cpu" for p in parameters):
        return [p.tolist() for p in parameters]
    return [(id(p), p._version, p.data_ptr()) for p in parameters]


def _readable(tensor: torch.Tensor) -> bool:
    """Whether there are numbers to read: not for meta and fake tensors, nor inside a vmap over parameters."""
    while is_gradtrackingtensor(tensor):
        tensor = get_unwrapped(tensor)
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta
    return plain and not is_batchedtensor(tensor)
