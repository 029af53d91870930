"""Keeps the kernel of a layer between forward passes in evaluation, until something it depends on changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)

from ._extent import Versions, readable

Kernel = TypeVar("Kernel")


class KernelCache:
    """One kernel and a record of what it was made from. It is not saved, copied or pickled with its layer."""

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelCache, ()

    def clear(self) -> None:
        self._entry = None

    def get(self, make: Callable[[], Kernel], key: Hashable, parameters: Sequence[torch.Tensor]) -> Kernel:
        """The kernel for `key`: the kept one if key and parameters have not changed, otherwise a new one."""
        if not _can_keep(parameters):
            return make()
        entry = self._entry  # read once, because another thread may replace it
        if entry is None or entry.key != key or not entry.seen.unchanged(parameters):
            seen = _Seen(parameters)  # before sampling, so that a change in between is noticed
            entry = self._entry = _Entry(key, seen, make())
        return entry.kernel


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


class _Entry(NamedTuple):
    key: Hashable
    seen: _Seen
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
