"""Shared by all tests: one thread per worker, reproducible numbers, the golden files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """A data root with the real sets that lie packed beside the repository; None where there are none.

    Whichever worker comes first unpacks them, the others wait. What needs a decoder that is not here is left out.
    """
    unpack = Path(__file__).parents[2] / "shared" / "data" / "unpack.py"
    if not unpack.is_file():
        return None
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real"
    done = root / "done"
    try:
        root.mkdir()
    except FileExistsError:
        while not done.exists():
            time.sleep(1)
        return root
    for name in ("mnist", "character_trajectories", "cifar10", "kodak", "speech_commands"):
        subprocess.run([sys.executable, str(unpack), str(root), name], capture_output=True, check=False)
    done.touch()
    return root


@pytest.fixture
def real_data(monkeypatch, request):
    """FLEXCONV_DATA, where the user has set it; else what `unpacked` has."""
    if "FLEXCONV_DATA" not in os.environ and (root := request.getfixturevalue("unpacked")) is not None:
        monkeypatch.setenv("FLEXCONV_DATA", str(root))


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


@pytest.fixture
def quick_compiler():
    """Code for a CPU is compiled in half the time without its vector instructions."""
    from torch._inductor import config

    with config.patch({"cpp.simdlen": 0}):  # monkeypatch would take the setting away afterwards
        yield
