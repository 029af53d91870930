"""Benchmarks of convolutions, layers and training steps on this machine. The command is `flexconv bench`."""

from ._ceilings import Ceilings as Ceilings
from ._ceilings import measure_ceilings as measure_ceilings
from ._layers import bench_layers as bench_layers
from ._ops import bench_ops as bench_ops
from ._report import Report as Report
from ._report import check_name as check_name
from ._report import machine as machine
from ._report import write_report as write_report
from ._steps import bench_steps as bench_steps
from ._timing import Timing as Timing
from ._timing import measure as measure

__all__ = [
    "Ceilings",
    "Report",
    "Timing",
    "bench_layers",
    "bench_ops",
    "bench_steps",
    "measure",
    "measure_ceilings",
    "write_report",
]
