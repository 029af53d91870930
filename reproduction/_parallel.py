"""Several functions at a time in processes of their own, which may share a GPU."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


class ProcessFailedError(Exception):
    """A process ended without a result."""


def in_processes(
    function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], *, at_once: int
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Call `function` with each of the arguments in a new process, some of them at a time.

    Yields arguments and results in the order in which the calls end. If a call raises an error, or its process dies,
    the result is a `ProcessFailedError`, and the others go on. `calls` is read when a process can be started.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // at_once)
    remaining, running = iter(calls), {}
    try:
        while True:
            while len(running) < at_once and (arguments := next(remaining, None)) is not None:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_call, args=(theirs, threads, function, arguments))
                process.start()
                theirs.close()
                running[ours] = process, arguments
            if not running:
                return
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                process, arguments = running.pop(connection)
                try:
                    result = connection.recv()
                except EOFError:
                    process.join()
                    result = ProcessFailedError(f"the process ended with exit code {process.exitcode}")
                process.join()
                yield arguments, result
    finally:  # interrupted: each process has received the signal, too, and saves its run
        for process, _ in running.values():
            process.join()


def _call(connection: Connection, threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    try:
        result = function(*arguments)
    except Exception as error:
        result = ProcessFailedError(f"{type(error).__name__}: {error}")
    connection.send(result)


@contextlib.contextmanager
def shared_gpu(*, enabled: bool) -> Iterator[bool]:
    """Let processes that are started inside of this context use a GPU at the same time.

    Processes take turns on a GPU, and small networks leave most of it unused. NVIDIA's Multi-Process Service (MPS) runs
    their kernels at the same time. It is started in folders of its own and ended afterwards, and no setting of the GPU
    is changed. Yields whether MPS runs: it may not be installed, or may be running already, and is then left as it is.
    """
    program = shutil.which(CONTROL)
    if not enabled or program is None or PIPES in os.environ:
        yield enabled and PIPES in os.environ
        return
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        places = {PIPES: f"{folder}/pipes", LOGS: f"{folder}/logs"}
        for place in places.values():
            Path(place).mkdir()
        subprocess.run([program, "-d"], env=os.environ | places, check=True)
        os.environ.update(places)
        try:
            yield True
        finally:
            for name in places:
                del os.environ[name]
            subprocess.run([program], input="quit\n", env=os.environ | places, text=True, check=False)
