"""Functions that are compiled separately.

A whole network would have to be compiled again for every combination of kernel sizes. A region is a function of tensors
that is compiled by itself, independently of the network and of the sizes of other layers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from .._registry import plain_version, provide

P = ParamSpec("P")
R = TypeVar("R")

SHAPES = 256  # that a region may be compiled for, over all networks in a process; torch's default limit is 8

RECOMPUTE: dict[str, Any] = {"realize_reads_threshold": 100, "realize_opcount_threshold": 1000}  # options of inductor

_compiled: ContextVar[bool] = ContextVar("regions are compiled", default=False)


class Region(Generic[P, R]):
    """A function that runs compiled inside `compiled_regions()`, and uncompiled elsewhere. For use as a decorator.

    `dynamic`: whether it is compiled once for all sizes, or once per shape, except for axes marked by `any_length`.
    `recompute`: whether values that are used twice are computed twice instead of stored.
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
    """Whether code runs inside `compiled_regions()` and is not itself being compiled."""
    return not torch.compiler.is_compiling() and _compiled.get()


def any_length(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return x, marked so that regions that are compiled once per shape accept any length of this axis."""
    if regions_are_compiled():
        from torch._dynamo import maybe_mark_dynamic

        maybe_mark_dynamic(x, axis)
    return x


@contextlib.contextmanager
def compiled_regions() -> Iterator[None]:
    """Run regions compiled inside this context. Their backward is compiled even if it runs after the context."""
    before = _compiled.set(True)
    try:
        settings = _unused_settings.pop()
    except IndexError:
        settings = _compiler_settings()
    try:
        with settings[0], settings[1]:
            yield
    finally:
        _unused_settings.append(settings)
        _compiled.reset(before)


#: contexts that are not entered now. They can be entered again, and making new ones takes 0.1 ms
_unused_settings: list[tuple[AbstractContextManager[None], AbstractContextManager[None]]] = []


def _compiler_settings() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts in which regions can be compiled for many shapes."""
    from torch._dynamo import config as dynamo  # imported here, because it takes seconds
    from torch.fx.experimental import _config as symbols

    settings = {"recompile_limit": SHAPES, "accumulated_recompile_limit": SHAPES}
    settings["force_parameter_static_shapes"] = False  # also for shapes of parameters
    distinct = symbols.patch(use_duck_shape=False)  # type: ignore[attr-defined]  (equal sizes may be independent)
    return dynamo.patch(settings), distinct
