"""Benchmarks of convolutions, layers and training steps on this machine. The command is `flexconv bench`."""

from .ceilings import Ceilings as Ceilings
from .ceilings import measure_ceilings as measure_ceilings
from .layers import bench_layers as bench_layers
from .memory import bench_memory as bench_memory
from .ops import bench_ops as bench_ops
from .peers import PUBLISHED as PUBLISHED
from .peers import bench_peers as bench_peers
from .report import Report as Report
from .report import check_name as check_name
from .report import machine as machine
from .report import write_report as write_report
from .steps import bench_steps as bench_steps
from .timing import Timing as Timing
from .timing import measure as measure

__all__ = [
    "Ceilings",
    "Report",
    "Timing",
    "bench_layers",
    "bench_memory",
    "bench_ops",
    "bench_peers",
    "bench_steps",
    "measure",
    "measure_ceilings",
    "write_report",
]
