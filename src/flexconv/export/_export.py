"""Writing a model as a file, after that file was run and compared with it."""

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
    """Write a model for use without flexconv, and prove that the file computes the same.

        export(model, "model.onnx")                                     # a network of flexconv.models
        export(mine, "mine.pt2", shape=(1, 3, 32, 32))                  # any module with FlexConvs in it, or none
        export(model, "large.onnx", scale=2)                            # for inputs with twice as many samples

    FlexConvs become plain convolutions first. The result is a function of the model in eval mode, in float32, on any
    batch (axis 0 of every input) and any size (axes from 2 on). Before the file gets its name it is run beside `model`
    itself: on the example, on other batches, on larger and smaller sizes. Sizes that the model refuses are left out.
    The model is not changed. A model without FlexConvs is exported as it is.

    Arguments:
        path: the file. Its folder must be there; a file that is there is replaced, at once, if all went well.
        format: "onnx" (opset 18, for onnxruntime and others), "pt2" (for `torch.export.load`), or "conv": safetensors,
            for `flexconv.export.load_conv`. None: by the suffix of the file (.onnx, .pt2, .safetensors), "onnx" where
            it has another. A format and a suffix that contradict each other are an error.
        example: an input, or a tuple of all that forward takes; floats in float32.
        shape: of an input [batch, channels, …], in place of example. A network of flexconv.models needs neither.
        scale: as in `flexconv.at_resolution`: samples per axis for each one the model was trained with.
        fixed_sizes: leave only the batch free, for models with a layer that takes one size only.
        quantize: onnx alone: convolutions and products of matrices in int8. The float32 version is compared first, and
            the report has both errors. Results then depend a little on what else is in a batch.
        rtol: largest ‖file − model‖ / ‖model‖ allowed in float32.

    Raises:
        ExportError: it cannot be exported, or the file differs from the model by more than rtol. There is no file then.

    """
    format = format_of(path, format)  # noqa: A001
    if quantize and format != "onnx":
        raise ArgumentError(f'quantize=True is for format="onnx"; got format={format!r}')
    positive("rtol", rtol)
    target = Path(path)
    refuse_unwritable(target, "model.onnx")
    if format == "onnx":
        require_onnx()
    model = _prepared(model, scale)
    inputs = make_example(model, example, shape)
    for each in inputs:
        if each.is_floating_point() and each.dtype != torch.float32:
            raise ArgumentError(f"export writes float32: the example is {each.dtype}, convert it with .float()")
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
        quantized = _checked(lambda: run_onnx(content), cases, 1.0)  # as large as the output itself: not a network
    write_atomically(target, content)
    return ExportReport(target, format, len(content), axes, comparisons, OPSET if format == "onnx" else None, quantized)


def format_of(path: str | os.PathLike[str], format: str | None) -> str:  # noqa: A002
    """The format of a file: the one asked for, or else that of its suffix."""
    if format is not None and format not in FORMATS:
        unknown_name("export format", format, FORMATS)
    suffix = Path(path).suffix.lower()
    named = next((each for each, its in SUFFIXES.items() if its == suffix), None)
    if format is not None and named not in (None, format):
        raise ArgumentError(
            f"format={format!r} would be written into {Path(path).name}, and {suffix} is for {named!r}: use the suffix "
            f"{SUFFIXES[format]}, or leave out the format"
        )
    return format or named or "onnx"


def _notes(model: nn.Module) -> dict[str, str]:
    """How to feed the network, where it knows."""
    inputs = getattr(model, "inputs", None)
    return {"flexconv.inputs": json.dumps(inputs.plain(), ensure_ascii=False)} if isinstance(inputs, Inputs) else {}


def _prepared(model: nn.Module, scale: float | Sequence[float] | None) -> nn.Module:
    """A copy of the model as it will be used: at its resolution, in eval mode, on the CPU."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"export wants a torch.nn.Module; got a {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ArgumentError(f"{name} is on the meta device: there are no weights to export")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ArgumentError(f"export writes float32: {name} is {tensor.dtype}, convert the model with .float()")
    return (copy.deepcopy(model) if scale is None else at_resolution(model, scale)).eval().cpu()


def _checked(make_run: Callable[[], Runner], cases: Sequence[Case], rtol: float) -> tuple[Comparison, ...]:
    try:
        run = make_run()
    except Exception as error:
        raise ExportError(f"what was exported cannot be loaded again: {error}") from error
    comparisons = compare(run, cases)
    worst = max(comparisons, key=lambda each: each.error)
    if not worst.error <= rtol:
        raise ExportError(
            f"what was exported differs from the model: relative error {worst.error:.1e} for inputs of shape "
            f"{', '.join(map(str, worst.shapes))}, where {rtol:.0e} is allowed; no file was written"
        )
    return comparisons


def _run_conv(content: bytes, model: nn.Module) -> Runner:
    """The file as a module, from the file alone where it says enough."""
    try:
        loaded = parse_conv(content, None, where="the file")
    except ValueError:
        loaded = parse_conv(content, model, where="the file")

    def run(inputs: Tensors) -> list[torch.Tensor]:
        with torch.no_grad():
            return pytree.tree_leaves(loaded(*inputs))

    return run


def _wanted_axes(inputs: Tensors, fixed_sizes: bool) -> Axes:
    """Axes of what no graph was made of: as free as they were asked to be."""
    free = [free_axes(each, fixed_sizes=fixed_sizes) for each in inputs]
    return tuple(
        tuple(names.get(axis, size) for axis, size in enumerate(each.shape))
        for names, each in zip(free, inputs, strict=True)
    )


def _output_names(model: nn.Module, inputs: Tensors) -> list[str]:
    """The keys, where the model returns a dict of tensors; else output, or output_0, output_1, …"""
    with torch.no_grad():
        outputs = model(*inputs)
    if isinstance(outputs, Mapping) and all(isinstance(each, torch.Tensor) for each in outputs.values()):
        return [str(key) for key in outputs]
    count = len(pytree.tree_leaves(outputs))
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]
