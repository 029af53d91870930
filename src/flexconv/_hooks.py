"""Hooks of modules. Code that bypasses a module's `__call__` must check for them first."""

from __future__ import annotations

from typing import Any

from torch import nn

HOOK_ATTRIBUTES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[Any]:
    """Return all forward and backward hooks of a module."""
    return [hook for name in HOOK_ATTRIBUTES for hook in getattr(module, name).values()]
