"""Export of trained networks for use without flexconv: ONNX, torch.export, or plain convolutions in safetensors.

    from flexconv.export import export
    report = export(model, "model.onnx", shape=(1, 3, 32, 32))
    report.error                                    # 3e-07: the file was run and compared with the model

Kernels are sampled first (`flexconv.materialize`), so that a file holds plain convolutions: no generator, no FFT and
nothing of flexconv. The format "onnx" needs the extra `export`; "pt2" and "conv" need only torch.
"""

from ..models import trained_size as trained_size
from ._conv import load_conv as load_conv
from ._export import FORMATS as FORMATS
from ._export import SUFFIXES as SUFFIXES
from ._export import export as export
from ._export import format_of as format_of
from ._onnx import OPSET as OPSET
from ._report import Comparison as Comparison
from ._report import ExportError as ExportError
from ._report import ExportReport as ExportReport
from ._run import ExportedFile as ExportedFile

__all__ = [
    "FORMATS",
    "OPSET",
    "Comparison",
    "ExportError",
    "ExportReport",
    "ExportedFile",
    "export",
    "load_conv",
    "trained_size",
]
