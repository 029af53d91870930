"""How long the command takes to start, relative to `import torch`.

    python -m benchmarks.start_time --runs 15

Runs `python -c "import torch"` and each command in turn, and prints the median of the times, and the median of the
ratios to the run of `import torch` next to it: of elapsed time, and of CPU time, which depends less on other work.
"up to the first batch" ends `flexconv eval` and `flexconv predict` when the network would be applied for the first
time. All times include the end of the process.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COMMAND = """
import sys

sys.argv = ["flexconv", *sys.argv[1:]]
from flexconv.cli import main

main()
"""

# ends the process in the first forward pass of a network
UNTIL_FIRST_BATCH = """
import sys

sys.argv = ["flexconv", *sys.argv[1:]]
import flexconv.cli
from flexconv.cli import _common

plain = _common.import_modules


def import_modules(names):
    plain(names)
    from flexconv.models import FlexNet

    FlexNet.forward = lambda *arguments: sys.exit()


_common.import_modules = import_modules
flexconv.cli.main()
"""

PROGRAMS = {
    "import torch": ("import torch",),
    "flexconv --help": (COMMAND, "--help"),
    "flexconv models": (COMMAND, "models"),
    "flexconv eval, up to the first batch": (UNTIL_FIRST_BATCH, "eval", "flexnet3-digits"),
    "flexconv predict, up to the first batch": (UNTIL_FIRST_BATCH, "predict", "flexnet3-digits", "digit.npy"),
    "flexconv eval": (COMMAND, "eval", "flexnet3-digits"),
}


def seconds(program: tuple[str, ...], folder: str) -> tuple[float, float]:
    """Elapsed time and CPU time of a program."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *program], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "digit.npy", np.zeros((16, 16), np.uint8))
        for turn in range(arguments.runs + 1):
            for name, program in PROGRAMS.items():
                taken = seconds(program, folder)
                if turn:  # the first turn writes compiled files and fills caches
                    times[name].append(taken)
    print("program | seconds | ratio to import torch | CPU seconds | ratio")
    for name, values in times.items():
        columns = []
        for kind in (0, 1):
            pairs = zip(values, times["import torch"], strict=True)
            ratio = statistics.median(value[kind] / torch[kind] for value, torch in pairs)
            columns.append(f"{statistics.median(value[kind] for value in values):.2f} | {ratio:.2f}")
        print(f"{name} | {' | '.join(columns)}")


if __name__ == "__main__":
    main()
