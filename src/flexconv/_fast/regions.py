"""Pieces of a network that are worth compiling by themselves.

Compiling a whole network means compiling it again for every combination of kernel sizes. A region is a function of
tensors that is compiled by itself, whatever network it is part of, and whatever its neighbours' sizes are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from .._registry import plain_version, provide

P = ParamSpec("P")
R = TypeVar("R")

SHAPES = 256  # a region may meet, of all networks in a process; torch's own limit of 8 is for mistakes

RECOMPUTE: dict[str, Any] = {"realize_reads_threshold": 100, "realize_opcount_threshold": 1000}  # of inductor

_compiled: ContextVar[bool] = ContextVar("regions are compiled", default=False)


class Region(Generic[P, R]):
    """A function that runs as it is, or compiled inside `compiled_regions()`. For use as a decorator.

    `dynamic`: whether it is compiled once, for shapes of any size, or for every shape apart, but for those axes that
    `any_length` names. `recompute`: whether what is used twice is computed twice rather than stored.
    """

    def __init__(self, function: Callable[P, R], *, dynamic: bool, recompute: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.function, self.dynamic, self.recompute = function, dynamic, recompute

    @functools.cached_property
    def compiled(self) -> Callable[P, R]:
        options = RECOMPUTE if self.recompute else None
        return torch.compile(self.function, fullgraph=True, dynamic=self.dynamic, options=options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self.compiled if regions_are_compiled() else self.function)(*args, **kwargs)


def provide_region(name: str, *, dynamic: bool) -> None:
    """Provide a compiled version of the plain function `name`, for use inside `compiled_regions()`."""

    @functools.cache
    def region() -> Region[..., Any]:  # made at the first call, because the plain function may not be defined yet
        return Region(plain_version(name), dynamic=dynamic)

    def compiled(*args: Any, **kwargs: Any) -> Any:
        return region()(*args, **kwargs) if regions_are_compiled() else NotImplemented

    provide(name, compiled)


def regions_are_compiled() -> bool:
    """Whether this is inside `compiled_regions()`, and not inside a compiler already."""
    return not torch.compiler.is_compiling() and _compiled.get()


def any_length(x: torch.Tensor, axis: int) -> torch.Tensor:
    """x, for regions that are compiled for every shape apart: this axis is to be of any length all the same."""
    if regions_are_compiled():
        from torch._dynamo import maybe_mark_dynamic

        maybe_mark_dynamic(x, axis)
    return x


@contextlib.contextmanager
def compiled_regions() -> Iterator[None]:
    """Inside, regions run compiled. Their gradients do too, also where they are taken after the end of this."""
    from torch._dynamo import config as dynamo  # takes seconds: not with the package
    from torch.fx.experimental import _config as symbols

    before = _compiled.set(True)
    settings = {"recompile_limit": SHAPES, "accumulated_recompile_limit": SHAPES}
    settings["force_parameter_static_shapes"] = False  # parameters may be of any shape, too
    distinct = symbols.patch(use_duck_shape=False)  # type: ignore[attr-defined]  (sizes equal by chance)
    try:
        with dynamo.patch(settings), distinct:
            yield
    finally:
        _compiled.reset(before)
