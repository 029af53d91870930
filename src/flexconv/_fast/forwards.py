"""Sample the kernels of a network at the start of each of its forward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from ..nn import FlexConvNd
from .kernel_sampler import KernelSampler


class ForwardSampler:
    """Samples all kernels of whatever module is called, at the start of its forward pass.

    A step may contain several forward passes, and optimizer steps in between. So the kernels are valid for one forward
    pass only. Make another object when the windows change.
    """

    def __init__(self, model: nn.Module) -> None:
        self._samplers: dict[nn.Module, KernelSampler] = {}
        self._containers = [
            module
            for module in model.modules()
            if sum(isinstance(below, FlexConvNd) for below in module.modules()) > 1 and not _is_list(module)
        ]
        self._running = contextlib.ExitStack()
        self._depth = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, forward passes use kernels that are sampled together."""
        self._depth = 0
        handles = [module.register_forward_pre_hook(self._enter) for module in self._containers]
        handles += [module.register_forward_hook(self._leave, always_call=True) for module in self._containers]
        try:
            yield
        finally:
            self._running.close()
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _: object) -> None:
        self._depth += 1
        if self._depth == 1:
            if module not in self._samplers:
                self._samplers[module] = KernelSampler(module)
            self._running.enter_context(self._samplers[module].ahead())

    def _leave(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._running.close()


def _is_list(module: nn.Module) -> bool:
    """Whether a module has no forward pass."""
    return type(module) in (nn.ModuleList, nn.ModuleDict)
