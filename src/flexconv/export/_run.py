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

    The first input may have any dtype. It is rounded if the file expects integers.

    Arguments:
        report: the report of `export`.
        model: an instance of the network, needed for a "conv" file of your own network; see `load_conv`.
        logits: whether to return logits also if the file returns probabilities. They are the logarithms then.

    """

    def __init__(self, report: ExportReport, model: nn.Module | None = None, *, logits: bool = False) -> None:
        super().__init__()
        self._dtype = getattr(torch, report.metadata["input_dtype"])
        self._log = logits and report.metadata.get("output") == "probabilities"
        if report.format == "conv":
            plain = load_conv(report.path, model)
            self._run = lambda inputs: [plain(*inputs)]
        else:
            self._run = {"onnx": run_onnx, "pt2": run_pt2}[report.format](report.path.read_bytes())

    def forward(self, input: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:  # noqa: A002
        if input.is_floating_point() and not self._dtype.is_floating_point:
            limits = torch.iinfo(self._dtype)
            input = input.round().clamp(limits.min, limits.max)  # noqa: A001
        output = self._run((input.to(self._dtype), *others))[0]
        return output.clamp(min=torch.finfo(output.dtype).tiny).log() if self._log else output
