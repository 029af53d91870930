"""flexconv export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ArgumentError
from ._common import Root, print_table, say
from ._model import ModelName, Scorer, load_model, load_with_data, part_of
from ._resample import sizes

if TYPE_CHECKING:
    from ..models import Model


def export(
    model: ModelName,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(help="onnx, pt2 (torch.export) or conv (safetensors); by default as --out ends, else onnx."),
    ] = None,
    resolution: Annotated[
        str | None, typer.Option(help="Image size (64, 48x64) or length to sample kernels for.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file; by default named after the model, here.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise; for onnx alone.")] = False,
    test: Annotated[bool, typer.Option("--test", help="Test model and file on the data it was trained on.")] = False,
    root: Root = None,
    rtol: Annotated[float, typer.Option(help="Largest relative error of the file against the model.")] = 1e-5,
) -> None:
    """Write a trained model for use without flexconv.

    The file is read again and compared with the model.
    """
    from .. import export as exporting
    from ..export import SUFFIXES, format_of

    format = format_of(out or "", format)  # noqa: A001
    if int8 and format != "onnx":
        raise ArgumentError(f"--int8 is for --format onnx; got --format {format}")
    if test and resolution is not None:
        raise ArgumentError("--test tests at the resolution of the training: leave out --resolution, or --test")
    network, recipe, data = load_with_data(model, None, root) if test else (*load_model(model), None)
    if data is not None and data.train.lengths is not None:
        raise ArgumentError(f"{data.name} has series of unequal length, which no exported file takes: leave out --test")
    scale = None if resolution is None else _scale(network, model, resolution)
    name = Path(model).resolve().name + SUFFIXES[format]
    report = exporting.export(network, out or Path(name), format=format, scale=scale, quantize=int8, rtol=rtol)
    say(str(report))
    if data is not None:
        scorer = Scorer(recipe, device="cpu", batch_size=None)
        batches = scorer.batches(part_of(data, "test"), network)
        both = {"model": network, "file": exporting.ExportedFile(report)}
        scores = [(name, scorer(each, batches)) for name, each in both.items()]
        titles = ("", "test accuracy", "loss", "samples")
        rows = [(name, f"{100 * s.accuracy:.2f} %", f"{s.loss:.4f}", f"{s.count:,}") for name, s in scores]
        print_table(titles, rows, right=titles[1:])


def _scale(network: Model, name: str, resolution: str) -> list[float]:
    """Samples at the resolution asked for per sample that the model was trained with, per axis."""
    from ..models import trained_size

    before = trained_size(network)
    if before is None:
        raise ArgumentError(
            f"{name} does not say what resolution it was trained at: --resolution has no place to start"
        )
    return [new / old for new, old in zip(sizes(resolution, len(before), "--resolution"), before, strict=True)]
