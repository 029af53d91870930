"""Several processes compute the same as one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flexconv.train import RunFolder, make_fabric

from .distributed_worker import measure, small_recipe

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]


def run(*command, port):
    """Return the output of a command that runs in two processes. Prints stack traces if it hangs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, *TORCHRUN, str(port), *command], cwd=ROOT, text=True, env=environment, **pipes
    )
    try:
        printed, complaints = process.communicate(timeout=200)
    except (subprocess.TimeoutExpired, pytest.fail.Exception):  # pytest.fail is raised by the time limit of the test
        for pid in (*descendants(process.pid), process.pid):
            os.kill(pid, signal.SIGABRT)  # the fault handler prints the stacks of all threads
        complaints = process.communicate(timeout=20)[1]
        pytest.fail(f"hangs: {complaints[-20000:]}")
    assert process.returncode == 0, complaints[-3000:]
    return printed


def descendants(pid):
    """Yield all descendants of a process."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from descendants(child)
        yield int(child)


@pytest.fixture
def port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize(("precision", "engine", "tolerance"), [("fp64", "eager", 1e-11), ("fp32", "compiled", 1e-5)])
def test_two_processes_compute_the_same_as_one(tmp_path, port, precision, engine, tolerance):
    recipe = small_recipe(precision, "eager")
    one = measure(recipe, make_fabric(recipe, "cpu"), str(tmp_path / "one"))
    run("-m", "tests.train.distributed_worker", str(tmp_path / "two"), precision, engine, port=port)
    two = torch.load(tmp_path / "two")
    assert two["sampled together"] == (len(two["losses"]) if engine == "compiled" else 0)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-6)  # Fabric's logits are float32 in any case
    assert two["validation"][2] == one["validation"][2]
    # A bias before a batch norm has gradient 0. In float32 it is rounding noise, from which Adam makes full steps.
    # These change the loss in evaluation, not in training.
    if precision == "fp64":
        assert two["validation"] == pytest.approx(one["validation"], rel=1e-6)
    for step, gradients in enumerate(one["gradients"]):
        scale = max(g.abs().max() for g in gradients.values())
        for name, gradient in gradients.items():
            error = (two["gradients"][step][name] - gradient).abs().max() / scale
            assert error < tolerance, (step, name)
    for name, value in one["statistics"].items():
        torch.testing.assert_close(
            two["statistics"][name], value, rtol=1e-3, atol=1e-3 if precision == "fp32" else 1e-9
        )


def test_two_processes_write_one_run_folder(tmp_path, port):
    out = tmp_path / "run"
    settings = ["--set", "epochs=2", "--set", "model.widths=[3]", "--set", "batch_size=300", "--out", str(out)]
    printed = run("-m", "flexconv.cli", "train", "digits", *settings, "--device", "cpu", port=port)
    assert [record["epoch"] for record in RunFolder(out).read_metrics()] == [1, 2]
    assert RunFolder(out).read_results()["processes"] == 2
    assert printed.count("test accuracy") == 1
