"""ONNX files: writing, running in onnxruntime, quantizing to int8."""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import MissingPackageError
from ._compare import Runner
from ._example import Tensors
from ._report import ExportError
from ._trace import quiet

OPSET = 18  # the opset that torch writes without conversion; onnxruntime supports it since 1.14
NEEDED = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingPackageError(f'format="onnx" needs {name}', extra="export") from error


def save_onnx(
    program: ExportedProgram, outputs: Sequence[str], names: Mapping[str, str], notes: Mapping[str, str]
) -> bytes:
    """The content of an .onnx file, with names for its outputs and free axes, and `notes` in its metadata."""
    try:
        with quiet():
            exported = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, output_names=outputs, external_data=False, verbose=False
            )
    except Exception as error:
        reason = next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
        raise ExportError(f"torch cannot write this model as ONNX: {reason}") from error
    assert exported is not None  # since no file is given
    model = exported.model_proto
    _strip(model.graph)
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), size.dim_param)
    for key, value in notes.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    return model.SerializeToString()


def _strip(graph: Any) -> None:
    """Remove torch's notes about where each node comes from, as they name files of this machine."""
    for part in [graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        del part.metadata_props[:]
        part.ClearField("doc_string")


def run_onnx(content: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Tensors) -> list[torch.Tensor]:
        feed = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return [torch.as_tensor(each) for each in session.run(None, feed)]

    return run


def quantize_onnx(content: bytes) -> bytes:
    """Quantize a network to int8: weights now, activations at run time by the range of each tensor."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_from_string(content)
    del model.graph.value_info[:]  # they include shapes of weights, which quantize_dynamic transposes
    entry = model.metadata_props.add()
    # torch has done the preprocessing that onnxruntime would otherwise ask for in its log
    entry.key, entry.value = "onnx.quant.pre_process", "onnxruntime.quant"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        quantize_dynamic(model, file, weight_type=QuantType.QUInt8)
        return file.read_bytes()
