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
        typer.Option(
            metavar="FORMAT",
            help="onnx, pt2 (for torch.export) or conv (safetensors). [default: by the suffix of --out, or onnx]",
        ),
    ] = None,
    resolution: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Resolution to sample kernels for: an image size (64, 48x64) or a length."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write. [default: the name of the model, in this folder]"),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantize to 8-bit integers. Only for onnx.")] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Evaluate the model and the file on the test data of its training run.")
    ] = False,
    root: Root = None,
) -> None:
    """Export a trained model for use without flexconv.

    The exported network is run and compared with the model before the file is written.
    """
    from .. import export as exporting
    from ..export import SUFFIXES, format_of

    format = format_of(out or "", format)  # noqa: A001
    if int8 and format != "onnx":
        raise ArgumentError(f"--int8 needs --format onnx; got --format {format}")
    if test and resolution is not None:
        raise ArgumentError(
            "--test evaluates at the resolution of the training: leave out either --resolution or --test"
        )
    network, recipe, data = load_with_data(model, None, root) if test else (*load_model(model), None)
    if data is not None and data.train.lengths is not None:
        raise ArgumentError(
            f"{data.name} has series of unequal length, which exported files do not accept: leave out --test"
        )
    scale = None if resolution is None else _scale(network, model, resolution)
    name = Path(model).resolve().name + SUFFIXES[format]
    report = exporting.export(network, out or Path(name), format=format, scale=scale, quantize=int8)
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
    """Ratio of the requested resolution to that of the training, per axis."""
    from ..models import trained_size

    before = trained_size(network)
    if before is None:
        raise ArgumentError(f"{name} does not say which resolution it was trained at: --resolution cannot be used")
    return [new / old for new, old in zip(sizes(resolution, len(before), "--resolution"), before, strict=True)]
