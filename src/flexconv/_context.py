"""Queries about the context in which code runs: autocast and export."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch


def autocast_enabled(device: str) -> bool:
    """Whether autocast is enabled for this type of device. Meta tensors do not support autocast."""
    return device != "meta" and torch.is_autocast_enabled(device)


def no_autocast(device: str) -> AbstractContextManager[object]:
    """Return a context manager that disables autocast."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else contextlib.nullcontext()


#: Whether `torch.compiler.is_exporting()` is reliable: in torch 2.11 it is also true under `torch.compile`.
IS_EXPORTING_IS_RELIABLE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def exporting() -> bool:
    """Whether `torch.export` is tracing. Before torch 2.13, this is only detected with the default strict=False."""
    if IS_EXPORTING_IS_RELIABLE:
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
