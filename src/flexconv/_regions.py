"""Pieces of a network that are worth compiling by themselves.

Compiling a whole network means compiling it again for every combination of kernel sizes. A region is a function of
tensors that has nothing to do with sizes: it is compiled once for each shape, whatever network it is part of.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

SHAPES = 256  # a region may meet, of all networks in a process; torch's own limit of 8 is for mistakes

_compiled: ContextVar[bool] = ContextVar("regions are compiled", default=False)


class Region(Generic[P, R]):
    """A function that runs as it is, or compiled inside `compiled_regions()`. For use as a decorator.

    `dynamic=False` compiles for every shape apart; None, from the second one on, for all of them.
    """

    def __init__(self, function: Callable[P, R], *, dynamic: bool | None = None) -> None:
        functools.update_wrapper(self, function)
        self.function, self.dynamic = function, dynamic

    @functools.cached_property
    def compiled(self) -> Callable[P, R]:
        return torch.compile(self.function, fullgraph=True, dynamic=self.dynamic)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self.compiled if regions_are_compiled() else self.function)(*args, **kwargs)


def regions_are_compiled() -> bool:
    """Whether this is inside `compiled_regions()`, and not inside a compiler already."""
    return not torch.compiler.is_compiling() and _compiled.get()


@contextlib.contextmanager
def compiled_regions() -> Iterator[None]:
    """Inside, regions run compiled. Their gradients do too, also where they are taken after the end of this."""
    from torch._dynamo import config as dynamo  # takes seconds: not with the package

    before = _compiled.set(True)
    try:
        with dynamo.patch(recompile_limit=SHAPES, accumulated_recompile_limit=SHAPES):
            yield
    finally:
        _compiled.reset(before)
