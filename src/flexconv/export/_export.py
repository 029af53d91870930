"""Export of a model to a file that is compared with the model before it is written."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .._arguments import positive, unknown_name
from .._files import refuse_existing, refuse_unwritable, write_atomically
from ..errors import ArgumentError, ArgumentTypeError
from ..materialize import materialize
from ..models import Inputs, Model
from ..nn import FlexConvNd
from ..norm_scale import scale_norms_for_evaluation
from ..resolution import at_resolution
from ._compare import Case, Runner, compare, make_cases, outputs_of
from ._conv import parse_conv, save_conv
from ._example import Tensors, free_axes, make_example
from ._metadata import Metadata, as_text, describe
from ._onnx import OPSET, quantize_onnx, require_onnx, run_onnx, save_onnx
from ._report import Comparison, ExportError, ExportReport
from ._standalone import (
    Standalone,
    check_classes,
    has_one_size,
    included_preprocessing,
    inputs_at,
    output_of,
    to_float16,
)
from ._trace import axes_of, axis_names, run_pt2, save_pt2, trace

SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "conv": ".safetensors"}
FORMATS = tuple(SUFFIXES)
FLOAT16_RTOL = 0.1  # a larger error means a broken network
INT8_RTOL = 1.0

Axes = tuple[tuple[str | int, ...], ...]


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    example: torch.Tensor | Sequence[torch.Tensor] | None = None,
    shape: Sequence[int] | None = None,
    scale: float | Sequence[float] | None = None,
    preprocessing: bool | None = None,
    output: str | None = None,
    name: str | None = None,
    fixed_sizes: bool = False,
    quantize: bool = False,
    half: bool = False,
    rtol: float = 1e-5,
    force: bool = False,
) -> ExportReport:
    """Write a model for use without flexconv and check that the file computes the same.

        export(model, "model.onnx")                                     # a network of flexconv.models
        export(mine, "mine.pt2", shape=(1, 3, 32, 32))                  # any module with FlexConvs in it, or none
        export(model, "large.onnx", scale=2)                            # for inputs with twice as many samples
        export(model, "bare.onnx", preprocessing=False)                 # standardized inputs, logits

    FlexConvs are replaced by plain convolutions first. The file computes what the model computes in eval mode and
    float32, for any batch (axis 0 of every input) and any size (axes from 2 on). If the model has `inputs`, as trained
    networks of flexconv.models have, an "onnx" or "pt2" file computes softmax(model(model.inputs(raw))): it takes raw
    pixels or samples and returns the probabilities of the classes. Its metadata name the classes and describe the
    input. Before the file is written, it is run and compared with `model`: on the example, on other batches, and on
    larger and smaller sizes that the model accepts. The model is not changed. A model without FlexConvs is exported as
    it is.

    Arguments:
        model: the model.
        path: the file. Its folder must exist. The file is written in one step, and only if the export succeeds.
        format: "onnx" (opset 18, for onnxruntime and others), "pt2" (for `torch.export.load`), or "conv" (safetensors,
            for `flexconv.export.load_conv`). By default the suffix of the file decides: .onnx, .pt2 or .safetensors.
            Any other suffix is an error.
        example: an input, or a tuple with all inputs of forward. Floats must be float32. With preprocessing, the first
            one consists of raw samples.
        shape: the shape [batch, channels, …] of an input, instead of example. Networks of flexconv.models need neither.
        scale: the resolution of the inputs relative to that of the training, as in `flexconv.at_resolution`.
        preprocessing: whether the file contains the preprocessing `model.inputs`. The default is True if the model has
            it, but False for "conv", which always holds the bare network.
        output: "probabilities" (softmax over axis 1) or "logits". The default is "probabilities" for a file with
            preprocessing, and what the model returns for a file without.
        name: the name of the network in the metadata. The default is the name of its class.
        fixed_sizes: only the batch may vary. For models with a layer that accepts a single size.
        quantize: compute convolutions and matrix products in int8. Only for "onnx". The float32 version is compared
            first, and the report has both errors. Results then depend slightly on the other samples in a batch.
        half: store weights and compute in float16. Inputs, outputs, preprocessing and softmax stay as they are. Only
            for "onnx" and "pt2". The float32 version is compared first, and the report has both errors.
        rtol: the largest accepted ‖file − model‖ / ‖model‖ in float32. Probabilities are compared by their logarithms.
        force: replace the file if it exists. By default, this is an error.

    Raises:
        ExportError: the model cannot be exported, or the file differs from it by more than rtol. No file is written.
        ExistingFileError: the file exists, and `force` is False.

    """
    target = Path(path)
    refuse_unwritable(target, "model.onnx")
    format = format_of(path, format)  # noqa: A001
    if not force:
        refuse_existing(target)
    _check_options(format, preprocessing=preprocessing, output=output, quantize=quantize, half=half)
    positive("rtol", rtol)
    if format == "onnx":
        require_onnx()
    subject = _subject(model, scale, format, preprocessing, output, name)
    inputs = make_example(subject.model, example, shape, subject.preprocessing)
    fixed_sizes |= has_one_size(subject.preprocessing, inputs[0])
    cases = make_cases(subject.whole, inputs, fixed_sizes=fixed_sizes)
    if subject.inputs is not None and len(cases[0].truth) == 1:
        check_classes(subject.inputs, cases[0].truth[0])
    metadata = describe(
        subject.name,
        subject.inputs,
        shape=tuple(inputs[0].shape),
        preprocessing=subject.preprocessing is not None,
        output=subject.output,
        precision="int8" if quantize else "float16" if half else "float32",
    )
    content, axes, run = _written(subject, inputs, metadata, format, fixed_sizes=fixed_sizes)
    softmax = subject.output == "probabilities"
    comparisons = _checked(run, cases, rtol, probabilities=softmax)
    reduced: tuple[Comparison, ...] = ()
    if half:
        content, axes, run = _written(subject, inputs, metadata, format, fixed_sizes=fixed_sizes, half=True)
    if quantize:
        content = quantize_onnx(content)
        run = partial(run_onnx, content)
    if half or quantize:
        # float16 is slow on CPUs: one size is enough, as the graph is the same
        fewer, limit = (cases[:2], FLOAT16_RTOL) if half else (cases, INT8_RTOL)
        reduced = _checked(run, fewer, limit, probabilities=softmax)
    if not force:
        refuse_existing(target)  # an export takes seconds
    write_atomically(target, content)
    opset = OPSET if format == "onnx" else None
    return ExportReport(target, format, len(content), axes, comparisons, opset, reduced, metadata)


def format_of(path: str | os.PathLike[str], format: str | None) -> str:  # noqa: A002
    """The requested format of a file, or the one that its suffix stands for."""
    if format is not None and format not in FORMATS:
        unknown_name("export format", format, FORMATS)
    file, suffix = Path(path).name, Path(path).suffix.lower()
    named = next((each for each, its in SUFFIXES.items() if its == suffix), None)
    known = ", ".join(f"{its} ({each})" for each, its in SUFFIXES.items())
    if format is not None and suffix not in ("", SUFFIXES[format]):
        raise ArgumentError(
            f"format={format!r} does not match {file}: use the suffix {SUFFIXES[format]}, or leave out the format. "
            f"Suffixes: {known}"
        )
    if format is None and named is None:
        raise ArgumentError(
            f"the format of {file} is unknown: its suffix must be one of {known}; got {suffix or 'no suffix'}"
        )
    return format or named or "onnx"


def _check_options(
    format: str,  # noqa: A002
    *,
    preprocessing: bool | None,
    output: str | None,
    quantize: bool,
    half: bool,
) -> None:
    """Raise an error for options that a format does not have."""
    if quantize and half:
        raise ArgumentError("quantize=True (--int8) and half=True (--half) exclude each other: choose one")
    if half and format == "conv":
        raise ArgumentError('half=True needs format="onnx" or "pt2"; got format=\'conv\'')
    if quantize and format != "onnx":
        raise ArgumentError(f'quantize=True needs format="onnx"; got format={format!r}')
    if format == "conv" and (preprocessing or output == "probabilities"):
        wrong = "preprocessing=True" if preprocessing else "output='probabilities'"
        raise ArgumentError(
            f'{wrong} needs format="onnx" or "pt2": a "conv" file holds the convolutions of the bare network'
        )


# --- the network in the file ------------------------------------------------------------------------------------------


class Subject(NamedTuple):
    """What is exported."""

    name: str
    model: nn.Module
    """The network at its resolution, in eval mode, on the CPU."""
    inputs: Inputs | None
    """How the network is fed, if it is known, with the size at its resolution."""
    preprocessing: Inputs | None
    """`inputs` if the file contains the preprocessing."""
    output: str | None
    """ "probabilities", "logits", or None if it is not known what the model returns."""
    whole: nn.Module
    """The network with preprocessing and softmax."""


def _subject(
    model: nn.Module,
    scale: float | Sequence[float] | None,
    format: str,  # noqa: A002
    preprocessing: bool | None,
    output: str | None,
    name: str | None,
) -> Subject:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model must be a torch.nn.Module; got a {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    name = name or type(model).__name__
    prepared = _prepared(model, scale)
    inputs = inputs_at(model, scale)
    wanted = False if format == "conv" else preprocessing
    included = included_preprocessing(inputs, wanted, name=name, resampled=scale is not None)
    returned = output_of(output, included)
    softmax = returned == "probabilities"
    wrapped = included is not None or softmax
    whole = Standalone(prepared, included, probabilities=softmax).eval() if wrapped else prepared
    return Subject(
        name, prepared, inputs, included, returned or ("logits" if isinstance(model, Model) else None), whole
    )


def _prepared(model: nn.Module, scale: float | Sequence[float] | None) -> nn.Module:
    """A copy of the model as it will be used: at its resolution, in eval mode, on the CPU."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ArgumentError(f"{name} is on the meta device, so it has no weights to export")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ArgumentError(f"export writes float32, but {name} is {tensor.dtype}: convert the model with .float()")
    return (copy.deepcopy(model) if scale is None else at_resolution(model, scale)).eval().cpu()


