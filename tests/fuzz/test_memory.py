"""Memory does not grow from step to step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STATM = Path("/proc/self/statm")


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_memory_stays_flat():
    """Everything that is kept for each size is there at the beginning."""
    command = [sys.executable, "-m", "tests.fuzz.memory", "100", "6"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = json.loads(done.stdout)
    for name in ("training", "evaluation"):
        first, last = sizes[name][0], sizes[name][-1]
        assert last - first < 4, sizes  # a leak of 40 KiB per step would show
