"""Shared by all tests: one thread per worker, reproducible numbers, golden files, and skips for missing data sets."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of commands that tests start

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import torch._dynamo
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

torch.set_num_threads(1)
settings.register_profile("flexconv", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("flexconv")


@pytest.fixture(autouse=True, scope="module")
def _seed_of_module():
    """Fixtures of a module are made before those of its first test."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """A data root with the published data sets that are packed beside the repository; None if there are none.

    The first worker unpacks them, and the others wait. Data sets that need a decoder that is not installed are omitted.
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
    """Set FLEXCONV_DATA to the data sets of `unpacked`, unless the user has set it."""
    if "FLEXCONV_DATA" not in os.environ and (root := request.getfixturevalue("unpacked")) is not None:
        monkeypatch.setenv("FLEXCONV_DATA", str(root))


MISSING_DATA = "missing data set: "


def skip_without_data(name):
    """Skip the test if the published data set is not in the data root; the end of the run lists these skips."""
    from flexconv import data

    if data.status(name, verify=False).state not in ("present", "built-in"):
        pytest.skip(f"{MISSING_DATA}{name}")


def pytest_terminal_summary(terminalreporter):
    """Print how many tests were skipped because of missing data sets."""
    counts = collections.Counter(
        str(report.longrepr[2]).partition(MISSING_DATA)[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and MISSING_DATA in str(report.longrepr[2])
    )
    if counts:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        terminalreporter.section("missing data sets")
        terminalreporter.line(f"{counts.total()} tests were skipped because of missing data sets: {listed}")


class Golden:
    """One golden file: `file["out/y"]` is a tensor, and `file.state` has the parameters under the authors' names."""

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


@contextlib.contextmanager
def no_synchronization():
    """Inside, operations that make the host wait for the GPU are errors."""
    try:
        torch.cuda.set_sync_debug_mode("error")  # may raise and still change the mode, if warnings are errors
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def mentions(*parts: str) -> str:
    """Return a pattern for `pytest.raises(match=…)`: the message contains all parts, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(part)})" for part in parts)


@pytest.fixture
def quick_compiler():
    """Compile for the CPU without vector instructions, which takes half the time."""
    from torch._inductor import config

    with config.patch({"cpp.simdlen": 0}):  # monkeypatch would delete the setting afterwards
        yield
