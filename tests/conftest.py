"""Shared by all tests: one thread per worker, reproducible numbers, the golden files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # is read when Triton is imported, where there is one

import torch._dynamo
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

torch.set_num_threads(1)
settings.register_profile("flexconv", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("flexconv")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


class Golden:
    """One golden file: `file["out/y"]` is a tensor, `file.state` the parameters and buffers in the authors' names."""

    def __init__(self, name: str) -> None:
        with np.load(GOLDEN / f"{name}.npz") as archive:
            self.arrays = {key: archive[key] for key in archive.files}

    def __getitem__(self, key: str) -> torch.Tensor:
        return torch.as_tensor(self.arrays[key])

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    @property
    def state(self) -> dict[str, np.ndarray]:
        return {key[2:]: value for key, value in self.arrays.items() if key[:2] in ("p/", "b/")}


@pytest.fixture
def golden():
    return Golden


def relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """‖result − truth‖ / ‖truth‖."""
    truth = truth.double()
    return ((result.double() - truth).norm() / truth.norm().clamp(min=1e-300)).item()
