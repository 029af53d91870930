"""The kernel of a layer in evaluation, kept between forwards as long as nothing it is made of has changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ._extent import Versions, readable


class KernelCache:
    """One kernel, and a note of what it was made from. Never saved, copied or pickled with its layer."""

    def __init__(self) -> None:
        self._kernel: torch.Tensor | None = None
        self._key: Hashable = None
        self._seen: Versions | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelCache, ()

    def clear(self) -> None:
        self._kernel = self._seen = None

    def get(self, make: Callable[[], torch.Tensor], key: Hashable, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The kernel for `key`: the one at hand if key and parameters are as they were, else a new one."""
        if not all(readable(p) and not p.is_inference() for p in parameters):  # inference tensors have no version
            return make()
        if self._kernel is None or key != self._key or self._seen is None or not self._seen.hold(parameters):
            self._kernel, self._key, self._seen = make(), key, Versions(parameters)
        return self._kernel
