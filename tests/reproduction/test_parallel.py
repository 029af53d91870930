"""Calls in processes of their own, and MPS around them."""

from __future__ import annotations

import os
import stat

import pytest
import torch

from reproduction._parallel import LOGS, PIPES, ProcessFailedError, in_processes, shared_gpu


def halve(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2, torch.get_num_threads(), os.getpid()


def die(code):
    os._exit(code)


def test_yields_results_of_processes_and_their_errors():
    found = dict(in_processes(halve, [(2,), (3,), (4,)], at_once=2))
    assert (found[2,][0], found[4,][0]) == (1, 2)
    assert found[2,][1] == max(1, os.cpu_count() // 2)
    assert len({found[2,][2], found[4,][2], os.getpid()}) == 3
    assert isinstance(found[3,], ProcessFailedError)
    assert "ValueError: 3 is odd" in str(found[3,])


def test_a_process_that_dies_is_an_error():
    ((_, result),) = in_processes(die, [(7,)], at_once=2)
    assert isinstance(result, ProcessFailedError)
    assert "7" in str(result)


def test_reads_calls_only_when_a_process_can_be_started():
    read = []

    def calls():
        for number in (2, 4, 6, 8):
            read.append(number)
            yield (number,)

    results = in_processes(halve, calls(), at_once=1)
    assert next(results)[0] == (2,)
    assert read == [2]
    assert [arguments for arguments, _ in results] == [(4,), (6,), (8,)]


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A program in place of the one that controls MPS, and the file in which it notes how it is called."""
    program, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    program.write_text(f'#!/bin/sh\nread word\necho "$1$word ${PIPES}" >> {log}\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv(PIPES, raising=False)
    return log


def test_starts_and_ends_mps(control):
    with shared_gpu(enabled=True) as shared:
        pipes = os.environ[PIPES]
        assert shared
        assert os.path.isdir(pipes)
    assert PIPES not in os.environ
    assert LOGS not in os.environ
    assert control.read_text().splitlines() == [f"-d {pipes}", f"quit {pipes}"]


def test_leaves_mps_alone_if_it_runs_or_is_not_wanted(control, monkeypatch):
    with shared_gpu(enabled=False) as shared:
        assert not shared
    monkeypatch.setenv(PIPES, "/elsewhere")
    with shared_gpu(enabled=True) as shared:
        assert shared
        assert os.environ[PIPES] == "/elsewhere"
    assert not control.exists()
