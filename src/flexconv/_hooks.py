"""Hooks of modules: code that goes around a module must not go around its user."""

from __future__ import annotations

from typing import Any

from torch import nn

KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of(module: nn.Module) -> list[Any]:
    """Everything that is to be called when a module is, or when its gradients are computed."""
    return [hook for kind in KINDS for hook in getattr(module, kind).values()]
