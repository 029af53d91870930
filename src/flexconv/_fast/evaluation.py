"""The forward pass of a FlexConv in evaluation, with as little work on the host as possible.

`FlexConvNd._convolve` defines the result. It looks for a kernel that was kept (`nn/_cache.py`), validates the input,
resolves the padding and selects an algorithm in every call. Here, what was found in one call is used in the next one,
as long as the layer, its kernel and everything that the kernel was made from are the same objects with the same
contents. The cache of the layer remains the judge: whenever anything looks different, it decides whether the kernel is
still valid. Code without gradients only; `eager.py` is for training.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)
from torch.autograd import forward_ad

from .._hooks import HOOK_ATTRIBUTES
from ..nn import FlexConvNd
from ..nn._cache import _Entry
from ..nn._checks import check_input
from ..nn._extent import _OptimizerSteps
from ..ops import _direct
from ..ops._conv import ALGORITHMS, Algorithm
from ..ops._geometry import Geometry, drop_unreachable_taps, output_sizes
from ..ops._select import _launches_are_free, select_algorithm

SHAPES = 64  # of inputs that a layer remembers

_CONTENTS = "_parameters", "_buffers", "_modules", *HOOK_ATTRIBUTES  # what a kernel depends on, besides attributes
_END = object()

_address = torch.Tensor.data_ptr
_tracing_state = torch._C._get_tracing_state
_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_NOT_OVERRIDDEN = (
    "taps", "pads", "pads_for", "padding", "padding_mode", "kernel_size", "size_source", "axes", "grid", "dtype",
    "_refresh_if_stale", "window",
)  # fmt: skip


def convolve(layer: FlexConvNd, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`FlexConvNd._convolve` without gradients, for x of the type `torch.Tensor`. NotImplemented if not supported."""
    attributes = layer.__dict__
    provider = attributes["_provider"]
    if attributes["training"] or provider.prepared is not None or attributes["padding_mode"] != "zeros":
        return NotImplemented
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or _tracing_state() is not None:
        return NotImplemented
    device = "cpu"
    if x.is_cuda:
        device = "cuda"
        if torch.cuda.is_current_stream_capturing():
            return NotImplemented
    elif not x.is_cpu:
        device = x.device.type
        if device == "meta":
            return NotImplemented
    lowered = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if x.dtype is torch.float16 or lowered is torch.float16 or bias is not attributes["_parameters"].get("bias"):
        return NotImplemented
    kind = x.dtype if lowered is None else None  # of the kernel, as in `_convolve`
    cache = provider._cache
    record = kept = cache.record
    if kept is None or kept.kind is not kind or not kept.unchanged(layer, cache._entry):
        record = _make_record(layer, x, kind, kept)
        if record is None:
            return NotImplemented
    key = x.shape, x.dtype, lowered, x.get_device(), _launches_are_free.get()
    way = record.ways.get(key)
    if way is None:
        way = _make_way(layer, x, record.kernel)
        if way is None:
            return NotImplemented
        if len(record.ways) >= SHAPES:
            record.ways.clear()
        record.ways[key] = way
    if way.conv is None:
        return way.algorithm(x, way.weight, bias, way.geometry)
    stride, _, dilation, groups = way.geometry
    padded = x if way.added is None else F.pad(x, way.added)
    return way.conv(padded, way.weight, bias, stride, way.padding, dilation, groups)


class _Way(NamedTuple):
    """How inputs of one shape are convolved."""

    weight: torch.Tensor
    geometry: Geometry
    algorithm: Algorithm
    conv: Any = None  # a function of torch, or one with the same arguments; None: use `algorithm`
    padding: tuple[int, ...] = ()  # for `conv`
    added: list[int] | None = None  # padding in front of it, as for `F.pad`


