"""Notice when somebody writes into a tensor that was computed from parameters and handed out.

`mask.sigma.fill_(0.3)` on a mask that computes σ changes a tensor that nobody uses afterwards, and not the mask. The
tensor is an ordinary one, because torch.compile does not accept every subclass as an input, so the write itself raises
nothing. The next use of the mask does.
"""

from __future__ import annotations

from collections import deque

import torch

from ..errors import UsageError
from ._extent import readable, unwrapped

KEPT = 4  # tensors; checking them costs time in every forward pass


class Reads:
    """The tensors that were handed out last, and what was in them. Copies of this object start empty."""

    def __init__(self) -> None:
        self._latest = deque[tuple[str, torch.Tensor, object]](maxlen=KEPT)

    def hand_out(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, and remember its contents. Compiled code and `torch.func` are not watched."""
        if not torch.compiler.is_compiling() and unwrapped(tensor) is tensor and readable(tensor):
            alias = tensor.detach()  # the same memory and version, without the graph
            self._latest.append((name, alias, _contents(alias)))
        return tensor

    def check(self) -> None:
        """Raise an error if a tensor was written to. It is raised once."""
        if not self._latest or torch.compiler.is_compiling():
            return
        for name, alias, contents in tuple(self._latest):  # another thread may read at the same time
            if _contents(alias) != contents:
                self.forget()
                raise UsageError(
                    f"{name} of a scaled mask is computed, and writing into it in place does not change the mask: use "
                    f"mask.set_({name}=…). To change a copy for another purpose, use mask.{name}.clone()"
                )

    def forget(self) -> None:
        self._latest.clear()

    def __deepcopy__(self, memo: object) -> Reads:
        return Reads()

    def __reduce__(self) -> tuple[type[Reads], tuple[()]]:
        return Reads, ()


def _contents(tensor: torch.Tensor) -> object:
    """What changes when a tensor is written to. `tensor.data.fill_` does not change the version."""
    values = repr(tensor.tolist()) if tensor.device.type == "cpu" else None  # as text, so that NaN equals NaN
    return None if tensor.is_inference() else tensor._version, values
