"""The OpenMP threads of the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flexconv.cli import _threads

VARIABLES = (*_threads.COUNTS, *_threads.POLICIES)


@pytest.fixture
def before_torch(monkeypatch):
    """A process that has not imported torch yet."""
    monkeypatch.setattr(sys, "modules", {name: m for name, m in sys.modules.items() if name != "torch"})


def test_waiting_threads_sleep(before_torch):
    environment = {}
    _threads.set_up_threads(environment)
    assert environment["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    "given", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}, {"KMP_BLOCKTIME": "200"}], ids=str
)
def test_wait_policy_of_the_user_is_kept(before_torch, given):
    environment = dict(given)
    _threads.set_up_threads(environment)
    assert {name: environment[name] for name in environment if name in _threads.POLICIES} == given


@pytest.mark.parametrize(
    ("quota", "cpus", "threads"), [(None, 8, None), (8.0, 8, None), (3.0, 8, "3"), (1.5, 8, "2"), (0.2, 8, "1")]
)
def test_threads_are_limited_by_the_quota(before_torch, monkeypatch, quota, cpus, threads):
    monkeypatch.setattr(_threads, "cpu_quota", lambda: quota)
    monkeypatch.setattr(_threads, "usable_cpus", lambda: cpus)
    environment = {}
    _threads.set_up_threads(environment)
    assert environment.get("OMP_NUM_THREADS") == threads
    given = {"OMP_NUM_THREADS": "5"}
    _threads.set_up_threads(given)
    assert given["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        ("4:memory:/x\n1:cpu:/y\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (
            "1:cpu,cpuacct:/docker/1\n0::/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
            4.0,
        ),
        ("", {}, None),
    ],
)
def test_quota_is_read_from_the_control_groups(tmp_path, own, files, quota):
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        (tmp_path / "mounted" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounted" / name).write_text(content)
    assert _threads.cpu_quota(tmp_path / "mounted", tmp_path / "own") == quota


def test_quota_is_none_without_control_groups(tmp_path):
    assert _threads.cpu_quota(tmp_path, tmp_path / "missing") is None


def test_only_the_command_changes_the_environment(tmp_path):
    """The policy is set in the process of the command before torch is imported, and never by `import flexconv`."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    report = "import atexit, os, sys; atexit.register(lambda: print(os.environ.get('OMP_WAIT_POLICY')))"
    (tmp_path / "sitecustomize.py").write_text(report)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])

    def policy(*arguments):
        ended = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env={**environment, "PYTHONPATH": paths},
            check=True,
        )
        return ended.stdout.splitlines()[-1]

    assert policy("-m", "flexconv", "--version") == "passive"
    assert policy("-c", "import flexconv") == "None"
