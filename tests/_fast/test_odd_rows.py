"""Rows of odd length in half precision, in a process of their own, because a fault on a GPU affects the whole process.

`test_monarch.py` has the same cases for Triton's interpreter.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_odd_rows_in_half_precision():
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.odd_rows"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