# --- the content of the file ------------------------------------------------------------------------------------------


def _written(
    subject: Subject,
    inputs: Tensors,
    metadata: Metadata,
    format: str,  # noqa: A002
    *,
    fixed_sizes: bool,
    half: bool = False,
) -> tuple[bytes, Axes, Callable[[], Runner]]:
    """The content of the file, the axes of its inputs, and a function that loads it to run it."""
    flexible = any(isinstance(module, FlexConvNd) for module in subject.model.modules())
    plain = materialize(subject.whole) if flexible else copy.deepcopy(subject.whole)
    scale_norms_for_evaluation(plain)  # so that a float32 file can be converted to float16 by another program
    if half:
        plain = to_float16(plain)
        _check_finite(plain, inputs)
    if format == "conv":
        content = save_conv(subject.model, plain, metadata)
        return content, _wanted_axes(inputs, fixed_sizes), partial(_run_conv, content, subject.model)
    program = trace(plain, inputs, fixed_sizes=fixed_sizes)
    axes = axes_of(program, inputs, fixed_sizes=fixed_sizes)
    if format == "pt2":
        content = save_pt2(program, metadata)
        return content, axes, partial(run_pt2, content)
    names = axis_names(program, inputs, fixed_sizes=fixed_sizes)
    content = save_onnx(program, _output_names(subject, inputs), names, as_text(metadata))
    return content, axes, partial(run_onnx, content)


def _check_finite(network: nn.Module, inputs: Tensors) -> None:
    """Raise an error if a network overflows in float16. A file may hide it, as onnxruntime uses float32 on CPUs."""
    if not all(output.isfinite().all() for output in outputs_of(network, inputs)):
        raise ExportError("the model returns NaN or infinity in float16: export it without --half (half=True)")


def _checked(
    make_run: Callable[[], Runner], cases: Sequence[Case], rtol: float, *, probabilities: bool
) -> tuple[Comparison, ...]:
    try:
        run = make_run()
    except Exception as error:
        raise ExportError(f"the exported file cannot be loaded: {error}") from error
    comparisons = compare(run, cases, probabilities=probabilities)
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


def _output_names(subject: Subject, inputs: Tensors) -> list[str]:
    """The keys if the model returns a dict; probabilities or logits of a `Standalone`; else output, or output_0, …"""
    with torch.no_grad():
        outputs = subject.whole(*inputs)
    if isinstance(outputs, Mapping) and all(isinstance(each, torch.Tensor) for each in outputs.values()):
        return [str(key) for key in outputs]
    count = len(pytree.tree_leaves(outputs))
    if count == 1 and isinstance(subject.whole, Standalone) and subject.output is not None:
        return [subject.output]
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]
