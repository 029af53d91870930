"""Tracing: a model as a graph of torch operations with free batch and sizes."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import first_line
from ._compare import Runner
from ._example import Tensors, for_tracing, free_axes
from ._metadata import Metadata
from ._report import ExportError

METADATA = "metadata.json"  # an extra file in .pt2
_NOT_USER_CODE = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


def trace(model: nn.Module, example: Tensors, *, fixed_sizes: bool) -> ExportedProgram:
    """The model as an ExportedProgram that accepts any batch, and any size unless sizes are fixed."""
    dynamic = tuple(dict.fromkeys(free_axes(each, fixed_sizes=fixed_sizes), Dim.AUTO) for each in example)
    inputs = for_tracing(example, fixed_sizes=fixed_sizes)
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # torch prints half a graph before it raises
            program = torch.export.export(model, inputs, dynamic_shapes=dynamic)
    except Exception as error:
        raise ExportError(
            f"{_place(model, error.__traceback__)} cannot be exported: {first_line(error).rstrip('.')}. If the control "
            f"flow depends on values of tensors, use torch.where or torch.cond instead"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of this machine
    return program


def axes_of(program: ExportedProgram, example: Tensors, *, fixed_sizes: bool) -> tuple[tuple[str | int, ...], ...]:
    """For each input, the names of free axes and the sizes of the others. Raises if the model fixes a free axis."""
    names = axis_names(program, example, fixed_sizes=fixed_sizes)
    results = []
    for shape, tensor in zip(_shapes(program), example, strict=True):
        wanted = free_axes(tensor, fixed_sizes=fixed_sizes)
        for axis, name in wanted.items():
            if str(shape[axis]).isdecimal():
                raise ExportError(
                    f"the model accepts only a {name} of {shape[axis]}"
                    + (": use fixed_sizes=True to export it for the sizes of the example" if axis else "")
                )
        results.append(
            tuple(names.get(str(size), str(size)) if axis in wanted else int(size) for axis, size in enumerate(shape))
        )
    return tuple(results)


def axis_names(program: ExportedProgram, example: Tensors, *, fixed_sizes: bool) -> dict[str, str]:
    """The names of the axes that symbols of the program, such as s77, stand for."""
    names: dict[str, str] = {}
    for shape, tensor in zip(_shapes(program), example, strict=True):
        for axis, name in free_axes(tensor, fixed_sizes=fixed_sizes).items():
            symbol, number = str(shape[axis]), 2
            if symbol.isidentifier() and symbol not in names:
                while name in names.values():
                    name, number = f"{name.rstrip('0123456789_')}_{number}", number + 1
                names[symbol] = name
    return names


def _shapes(program: ExportedProgram) -> list[torch.Size]:
    inputs = program.graph_signature.user_inputs
    return [node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]


# --- pt2 --------------------------------------------------------------------------------------------------------------


def save_pt2(program: ExportedProgram, metadata: Metadata) -> bytes:
    """The content of a .pt2 file, for `torch.export.load`, with its metadata in the extra file metadata.json."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={METADATA: json.dumps(metadata, indent=2, ensure_ascii=False)})
    return file.getvalue()


def run_pt2(content: bytes) -> Runner:
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Tensors) -> list[torch.Tensor]:
        with torch.no_grad():
            return pytree.tree_leaves(module(*inputs))

    return run


# --- what went wrong --------------------------------------------------------------------------------------------------


def _place(model: nn.Module, traceback: TracebackType | None) -> str:
    """The module and the line of the user's code in which tracing failed."""
    place = type(model).__name__
    while traceback is not None:
        frame, line = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
        if frame.f_code.co_filename.startswith(_NOT_USER_CODE):
            continue
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            name = next((name for name, module in model.named_modules() if module is owner), "")
            code = linecache.getline(frame.f_code.co_filename, line).strip()
            place = f"{type(owner).__name__}{f' ({name})' if name else ''}, line {line} ({code})"
    return place


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence messages of torch's exporters: a deprecation, a read-only buffer, and that torchvision is missing."""
    loggers = [
        logging.getLogger(name)
        for name in ("torch.onnx._internal.exporter._registration", "torch.fx.experimental.symbolic_shapes")
    ]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".isinstance\(treespec, LeafSpec\)", FutureWarning)
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
