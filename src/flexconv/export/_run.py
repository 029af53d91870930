"""An exported file as a module, to evaluate it like a model."""

from __future__ import annotations

import torch
from torch import nn

from ._conv import load_conv
from ._onnx import run_onnx
from ._report import ExportReport
from ._trace import run_pt2


class ExportedFile(nn.Module):
    """An exported file, run on the CPU by onnxruntime, torch.export or `load_conv`. Returns its first output.

    Arguments:
        report: the report of `export`.
        model: an instance of the network, needed for a "conv" file of your own network; see `load_conv`.

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
