"""What the command imports, and what it does where an import fails."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from flexconv.cli import run

# packages that take long to import, which only training, pictures, tables and the export need
SLOW = {
    *("lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "torchvision", "tensorboard"),
    *("matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "PIL", "onnx", "onnxruntime", "onnxscript"),
    *("huggingface_hub", "IPython", "sympy", "triton", "torch._dynamo", "torch.fx.experimental.symbolic_shapes"),
}

# parts of flexconv, and packages that only they need, which a command can do without
PAGES = {
    "flexconv.bench",
    "flexconv.compat",
    "flexconv.explorer",
    "flexconv.export",
    "flexconv.testing",
    "flexconv.viz",
}
UNUSED = {
    "eval": {*PAGES, "flexconv.convert", "flexconv.predict"},
    "predict": {*PAGES, "flexconv.convert"},
    "models": {*PAGES, "flexconv.convert", "flexconv.data", "flexconv.predict", "flexconv.train", "yaml", "wave"},
}


# what a command has imported when it ends, and the state of its garbage collector
REPORT = """
import atexit, gc, json, os, sys

def report():
    with open(os.environ["REPORT"], "w") as file:
        json.dump({"modules": sorted(sys.modules), "collects": gc.isenabled(), "exempt": gc.get_freeze_count()}, file)

atexit.register(report)
"""


def start(*arguments, cwd, **environment):
    """Run `python -m flexconv ARGUMENTS` in a new process."""
    command = [sys.executable, "-m", "flexconv", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=240, check=False)


def with_path(folder):
    """The value of PYTHONPATH with another folder in front."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def report_of(*arguments, cwd):
    """The report of a command."""
    (cwd / "report").mkdir()
    (cwd / "report" / "sitecustomize.py").write_text(REPORT)
    ended = start(*arguments, cwd=cwd, PYTHONPATH=with_path(cwd / "report"), REPORT=str(cwd / "report" / "end.json"))
    assert ended.returncode == 0, ended.stderr
    return json.loads((cwd / "report" / "end.json").read_text())


def imported_by(*arguments, cwd):
    """The modules that a command has imported when it ends."""
    return {*report_of(*arguments, cwd=cwd)["modules"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "flexnet3-digits"),
        ("inspect", "flexnet3-digits"),
        ("predict", "flexnet3-digits", "digit.npy"),
        ("resample", "flexnet3-digits", "--to", "24"),
        ("models",),
        ("recipes", "digits"),
        ("data", "ls"),
    ],
    ids=" ".join,
)
def test_command_imports_no_slow_package(arguments, tmp_path):
    np.save(tmp_path / "digit.npy", np.zeros((16, 16), np.uint8))
    report = report_of(*arguments, cwd=tmp_path)
    assert {*report["modules"]} & (SLOW | UNUSED.get(arguments[0], set())) == set()
    assert report["collects"]
    assert report["exempt"] > 100_000  # what torch has created


def test_garbage_collector_of_a_program_that_uses_the_command_is_left_alone(capsys):
    gc.unfreeze()  # what a test of `main` left, and what may be deleted meanwhile
    assert run(["models"]) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("train", "--help"), ("eval", "--help")])
def test_help_does_not_import_torch(arguments, tmp_path):
    assert imported_by(*arguments, cwd=tmp_path) & {"torch", "numpy", *SLOW} == set()


def test_command_uses_the_fast_versions(tmp_path):
    assert "flexconv._fast" in imported_by("eval", "flexnet3-digits", cwd=tmp_path)


def test_library_is_complete_where_it_is_imported(tmp_path):
    program = "import flexconv; print(flexconv.nn.__name__, flexconv.FlexConv2d.__name__)"
    for arguments in (["-c", program], [tmp_path / "mine.py", "flexconv"]):
        (tmp_path / "mine.py").write_text(program)
        ended = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert ended.stdout == "flexconv.nn FlexConv2d\n", ended.stderr


@pytest.fixture
def misfit(tmp_path):
    """A folder with a torchvision that was built for another version of torch."""
    (tmp_path / "misfit" / "torchvision").mkdir(parents=True)
    (tmp_path / "misfit" / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (tmp_path / "misfit" / "torchvision-0.1.dist-info").mkdir()
    (tmp_path / "misfit" / "torchvision-0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n"
    )
    return with_path(tmp_path / "misfit")


@pytest.mark.parametrize("arguments", [("eval", "flexnet3-digits"), ("inspect", "flexnet3-digits"), ("models",)])
def test_torchvision_that_does_not_fit_is_not_imported(arguments, misfit, tmp_path):
    ended = start(*arguments, cwd=tmp_path, PYTHONPATH=misfit)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_training_works_with_a_torchvision_that_does_not_fit(misfit, tmp_path):
    program = "from flexconv.train import load_recipe, make_fabric; print(make_fabric(load_recipe('digits'), 'cpu'))"
    environment = {**os.environ, "PYTHONPATH": misfit}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Fabric" in ended.stdout


def test_fabric_that_cannot_be_imported_is_one_line(tmp_path):
    """Whatever is wrong with a package that Fabric imports, training says so without a traceback."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "lightning_fabric.py").write_text("raise RuntimeError('operator x::nms does not exist')")
    ended = start("train", "digits", "--device", "cpu", cwd=tmp_path, PYTHONPATH=with_path(tmp_path / "broken"))
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "x::nms" in ended.stderr
    assert "torchvision" in ended.stderr
