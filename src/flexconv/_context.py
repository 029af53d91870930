"""In what context code runs: under autocast, a compiler, an exporter."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch


def autocast_enabled(device: str) -> bool:
    """Whether operations on this type of device are lowered right now. (Meta tensors know no autocast.)"""
    return device != "meta" and torch.is_autocast_enabled(device)


def no_autocast(device: str) -> AbstractContextManager[object]:
    """Full precision inside."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else contextlib.nullcontext()


#: Whether `torch.compiler.is_exporting()` can be believed: torch 2.11 says so under `torch.compile`, too.
KNOWS_EXPORT = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def exporting() -> bool:
    """Whether `torch.export` traces (before torch 2.13, only with its default of strict=False)."""
    if KNOWS_EXPORT:
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
