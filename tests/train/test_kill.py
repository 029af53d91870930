"""Runs that are killed at any moment can be resumed and end with the same weights."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_run_killed_twenty_times_ends_with_same_weights(tmp_path):
    command = [sys.executable, "-m", "tests.train.kill_driver", str(tmp_path), "1", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    by_clock, in_file, _ = map(int, done.stdout.split()[-3:])
    assert by_clock + in_file == 20
    assert min(by_clock, in_file) >= 4
    reference = _weights(tmp_path / "reference")
    runs = [path for path in tmp_path.iterdir() if path.name != "reference"]
    assert runs
    for run in runs:
        assert _weights(run) == reference, f"{run.name} has different weights"
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
        assert not list((run / "checkpoints").glob("*.part")) or len(list((run / "checkpoints").glob("*.ckpt"))) == 2


def _weights(run):
    (file,) = (run / "weights").glob("*.safetensors")
    return file.read_bytes()
