"""Export of a model to a file that is compared with the model before it is written."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .._arguments import positive, unknown_name
from .._files import refuse_unwritable, write_atomically
from ..errors import ArgumentError, ArgumentTypeError
from ..materialize import materialize
from ..models import Inputs
from ..nn import FlexConvNd
from ..resolution import at_resolution
from ._compare import Case, Runner, compare, make_cases
from ._conv import parse_conv, save_conv
from ._example import Tensors, free_axes, make_example
from ._onnx import OPSET, quantize_onnx, require_onnx, run_onnx, save_onnx
from ._report import Comparison, ExportError, ExportReport
from ._trace import axes_of, axis_names, run_pt2, save_pt2, trace

SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "conv": ".safetensors"}
FORMATS = tuple(SUFFIXES)

Axes = tuple[tuple[str | int, ...], ...]


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    example: torch.Tensor | Sequence[torch.Tensor] | None = None,
    shape: Sequence[int] | None = None,
    scale: float | Sequence[float] | None = None,
    fixed_sizes: bool = False,
    quantize: bool = False,
    rtol: float = 1e-5,
) -> ExportReport:
    """Write a model for use without flexconv and check that the file computes the same.

        export(model, "model.onnx")                                     # a network of flexconv.models
        export(mine, "mine.pt2", shape=(1, 3, 32, 32))                  # any module with FlexConvs in it, or none
        export(model, "large.onnx", scale=2)                            # for inputs with twice as many samples

    FlexConvs are replaced by plain convolutions first. The file computes what the model computes in eval mode and
    float32, for any batch (axis 0 of every input) and any size (axes from 2 on). Before it is written, it is run and
    compared with `model`: on the example, on other batches, and on larger and smaller sizes that the model accepts.
    The model is not changed. A model without FlexConvs is exported as it is.

    Arguments:
        path: the file. Its folder must exist. An existing file is replaced atomically, and only if the export succeeds.
        format: "onnx" (opset 18, for onnxruntime and others), "pt2" (for `torch.export.load`), or "conv" (safetensors,
            for `flexconv.export.load_conv`). By default the suffix of the file decides (.onnx, .pt2, .safetensors), and
            "onnx" is used for any other suffix. A format and a suffix that contradict each other are an error.
        example: an input, or a tuple with all inputs of forward. Floats must be float32.
        shape: the shape [batch, channels, …] of an input, instead of example. Networks of flexconv.models need neither.
        scale: the resolution of the inputs relative to that of the training, as in `flexconv.at_resolution`.
        fixed_sizes: only the batch may vary. For models with a layer that accepts a single size.
        quantize: compute convolutions and matrix products in int8. Only for "onnx". The float32 version is compared
            first, and the report has both errors. Results then depend slightly on the other samples in a batch.
        rtol: the largest accepted ‖file − model‖ / ‖model‖ in float32.

    Raises:
        ExportError: the model cannot be exported, or the file differs from it by more than rtol. No file is written.

    """
    format = format_of(path, format)  # noqa: A001
    if quantize and format != "onnx":
        raise ArgumentError(f'quantize=True needs format="onnx"; got format={format!r}')
    positive("rtol", rtol)
    target = Path(path)
    refuse_unwritable(target, "model.onnx")
    if format == "onnx":
        require_onnx()
    model = _prepared(model, scale)
    inputs = make_example(model, example, shape)
    for each in inputs:
        if each.is_floating_point() and each.dtype != torch.float32:
            raise ArgumentError(f"export writes float32, but the example is {each.dtype}: convert it with .float()")
    cases = make_cases(model, inputs, fixed_sizes=fixed_sizes)
    flexible = any(isinstance(module, FlexConvNd) for module in model.modules())
    plain = materialize(model) if flexible else copy.deepcopy(model)

    if format == "conv":
        content, axes = save_conv(model, plain), _wanted_axes(inputs, fixed_sizes)
        comparisons = _checked(lambda: _run_conv(content, model), cases, rtol)
    else:
        program = trace(plain, inputs, fixed_sizes=fixed_sizes)
        axes = axes_of(program, inputs, fixed_sizes=fixed_sizes)
        if format == "pt2":
            content = save_pt2(program)
            comparisons = _checked(lambda: run_pt2(content), cases, rtol)
        else:
            names = axis_names(program, inputs, fixed_sizes=fixed_sizes)
            content = save_onnx(program, _output_names(model, inputs), names, _notes(model))
            comparisons = _checked(lambda: run_onnx(content), cases, rtol)
    quantized: tuple[Comparison, ...] = ()
    if quantize:
        content = quantize_onnx(content)
        quantized = _checked(lambda: run_onnx(content), cases, 1.0)  # a larger error means a broken network
    write_atomically(target, content)
    return ExportReport(target, format, len(content), axes, comparisons, OPSET if format == "onnx" else None, quantized)


def format_of(path: str | os.PathLike[str], format: str | None) -> str:  # noqa: A002
    """The requested format of a file, or the one that its suffix stands for."""
    if format is not None and format not in FORMATS:
        unknown_name("export format", format, FORMATS)
    suffix = Path(path).suffix.lower()
    named = next((each for each, its in SUFFIXES.items() if its == suffix), None)
    if format is not None and named not in (None, format):
        raise ArgumentError(
            f"format={format!r} does not match {Path(path).name}, as {suffix} is for {named!r}: use the suffix "
            f"{SUFFIXES[format]}, or leave out the format"
        )
    return format or named or "onnx"


def _notes(model: nn.Module) -> dict[str, str]:
    """How inputs are prepared, if the network knows it."""
    inputs = getattr(model, "inputs", None)
    return {"flexconv.inputs": json.dumps(inputs.plain(), ensure_ascii=False)} if isinstance(inputs, Inputs) else {}


def _prepared(model: nn.Module, scale: float | Sequence[float] | None) -> nn.Module:
    """A copy of the model as it will be used: at its resolution, in eval mode, on the CPU."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module; got a {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ArgumentError(f"{name} is on the meta device, so it has no weights to export")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ArgumentError(f"export writes float32, but {name} is {tensor.dtype}: convert the model with .float()")
    return (copy.deepcopy(model) if scale is None else at_resolution(model, scale)).eval().cpu()