class _Record:
    """A kernel that the layer keeps, and everything that tells whether it is still valid."""

    def __init__(self, layer: FlexConvNd, entry: _Entry, kind: torch.dtype | None) -> None:
        self.entry, self.kind, self.kernel = entry, kind, entry.kernel
        self.ways: dict[object, _Way] = {}
        self._extent = layer._extent.__dict__
        self._reads: list[Any] = []  # of masks whose center or width somebody has read
        self._empty: list[Any] = []  # what would be filled by something that a kernel depends on
        filled: list[dict[str, Any]] = []  # attributes, parameters, submodules, … of the layer and its parts
        for part in layer.modules():
            attributes = vars(part)
            filled.append(attributes)
            for name in _CONTENTS:
                (filled if attributes[name] else self._empty).append(attributes[name])
            if "_reads" in attributes:
                reads = attributes["_reads"]
                if reads._latest:
                    self._reads.append(reads)
                else:
                    self._empty.append(reads._latest)
        # views, which follow later changes; the end reveals that something was added or removed
        self._current = [*(each.values() for each in filled), (_END,)]
        self._objects = list(chain.from_iterable(self._current))
        self._lists = [now for now, _ in entry.state.numbers]
        self._items = [before for _, before in entry.state.numbers]
        self._tensors = tensors = entry.state.tensors
        self._values = [(v, t) for v, t in zip(entry.seen.values, tensors, strict=True) if v is not None]
        self._versions = [t._version for t in tensors]
        self._addresses, self._steps = [*map(_address, tensors)], _OptimizerSteps.taken

    def unchanged(self, layer: FlexConvNd, entry: _Entry | None) -> bool:
        """Whether the layer still keeps this kernel, and nothing that it was made from has changed."""
        if entry is not self.entry or self.entry.state.module() is not layer:  # a shallow copy shares the cache
            return False
        if any(self._empty) or "refresh_if_changed" in self._extent:  # held by a capture
            return False
        if not all(map(is_, chain.from_iterable(self._current), self._objects)) or self._lists != self._items:
            return False
        try:
            versions = [t._version for t in self._tensors]
        except RuntimeError:  # inference tensors, assigned to `.data`
            return False
        if versions != self._versions or _OptimizerSteps.taken != self._steps:
            return False
        if [*map(_address, self._tensors)] != self._addresses:
            return False
        for reads in self._reads:
            reads.check()  # raises an error
        # on a CPU, values also reveal writes through `.data`
        return not self._values or all(torch.equal(value, tensor) for value, tensor in self._values)


def _make_record(
    layer: FlexConvNd, x: torch.Tensor, kind: torch.dtype | None, previous: _Record | None
) -> _Record | _Sampled | None:
    """The kernel of the layer, with a record if the layer keeps it and no change could go unnoticed.

    None if the layer is left to `_convolve`.
    """
    cls = type(layer)
    if any(getattr(cls, name, None) is not getattr(FlexConvNd, name, None) for name in _NOT_OVERRIDDEN):
        return None
    check_input(layer, x)  # before a kernel is sampled
    kernel = layer._provider.tensor(layer, layer.taps, kind)
    entry = layer._provider._cache._entry
    if entry is None or entry.kernel is not kernel or not entry.state.known:
        return _Sampled(kernel, {})
    record = _Record(layer, entry, kind)
    # once more, because another thread could have changed the layer in between
    if not entry.state.unchanged(layer) or not entry.seen.unchanged(entry.state.tensors):
        return _Sampled(kernel, {})
    if previous is not None and previous.kernel is kernel:  # so all settings are equal
        record.ways = previous.ways
    layer._provider._cache.record = record
    return record


class _Sampled(NamedTuple):
    """A kernel for one forward pass."""

    kernel: torch.Tensor
    ways: dict[object, _Way]


def _make_way(layer: FlexConvNd, x: torch.Tensor, weight: torch.Tensor) -> _Way | None:
    """How `_convolve` convolves inputs like x with this kernel. None if it is left to `_convolve`."""
    if x.ndim != layer.dims + 2 or 0 in x.shape or weight.device != x.device:
        return None
    check_input(layer, x)
    geometry = Geometry(layer.stride, layer.pads_for(layer.taps), layer.dilation, layer.groups)
    if min(output_sizes(x.shape[2:], weight.shape[2:], geometry)) < 1:
        return None
    weight, geometry = drop_unreachable_taps(x, weight, geometry)
    algorithm = layer.algorithm if layer.algorithm != "auto" else select_algorithm(x, weight, geometry)
    way = _Way(weight, geometry, ALGORITHMS[algorithm])
    pads = geometry.pads
    if algorithm != "direct" or any(min(pair) < 0 for pair in pads):
        return way
    padding = _direct.padding_by_torch(x, weight, pads, geometry)
    rest = [(left - both, right - both) for (left, right), both in zip(pads, padding, strict=True)]
    added = [amount for pair in reversed(rest) for amount in pair]
    conv = _direct.convolve_padded if x.is_cpu else _CONV[layer.dims]  # on a CPU, it avoids faults of oneDNN
    return way._replace(conv=conv, padding=padding, added=added if any(added) else None)
