"""The device and the versions that a run used."""

from __future__ import annotations

import platform
import time
from typing import Any

import torch

from .._version import __version__


def choose_device(name: str) -> torch.device:
    """Return the device "cpu" or "cuda"; "auto" is a GPU if torch finds one, and the CPU otherwise."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def machine(device: torch.device, *, processes: int = 1) -> dict[str, Any]:
    """Return the name of the device and the versions of Python, torch and flexconv."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"{device.type}, {torch.get_num_threads()} threads",
        "processes": processes,
        "flexconv": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def now() -> str:
    """Return the current time in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