def _checked(make_run: Callable[[], Runner], cases: Sequence[Case], rtol: float) -> tuple[Comparison, ...]:
    try:
        run = make_run()
    except Exception as error:
        raise ExportError(f"the exported file cannot be loaded: {error}") from error
    comparisons = compare(run, cases)
    worst = max(comparisons, key=lambda each: each.error)
    if not worst.error <= rtol:
        raise ExportError(
            f"the exported file differs from the model: its relative error is {worst.error:.1e} for inputs of shape "
            f"{', '.join(map(str, worst.shapes))}, but only {rtol:.0e} is allowed; no file was written"
        )
    return comparisons


def _run_conv(content: bytes, model: nn.Module) -> Runner:
    """Run the content of a file, loaded without the model if possible."""
    try:
        loaded = parse_conv(content, None, where="the file")
    except ArgumentError:  # not a network of flexconv.models
        loaded = parse_conv(content, model, where="the file")

    def run(inputs: Tensors) -> list[torch.Tensor]:
        with torch.no_grad():
            return pytree.tree_leaves(loaded(*inputs))

    return run


def _wanted_axes(inputs: Tensors, fixed_sizes: bool) -> Axes:
    """The axes of a file without a graph: they are as free as requested."""
    free = [free_axes(each, fixed_sizes=fixed_sizes) for each in inputs]
    return tuple(
        tuple(names.get(axis, size) for axis, size in enumerate(each.shape))
        for names, each in zip(free, inputs, strict=True)
    )


def _output_names(model: nn.Module, inputs: Tensors) -> list[str]:
    """The keys if the model returns a dict of tensors; else output, or output_0, output_1, …"""
    with torch.no_grad():
        outputs = model(*inputs)
    if isinstance(outputs, Mapping) and all(isinstance(each, torch.Tensor) for each in outputs.values()):
        return [str(key) for key in outputs]
    count = len(pytree.tree_leaves(outputs))
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]
