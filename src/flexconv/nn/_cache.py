"""The kernel of a layer in evaluation, kept between forwards as long as nothing it is made of has changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingImports]  (no public way to ask)

from ._extent import Versions, readable


class KernelCache:
    """One kernel, and a note of what it was made from. Never saved, copied or pickled with its layer."""

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelCache, ()

    def clear(self) -> None:
        self._entry = None

    def get(self, make: Callable[[], torch.Tensor], key: Hashable, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The kernel for `key`: the one at hand if key and parameters are as they were, else a new one."""
        if not _can_keep(parameters):
            return make()
        entry = self._entry  # read once: another thread may replace it
        if entry is None or entry.key != key or not entry.seen.hold(parameters):
            seen = _Seen(parameters)  # before the kernel is made, lest a change meanwhile go unnoticed
            entry = self._entry = _Entry(key, seen, make())
        return entry.kernel


class _Seen:
    """What a kernel was made from: by value in host memory, elsewhere by version (comparing would stop a GPU)."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.versions = Versions(tensors)
        self.values = [t.detach().clone() if t.device.type == "cpu" else None for t in tensors]

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Versions miss what is written through `.data`; values do not."""
        return self.versions.hold(tensors) and all(
            value is None or torch.equal(value, t) for value, t in zip(self.values, tensors, strict=True)
        )


class _Entry(NamedTuple):
    key: Hashable
    seen: _Seen
    kernel: torch.Tensor


def _can_keep(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether a kernel made of these, here and now, may be used again later.

    Not inside a transform of `torch.func`, whose tensors end with it; not in a CUDA graph, which would replay this
    kernel for ever; not from inference tensors, which have no version.
    """
    if peek_interpreter_stack() is not None:
        return False
    if any(p.is_cuda for p in parameters) and torch.cuda.is_current_stream_capturing():
        return False
    return all(readable(p) and not p.is_inference() for p in parameters)
