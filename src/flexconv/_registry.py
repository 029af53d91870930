"""Where the core looks for a faster version of what it can do itself.

The core never imports `flexconv._fast`. A function that has a faster version there is decorated with
`@has_fast_version` and defines the result; `_fast` registers the faster version with `provide`. A fast version may
return `NotImplemented` for inputs that it does not support, and then the plain function runs. Without the folder
`_fast`, every plain function runs: slower, with the same results.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_versions: dict[str, Any] = {}
_plain: dict[str, Callable[..., Any]] = {}
_loaded = False  # whether `_fast` has been looked for


def has_fast_version(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a plain function for which `_fast` may provide a faster version under `name`."""

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        _plain[name] = plain

        @functools.wraps(plain)
        def choose(*args: P.args, **kwargs: P.kwargs) -> R:
            fast = _versions.get(name) or fast_version(name)
            result = NotImplemented if fast is None else fast(*args, **kwargs)
            return plain(*args, **kwargs) if result is NotImplemented else result  # type: ignore[return-value]

        return choose

    return decorate


def provide(name: str, version: Any) -> None:
    """Register a fast version. Called by `_fast` only."""
    _versions[name] = version


def fast_version(name: str) -> Any | None:
    """Return what `_fast` provides under `name`, or None if it provides nothing."""
    if not _loaded and not torch.compiler.is_compiling():  # an import cannot be traced
        load_fast_versions()
    return _versions.get(name)


def plain_version(name: str) -> Callable[..., Any]:
    """Return the function that is decorated with `@has_fast_version(name)`. Its module must have been imported."""
    return _plain[name]


def load_fast_versions() -> bool:
    """Import `flexconv._fast`, which registers its functions. Returns False if the folder does not exist.

    `import flexconv` calls this. In the command, the first use of a function that has a fast version does.
    """
    global _loaded
    _loaded = True
    if importlib.util.find_spec("flexconv._fast") is None:
        return False
    importlib.import_module("flexconv._fast")
    return True
