"""An exported file as a module, to test it as models are tested."""

from __future__ import annotations

import torch
from torch import nn

from ._conv import load_conv
from ._onnx import run_onnx
from ._report import ExportReport
from ._trace import run_pt2


class ExportedFile(nn.Module):
    """What `export` wrote, run by what it was written for: onnxruntime, torch.export or `load_conv`.

    On the CPU. Returns the first output of the file.

    Arguments:
        report: that `export` returned.
        model: an instance of the network, where a "conv" file holds one of your own; see `load_conv`.

    """

    def __init__(self, report: ExportReport, model: nn.Module | None = None) -> None:
        super().__init__()
        if report.format == "conv":
            plain = load_conv(report.path, model)
            self._run = lambda inputs: [plain(*inputs)]
        else:
            self._run = {"onnx": run_onnx, "pt2": run_pt2}[report.format](report.path.read_bytes())

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._run(inputs)[0]
