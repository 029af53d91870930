"""Without the folder `_fast`, flexconv gives the same results, only more slowly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flexconv

SOURCE = Path(flexconv.__file__).parent
ROOT = Path(__file__).parents[1]

# What the core, the models and training compute, without the tests of torch.compile and torch.export.
TESTS = [
    "tests/ops/test_conv.py",
    "tests/nn/test_conv.py",
    "tests/nn/test_gradients.py",
    "tests/nn/kernels/test_generators.py",
    "tests/models/test_flexnet.py",
    "tests/models/test_flextcn.py",
    "tests/test_capture.py::test_runs_the_step_on_a_cpu",
    "tests/train/test_optim.py",
    "tests/train/test_fit.py::test_steps_equal_a_plain_torch_loop",
    "tests/train/test_loop.py::test_run_writes_all_files",
    "tests/train/test_loop.py::test_resumed_run_ends_with_same_weights[2-6]",
]

TRAIN = """
import sys, torch
from flexconv.train import build_recipe, train

torch.set_num_threads(1)
model = {"name": "flexnet3", "widths": [3], "generator_options": {"hidden": 4}, "dropout": 0.2}
tree = {"model": model, "data": {"name": "digits", "augment": True}, "epochs": 1, "batch_size": 200}
tree["optim"] = {"name": "sgd", "lr": 0.05}  # Adam would amplify rounding errors of small gradients
results = train(build_recipe({**tree, "engine": sys.argv[2]}), sys.argv[1], plots=False)
assert results["engine"] == "eager"
print(results["test_loss"])
"""


@pytest.fixture(scope="module")
def without_fast(tmp_path_factory):
    """The environment of a process that imports a copy of flexconv without `_fast`."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(SOURCE, folder / "flexconv", ignore=shutil.ignore_patterns("_fast", "__pycache__"))
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def run(environment, *arguments):
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


def test_nothing_outside_imports_it():
    imported = re.compile(r"^\s*(from|import) .*\b_fast\b", re.MULTILINE)
    files = [path for path in SOURCE.rglob("*.py") if "_fast" not in path.parts]
    assert [path.name for path in files if imported.search(path.read_text("utf-8"))] == []


def test_the_copy_has_none(without_fast):
    script = "import flexconv, flexconv._registry as r; print(flexconv.__file__, r.load_fast_versions(), r._versions)"
    path, *rest = run(without_fast, "-c", script).split()
    assert path.startswith(without_fast["PYTHONPATH"])
    assert rest == ["False", "{}"]


def test_trains_to_the_same_loss_without_it(without_fast, tmp_path):
    """The losses differ by rounding."""
    loss = run({**os.environ, "PYTHONPATH": str(SOURCE.parent)}, "-c", TRAIN, str(tmp_path / "with"), "eager")
    without = run(without_fast, "-c", TRAIN, str(tmp_path / "without"), "compiled")
    assert float(without) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.timeout(600)
def test_results_are_the_same_without_it(without_fast):
    passed = run(
        without_fast, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not compile and not readme", *TESTS
    )
    assert int(re.search(r"(\d+) passed", passed)[1]) > 1000
