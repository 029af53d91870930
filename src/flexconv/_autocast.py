"""Asking about autocast on devices that may not have it (meta tensors)."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch


def autocast_enabled(device: str) -> bool:
    """Whether operations on this type of device are lowered right now."""
    return device != "meta" and torch.is_autocast_enabled(device)


def no_autocast(device: str) -> AbstractContextManager[object]:
    """Full precision inside."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else contextlib.nullcontext()
