"""Keeps the kernel of a layer between forward passes in evaluation, until something it depends on changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)

from .._hooks import HOOK_ATTRIBUTES
from ._extent import Versions, readable
from ._grid import KernelGrid
from .kernels import Placement

Kernel = TypeVar("Kernel")


class KernelCache:
    """One kernel and a record of what it was made from. It is not saved, copied or pickled with its layer.

    Faster versions keep what they know about the kernel in `record`, and what they know about the layer in `path`. A
    dictionary outside of the layer, with the layer as a weak key, would keep it alive forever if one of its hooks
    refers to it or to its network.
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None
        self.record: Any = None
        self.path: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelCache, ()

    def clear(self) -> None:
        self._entry = self.record = None

    def get(self, make: Callable[[], Kernel], key: object, module: nn.Module) -> Kernel:
        """The kernel for `key`: the kept one if neither key nor module have changed, otherwise a new one."""
        entry = self._entry  # read once, because another thread may replace it
        if entry is not None and entry.given == key and entry.state.unchanged(module):
            known = entry.state.tensors
            if _can_keep(known) and entry.seen.unchanged(known):
                return entry.kernel
        settings, others = settings_and_tensors(module)
        tensors = [*module.parameters(), *module.buffers(), *others]
        if not _can_keep(tensors):
            return make()
        if entry is None or entry.key != (key, settings) or not entry.seen.unchanged(tensors):
            seen = _Seen(tensors)  # before sampling, so that a change in between is noticed
            state = _State(module, tensors)
            entry = self._entry = _Entry(key, (key, settings), seen, state, make())
        elif not entry.state.unchanged(module):  # other objects with equal values, which the next call may compare
            entry = self._entry = entry._replace(state=_State(module, tensors))
        return entry.kernel


def settings_and_tensors(module: nn.Module) -> tuple[list[object], list[torch.Tensor]]:
    """Everything besides parameters and buffers that the result of a module may depend on.

    These are the types, hooks and attributes of the module and its submodules. Tensors among them are returned
    separately, because they can change in place.
    """
    settings: list[object] = []
    tensors: list[torch.Tensor] = []
    for part in module.modules():
        attributes = part.__dict__
        settings.append(type(part))
        for name in attributes.keys() - _INTERNAL:
            value = attributes[name]
            settings.append((name, value if type(value) in _PLAIN else _comparable(value, tensors)))
        for name in HOOK_ATTRIBUTES:
            if attributes[name]:
                settings += map(_Same, attributes[name].values())
    return settings, tensors


_INTERNAL = {*vars(nn.Module()), "_extent", "_provider", "_reads"}  # no settings of a kernel

# immutable, and compared by value
_PLAIN = {int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, KernelGrid, Placement}


def _comparable(value: object, tensors: list[torch.Tensor]) -> object:
    """A copy of a setting that can be compared with a later one. Tensors are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return torch.Tensor
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), [_comparable(each, tensors) for each in value]
    if isinstance(value, dict):
        return dict, [(_comparable(key, tensors), _comparable(each, tensors)) for key, each in value.items()]
    if isinstance(value, np.ndarray):
        return type(value), value.tobytes()
    if isinstance(value, nn.Module) or (hasattr(value, "__dict__") and not callable(value)):
        return object()  # equal to nothing, because it could change inside: a module here is not a submodule
    return _Same(value)


class _Same:
    """An object that equals only itself, kept alive so that its address is not used again."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Seen:
    """What a kernel was made from: values of CPU tensors, versions of others (reading values would stall a GPU)."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.versions = Versions(tensors)
        self.values = [t.detach().clone() if t.device.type == "cpu" else None for t in tensors]

    def unchanged(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors are unchanged. Values also reveal writes through `.data`, which versions do not."""
        return self.versions.unchanged(tensors) and all(
            value is None or torch.equal(value, t) for value, t in zip(self.values, tensors, strict=True)
        )


class _State:
    """The attributes of a module and its submodules, to tell in a few microseconds that none was assigned since.

    Attributes are compared by identity, and lists of numbers by value. A module with other attributes that can change
    inside, such as a dictionary, counts as changed, and `settings_and_tensors` decides.
    """

    def __init__(self, module: nn.Module, tensors: list[torch.Tensor]) -> None:
        self.module, self.tensors = weakref.ref(module), tensors
        self.attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.numbers: list[tuple[list[Any], list[Any]]] = []
        self.known = all(map(self._add, module.modules()))

    def _add(self, part: nn.Module) -> bool:
        """Record the attributes of a module. Returns False if one of them could change unnoticed."""
        attributes = vars(part)
        for name in attributes.keys() - _INTERNAL:
            value = attributes[name]
            if isinstance(value, list) and all(type(each) in _PLAIN for each in value):
                self.numbers.append((value, value.copy()))
            elif not _frozen(value):
                return False
        inner = [attributes[name] for name in _INTERNAL & attributes.keys() if isinstance(attributes[name], dict)]
        self.attributes += [(each, dict(each)) for each in (attributes, *inner)]
        return True

    def unchanged(self, module: nn.Module) -> bool:
        """Whether this is the same module (a shallow copy shares the cache) with the same attributes."""
        if not self.known or self.module() is not module or any(now != before for now, before in self.numbers):
            return False
        for now, before in self.attributes:
            if len(now) != len(before):
                return False
            for name, value in before.items():
                if now.get(name) is not value:
                    return False
        return True


def _frozen(value: object) -> bool:
    """Whether a value that is still the same object is unchanged."""
    if type(value) in _PLAIN or isinstance(value, torch.Tensor | type):
        return True
    return isinstance(value, tuple | frozenset) and all(map(_frozen, value))


class _Entry(NamedTuple):
    given: object
    key: object
    seen: _Seen
    state: _State
    kernel: Any


def _can_keep(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether a kernel that is made from these parameters now may be used again later.

    It may not inside a transform of `torch.func`, whose tensors are invalid outside; nor while a CUDA graph is
    captured, which would replay this kernel forever; nor if parameters are inference tensors, which have no version.
    """
    if peek_interpreter_stack() is not None:
        return False
    if any(p.is_cuda for p in parameters) and torch.cuda.is_current_stream_capturing():
        return False
    return all(readable(p) and not p.is_inference() for p in parameters)
