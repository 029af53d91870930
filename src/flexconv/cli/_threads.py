"""CPU threads of the command: as many as this process may use, and asleep while they wait.

OpenMP, which computes torch's loops on the CPU, reads its settings from the environment when torch is imported. By
default it starts a thread for every CPU of the machine, also in a container that may use only a few of them, and
waiting threads spin. On a machine with other work, both slow training down several times.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
CGROUP = Path("/sys/fs/cgroup")


def set_up_threads(environment: MutableMapping[str, str] | None = None) -> None:
    """Set the variables of OpenMP that the user has not set. Has no effect if torch is already imported."""
    if "torch" in sys.modules:
        return
    environment = os.environ if environment is None else environment
    if not any(name in environment for name in POLICIES):
        environment["OMP_WAIT_POLICY"] = "passive"
    if not any(name in environment for name in COUNTS):
        quota = cpu_quota()
        if quota is not None and quota < usable_cpus():  # OpenMP itself counts the usable CPUs, but knows no quota
            environment["OMP_NUM_THREADS"] = str(math.ceil(quota))


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(mounted: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return how many CPUs' time the control groups of Linux grant to this process; None if there is no limit."""
    limits = [_limit(folder) for folder in _groups(mounted, own)]
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(mounted: Path, own: Path) -> Iterator[Path]:
    """The folders of the control group of this process and of all groups around it."""
    lines = own.read_text().splitlines() if own.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mounted / controllers  # version 1 mounts each set of controllers, version 2 has no name here
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _limit(folder: Path) -> float | None:
    """The limit of one control group, as written by version 2 ("150000 100000" or "max 100000") or version 1."""
    for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        if all((folder / file).is_file() for file in files):
            quota, period = " ".join((folder / file).read_text() for file in files).split()
            return int(quota) / int(period) if quota.isdecimal() else None
    return None
